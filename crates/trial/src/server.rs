//! Servers from system packages, started for one run and removed after it.

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

/// The exit status of an example that does not find the server it needs: neither PASS nor FAIL.
pub const NO_SERVER: u8 = 77;

/// A program that is not installed.
#[derive(Debug)]
pub struct Missing {
    pub program: &'static str,
    /// The package that contains it.
    pub package: &'static str,
    /// The alternative to installing it.
    pub instead: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            program,
            package,
            instead,
        } = self;
        write!(
            f,
            "SKIPPED: {program} is not installed. Install {package} (apt install {package}), or {instead}"
        )
    }
}

impl std::error::Error for Missing {}

/// Searches a program in the search path and in the additional folders.
pub fn find(program: &str, folders: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let file = format!("{program}{}", env::consts::EXE_SUFFIX);
    env::split_paths(&path)
        .chain(folders)
        .map(|folder| folder.join(&file))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    #[cfg(unix)]
    let may_run = |metadata: &Metadata| {
        std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o111 != 0
    };
    #[cfg(not(unix))]
    let may_run = |_: &Metadata| true;
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() && may_run(&metadata))
}

/// Returns a free port of the loopback interface. Another process may take it before the caller
/// does, so a caller that starts a server on the port must check that it reached its own server.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The time that a server gets to end before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A shell script that reads from this process until this process has ended for any reason. Then it
/// ends the server whose process id it read last, and removes the folder. If the server does not
/// end in time, the script kills it.
const CLEAN_UP: &str = r#"
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

/// A folder for a server. The server and the folder are removed when this value is dropped, and
/// also when this process ends in another way, even by `kill -9`.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    user: User,
    /// The signal that ends the server.
    signal: &'static str,
    cleaner: Child,
}

impl Scratch {
    /// Creates a folder whose name starts with `name`. Its server ends by `signal`. If this process
    /// runs as root, the server runs as the first of `users` that exists.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created, or the shell cannot be started.
    pub fn new(name: &str, signal: &'static str, users: &[&str]) -> io::Result<Arc<Self>> {
        let temporary = env::temp_dir();
        let folder = fs::canonicalize(&temporary).map_err(|error| {
            let temporary = temporary.display();
            io::Error::new(
                error.kind(),
                format!("the folder for temporary files, {temporary} (TMPDIR): {error}"),
            )
        })?;
        let folder = folder.join(format!("{name}-{}", process::id()));
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let failed = |user: User, error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("{}, for {user}: {error}", folder.display()),
            )
        };
        builder
            .create(&folder)
            .map_err(|error| failed(User(None), error))?;
        let user = User::for_folder(&folder, users);
        let clean_up = || {
            user.give(&folder)?;
            let mut clean_up = Command::new("sh");
            clean_up
                .args(["-c", CLEAN_UP])
                .arg(&folder)
                .arg(signal)
                .current_dir(&folder);
            clean_up
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            user.run(&mut clean_up);
            clean_up.spawn()
        };
        match clean_up() {
            Ok(cleaner) => Ok(Arc::new(Self {
                folder,
                user,
                signal,
                cleaner,
            })),
            Err(error) => {
                let _ = fs::remove_dir(&folder);
                Err(failed(user, error))
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns a description of the user who runs the server.
    pub fn user(&self) -> impl fmt::Display {
        self.user
    }

    /// Returns a command that runs in the folder as that user.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder);
        self.user.run(&mut command);
        command
    }

    /// Tells the shell which process it has to end, or that there is none.
    fn watch(&self, server: Option<u32>) -> io::Result<()> {
        let server = server.map(|id| id.to_string()).unwrap_or_default();
        self.cleaner
            .stdin
            .as_ref()
            .map_or(Ok(()), |mut stdin| writeln!(stdin, "{server}"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Closes this process's end of the pipe first, which makes the shell clean up.
        let cleaned_up = self.cleaner.wait();
        // If the folder still exists, the shell has ended early.
        if self.folder.exists() {
            if let Err(error) = cleaned_up.and_then(|_| fs::remove_dir_all(&self.folder)) {
                eprintln!(
                    "{} may not have been removed: {error}",
                    self.folder.display()
                );
            }
        }
    }
}

/// A server process. It ends when this value is dropped, or when this process has ended in another
/// way.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
    scratch: Arc<Scratch>,
}

impl Server {
    /// Starts the server without input and waits until `ready` returns true. A folder can have only
    /// one server at a time.
    ///
    /// # Errors
    ///
    /// If the server cannot be started, ends before it is ready, or takes longer than `timeout`.
    pub fn start(
        scratch: &Arc<Scratch>,
        command: &mut Command,
        timeout: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> io::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| {
            io::Error::new(error.kind(), format!("{name} cannot be started: {error}"))
        })?;
        let mut server = Self {
            child,
            name,
            scratch: Arc::clone(scratch),
        };
        scratch.watch(Some(server.id()))?;
        let begin = Instant::now();
        while !ready() {
            let name = &server.name;
            if let Some(status) = server.child.try_wait()? {
                return Err(io::Error::other(format!(
                    "{name} ended before it was ready: {status}"
                )));
            }
            if begin.elapsed() > timeout {
                return Err(io::Error::other(format!(
                    "{name} was not ready within {timeout:?}"
                )));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server, as `kill -9` does, and waits until it has ended.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.wait()
    }

    /// Ends the server with the signal of its folder.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if self.child.try_wait()?.is_none() {
            signal(self.id(), self.scratch.signal)?;
            // Continues the server, because it may be stopped.
            signal(self.id(), "CONT")?;
        }
        // The signal has no effect if the server was started with that signal ignored, as in the
        // background of a shell.
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > STOP_TIMEOUT {
                self.child.kill()?;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.wait()
    }

    fn wait(&mut self) -> io::Result<ExitStatus> {
        // Tells the shell first, because the id may belong to another process afterwards. An error
        // means that the shell has ended.
        let _ = self.scratch.watch(None);
        self.child.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{} may still be running: {error}", self.name);
        }
    }
}

/// The user and group that run a server which refuses to run as root. `None`: the current user.
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
    /// Returns the user for a server in `folder`, which the current user owns.
    #[cfg(unix)]
    fn for_folder(folder: &Path, names: &[&str]) -> Self {
        use std::os::unix::fs::MetadataExt;

        let is_root = fs::metadata(folder).is_ok_and(|folder| folder.uid() == 0);
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = |name: &&str| {
            let mut fields = users
                .lines()
                .map(|line| line.split(':'))
                .find(|line| line.clone().next() == Some(*name))?;
            Some((fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        Self(is_root.then(|| names.iter().find_map(user)).flatten())
    }

    #[cfg(unix)]
    fn give(self, folder: &Path) -> io::Result<()> {
        self.0.map_or(Ok(()), |(user, group)| {
            std::os::unix::fs::chown(folder, Some(user), Some(group))
        })
    }

    #[cfg(unix)]
    fn run(self, command: &mut Command) {
        use std::os::unix::process::CommandExt;

        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
    }

    #[cfg(not(unix))]
    fn for_folder(_: &Path, _: &[&str]) -> Self {
        Self(None)
    }

    #[cfg(not(unix))]
    fn give(self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    #[cfg(not(unix))]
    fn run(self, _: &mut Command) {}
}
