//! A PostgreSQL of our own, in a scratch folder, where no other is named.

use std::cmp;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use hashed_wheel_examples::server::{self, Missing, Scratch, Server};
use postgres::{Config, NoTls};

const MISSING: Missing = Missing {
    program: "postgres",
    package: "postgresql",
    instead: "name a server that is there with --url postgresql://user:password@host/database",
};

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gone when this is dropped, or the process has ended otherwise, with its folder.
pub(crate) struct Database {
    pub(crate) url: String,
    server: Option<Server>,
    scratch: Arc<Scratch>,
    /// Where its programs are.
    bin: PathBuf,
}

impl Database {
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let bin = server::find("postgres", folders()).ok_or(MISSING)?.with_file_name("");
        // An immediate shutdown. It refuses to be run by root.
        let scratch = Scratch::new("job_scheduler", "QUIT", &["postgres", "nobody"])?;
        let mut database = Self { url: String::new(), server: None, scratch, bin };
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
        let why = || format!("initdb, {}:\n{}", self.place(), String::from_utf8_lossy(&stderr));
        if status.success() { Ok(()) } else { Err(why().into()) }
    }

    fn listen(&mut self) -> io::Result<()> {
        let port = server::free_port()?;
        self.url = format!("postgresql://postgres@127.0.0.1:{port}/postgres");
        let mut postgres = self.command("postgres");
        postgres.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k", ""]);
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
        self.server = Some(Server::start(&self.scratch, &mut postgres, PATIENCE, is_ours)?);
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.scratch.command(self.bin.join(program));
        command.arg("-D").arg(self.data());
        command
    }

    fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        format!("PostgreSQL does not start, {}:\n{log}", self.place())
    }

    fn place(&self) -> String {
        format!("in {} as {}", self.scratch.path().display(), self.scratch.user())
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
