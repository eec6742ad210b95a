//! A PostgreSQL of our own, in a scratch folder, where no other is named.

use std::error::Error;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Output, Stdio};
use std::time::Duration;
use std::{cmp, env};

use hashed_wheel_examples::server::{self, Missing, Server};
use postgres::{Config, NoTls};

const MISSING: Missing = Missing {
    program: "postgres",
    package: "postgresql",
    instead: "name a server that is there with --url postgresql://user:password@host/database",
};

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A shell that reads from us until we are gone, whichever way that comes about; then it clears up.
const CLEAR_UP: &str = r#"trap '' INT TERM HUP; cat; "$1" stop -m immediate -D "$0/data"; rm -rf "$0""#;

/// Gone when this is dropped, or the process has ended otherwise, with its folder.
pub(crate) struct Database {
    pub(crate) url: String,
    server: Option<Server>,
    folder: PathBuf,
    /// Where its programs are.
    bin: PathBuf,
    user: User,
    clears_up: Child,
}

impl Database {
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let bin = server::find("postgres", folders()).ok_or(MISSING)?.with_file_name("");
        let folder = env::temp_dir().join(format!("job_scheduler-{}", process::id()));
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder)?;
        let user = User::that_may(&folder);
        user.give(&folder)?;
        let mut clear_up = Command::new("sh");
        clear_up.args(["-c", CLEAR_UP]).args([&folder, &bin.join("pg_ctl")]);
        clear_up.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        user.run(&mut clear_up);
        let clears_up = clear_up.spawn()?;
        let mut database = Self { url: String::new(), server: None, folder, bin, user, clears_up };
        database.init()?;
        // Who is faster to take the port makes us take another.
        let is_ready = (0..3).any(|_| database.listen().is_ok());
        if is_ready { Ok(database) } else { Err(database.log().into()) }
    }

    fn init(&self) -> Result<(), Box<dyn Error>> {
        let mut initdb = self.command("initdb");
        // Nothing of this has to last.
        initdb.args(["--auth=trust", "--username=postgres", "--no-locale", "--encoding=UTF8", "--no-sync"]);
        let Output { status, stderr, .. } = initdb.output()?;
        let why = || format!("initdb: {}", String::from_utf8_lossy(&stderr));
        if status.success() { Ok(()) } else { Err(why().into()) }
    }

    fn listen(&mut self) -> io::Result<()> {
        let port = server::free_port()?;
        self.url = format!("postgresql://postgres@127.0.0.1:{port}/postgres");
        let mut postgres = self.command("postgres");
        postgres.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k"]).arg(&self.folder);
        // The processes are what dies here, and not the machine.
        postgres.args(["-c", "fsync=off", "-c", "max_connections=300"]);
        let log = File::create(self.log_file())?;
        postgres.stdout(log.try_clone()?).stderr(log);
        let config: Config = self.url.parse().map_err(io::Error::other)?;
        let data = self.data();
        let is_ours = || {
            let shown = config.connect(NoTls).and_then(|mut it| it.query_one("SHOW data_directory", &[]));
            shown.is_ok_and(|row| Path::new(row.get::<_, &str>(0)) == data)
        };
        self.server = Some(Server::start(&mut postgres, PATIENCE, is_ours)?);
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        // (They complain of a current folder that their user may not see.)
        command.arg("-D").arg(self.data()).current_dir(&self.folder);
        self.user.run(&mut command);
        command
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        format!("PostgreSQL does not start:\n{log}")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Its end of the pipe goes first.
        if let Err(error) = self.clears_up.wait() {
            eprintln!("{} is perhaps left: {error}", self.folder.display());
        }
    }
}

/// Where packages put it, the newest first.
fn folders() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (folder, prefix) in [
        ("/usr/lib/postgresql", ""),
        ("/usr", "pgsql-"),
        ("/opt/homebrew/opt", "postgresql@"),
        ("/usr/local/opt", "postgresql@"),
    ] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
            found.extend(version.map(|version| (version, entry.path().join("bin"))));
        }
    }
    found.sort_by_key(|&(version, _)| cmp::Reverse(version));
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// Who runs it: it refuses to be run by root.
#[derive(Debug, Clone, Copy)]
struct User(Option<(u32, u32)>);

impl User {
    /// `folder` is ours.
    #[cfg(unix)]
    fn that_may(folder: &Path) -> Self {
        use std::os::unix::fs::MetadataExt;

        let is_root = fs::metadata(folder).is_ok_and(|folder| folder.uid() == 0);
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = |name| {
            let mut fields =
                users.lines().map(|line| line.split(':')).find(|line| line.clone().next() == Some(name))?;
            Some((fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        Self(is_root.then(|| user("postgres").or_else(|| user("nobody"))).flatten())
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
    fn that_may(_: &Path) -> Self {
        Self(None)
    }

    #[cfg(not(unix))]
    fn give(self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    #[cfg(not(unix))]
    fn run(self, _: &mut Command) {}
}
