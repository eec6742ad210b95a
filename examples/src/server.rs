//! Servers from the system's packages, started for one run and gone after it.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirBuilder, Metadata};
use std::io::{self, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::signal;

/// The exit status of an example that cannot find the server it needs: neither PASS nor FAIL.
pub const NO_SERVER: u8 = 77;

/// A program that is not on this machine.
#[derive(Debug)]
pub struct Missing {
    pub program: &'static str,
    /// What installs it.
    pub package: &'static str,
    /// What to do in place of that.
    pub instead: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, package, instead } = self;
        write!(
            f,
            "SKIPPED: there is no {program} here. Install {package} (apt install {package}), or {instead}"
        )
    }
}

impl std::error::Error for Missing {}

/// Where a program is: in the search path, or in one of the folders where its packages put it.
pub fn find(program: &str, folders: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let file = format!("{program}{}", env::consts::EXE_SUFFIX);
    env::split_paths(&path).chain(folders).map(|folder| folder.join(&file)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    #[cfg(unix)]
    let may_run =
        |metadata: &Metadata| std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o111 != 0;
    #[cfg(not(unix))]
    let may_run = |_: &Metadata| true;
    file.metadata().is_ok_and(|metadata| metadata.is_file() && may_run(&metadata))
}

/// A port of loopback that nobody listens on now. (Somebody else may be faster: who starts a server there looks whether it
/// is the one.)
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// How long a server may take to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A shell that reads from us until we are gone, whichever way that comes about. Then it ends the server whose number it read
/// last, and clears up after it. (Nobody may be there to take note of the end: so it does not wait for ever.)
const CLEAR_UP: &str = r#"
    trap '' INT TERM HUP QUIT
    while read -r line; do server=$line; done
    if [ "$server" ]; then
        kill -"$1" "$server"; kill -CONT "$server"
        tries=0
        while kill -0 "$server"; do
            [ $((tries += 1)) -le 100 ] || { kill -KILL "$server"; break; }
            sleep 0.1
        done
    fi
    rm -rf "$0""#;

/// A folder for a server, and how that ends: both are gone when this is dropped, or when this process has ended otherwise, also
/// by `kill -9`.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    user: User,
    /// Ends the server.
    signal: &'static str,
    clears_up: Child,
}

impl Scratch {
    /// A folder of a name that begins so, for a server that ends by this signal. Where we are root, it is run by one of `users`, if there
    /// are any.
    ///
    /// # Errors
    ///
    /// If there is no such folder to be had, or no shell.
    pub fn new(name: &str, signal: &'static str, users: &[&str]) -> io::Result<Arc<Self>> {
        let folder = fs::canonicalize(env::temp_dir())?.join(format!("{name}-{}", process::id()));
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let failed = |user: User, error: io::Error| {
            io::Error::new(error.kind(), format!("{}, for {user}: {error}", folder.display()))
        };
        builder.create(&folder).map_err(|error| failed(User(None), error))?;
        let user = User::that_may(&folder, users);
        let clear_up = || {
            user.give(&folder)?;
            let mut clear_up = Command::new("sh");
            clear_up.args(["-c", CLEAR_UP]).arg(&folder).arg(signal).current_dir(&folder);
            clear_up.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            user.run(&mut clear_up);
            clear_up.spawn()
        };
        match clear_up() {
            Ok(clears_up) => Ok(Arc::new(Self { folder, user, signal, clears_up })),
            Err(error) => {
                let _ = fs::remove_dir(&folder);
                Err(failed(user, error))
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Who runs what is in it, in words.
    pub fn user(&self) -> impl fmt::Display {
        self.user
    }

    /// To be run in it, by its user.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder);
        self.user.run(&mut command);
        command
    }

    /// From now on, this process is to be ended; or none.
    fn watch(&self, server: Option<u32>) -> io::Result<()> {
        let server = server.map(|id| id.to_string()).unwrap_or_default();
        self.clears_up.stdin.as_ref().map_or(Ok(()), |mut stdin| writeln!(stdin, "{server}"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Its end of the pipe goes first.
        let cleared_up = self.clears_up.wait();
        // It has gone before its time, if there is something left.
        if self.folder.exists() {
            if let Err(error) = cleared_up.and_then(|_| fs::remove_dir_all(&self.folder)) {
                eprintln!("{} is perhaps left: {error}", self.folder.display());
            }
        }
    }
}

/// A process that ends when this is dropped, or when this process has ended otherwise.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
    scratch: Arc<Scratch>,
}

impl Server {
    /// Starts it, with nothing to read; waits until it is `ready`. One at a time in a folder.
    ///
    /// # Errors
    ///
    /// If it cannot be started, ends before it is ready, or takes longer than `patience`.
    pub fn start(
        scratch: &Arc<Scratch>,
        command: &mut Command,
        patience: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> io::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn();
        let child =
            child.map_err(|error| io::Error::new(error.kind(), format!("{name} does not start: {error}")))?;
        let mut server = Self { child, name, scratch: Arc::clone(scratch) };
        scratch.watch(Some(server.id()))?;
        let begin = Instant::now();
        while !ready() {
            let name = &server.name;
            if let Some(status) = server.child.try_wait()? {
                return Err(io::Error::other(format!("{name} has ended before it was ready: {status}")));
            }
            if begin.elapsed() > patience {
                return Err(io::Error::other(format!("{name} was not ready within {patience:?}")));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// What the operating system knows it by.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.wait()
    }

    /// By its folder's signal.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if self.child.try_wait()?.is_none() {
            signal(self.id(), self.scratch.signal)?;
            // Where it is stopped.
            signal(self.id(), "CONT")?;
        }
        // It may have been started with that signal ignored, as what is run in a shell's background is.
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > PATIENCE {
                self.child.kill()?;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.wait()
    }

    fn wait(&mut self) -> io::Result<ExitStatus> {
        // First, for its number may be somebody else's after that. Where nobody reads it, nobody will use it.
        let _ = self.scratch.watch(None);
        self.child.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{} is perhaps still there: {error}", self.name);
        }
    }
}

/// Who runs a server, which may refuse to be run by root: a user and a group, where it is not us.
#[derive(Debug, Clone, Copy)]
struct User(Option<(u32, u32)>);

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((user, _)) => write!(f, "user {user}"),
            None => f.write_str("this user"),
        }
    }
}

impl User {
    /// `folder` is ours.
    #[cfg(unix)]
    fn that_may(folder: &Path, names: &[&str]) -> Self {
        use std::os::unix::fs::MetadataExt;

        let is_root = fs::metadata(folder).is_ok_and(|folder| folder.uid() == 0);
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = |name: &&str| {
            let mut fields =
                users.lines().map(|line| line.split(':')).find(|line| line.clone().next() == Some(*name))?;
            Some((fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        Self(is_root.then(|| names.iter().find_map(user)).flatten())
    }

    #[cfg(unix)]
    fn give(self, folder: &Path) -> io::Result<()> {
        self.0.map_or(Ok(()), |(user, group)| std::os::unix::fs::chown(folder, Some(user), Some(group)))
    }

    #[cfg(unix)]
    fn run(self, command: &mut Command) {
        use std::os::unix::process::CommandExt;

        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
    }

    #[cfg(not(unix))]
    fn that_may(_: &Path, _: &[&str]) -> Self {
        Self(None)
    }

    #[cfg(not(unix))]
    fn give(self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    #[cfg(not(unix))]
    fn run(self, _: &mut Command) {}
}
