//! Servers from the system's packages, started for one run and gone after it.

use std::env;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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

/// A process that ends, at once, when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
}

impl Server {
    /// Starts it, with nothing to read; waits until it is `ready`.
    ///
    /// # Errors
    ///
    /// If it cannot be started, ends before it is ready, or takes longer than `patience`.
    pub fn start(
        command: &mut Command,
        patience: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> io::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn();
        let child =
            child.map_err(|error| io::Error::new(error.kind(), format!("{name} does not start: {error}")))?;
        let mut server = Self { child, name };
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
        self.child.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("{} is perhaps still there: {error}", self.name);
        }
    }
}
