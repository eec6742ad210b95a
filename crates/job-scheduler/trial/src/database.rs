//! A PostgreSQL server in a temporary folder, for runs without `--url`.

use std::cmp;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel_trial::server::{self, Missing, Scratch, Server};
use postgres::{Config, NoTls};

use crate::disk::Disk;
use crate::wall_clock::WallClock;

const MISSING: Missing = Missing {
    program: "postgres",
    package: "postgresql",
    instead: "use --url postgresql://user:password@host/database for a running server (the program only)",
};

/// The time limit for its start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The time limit for the first error by a full disk.
const FULL_TIMEOUT: Duration = Duration::from_secs(20);

/// Additions to a server, so that it can be disturbed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A small disk for its data. The process must be in a mount namespace of its own.
    pub disk: bool,
    /// A clock that can be set. The nodes get another one.
    pub clock: bool,
}

/// How a server ends before it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By `kill -9` of its main process.
    Kill,
    /// By an immediate shutdown: no checkpoint, and no answer to clients.
    Immediate,
}

/// A server with its folder. Both are removed when this value is dropped, or when the process has
/// ended in another way.
pub struct Database {
    /// How to connect to it.
    pub url: String,
    port: u16,
    is_durable: bool,
    server: Option<Server>,
    /// Dropped after the server and before the folder.
    disk: Option<Disk>,
    clocks: Option<Clocks>,
    scratch: Arc<Scratch>,
    /// The folder of its programs.
    bin: PathBuf,
}

/// The wall clock of the server, and that of the nodes.
#[derive(Debug)]
pub struct Clocks {
    pub server: WallClock,
    pub nodes: WallClock,
}

impl Database {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// [`Missing`] if PostgreSQL is not installed, or another error if it cannot be started.
    pub fn start() -> Result<Self, Box<dyn Error>> {
        Self::start_server(false, Faults::default())
    }

    /// Starts it with fsync, as a real server has it. It is only needed if the machine fails, so it
    /// is for measurements.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_durable() -> Result<Self, Box<dyn Error>> {
        Self::start_server(true, Faults::default())
    }

    /// Starts it so that it can be disturbed.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and if the disk or the clock is not possible on this machine.
    pub fn start_with(faults: Faults) -> Result<Self, Box<dyn Error>> {
        Self::start_server(false, faults)
    }

    /// Starts a standby, which has the data of this server and receives its changes. It is
    /// read-only until it is promoted by `SELECT pg_promote()`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start_standby(&self) -> Result<Self, Box<dyn Error>> {
        let standby = Self::new(self.is_durable)?;
        let mut backup = standby.command("pg_basebackup");
        backup.args(["--checkpoint=fast", "--no-sync", "--dbname", &self.url]);
        let Output { status, stderr, .. } = backup.output()?;
        let why = || {
            format!(
                "pg_basebackup {}:\n{}",
                standby.place(),
                String::from_utf8_lossy(&stderr)
            )
        };
        if !status.success() {
            return Err(why().into());
        }
        // Not by pg_basebackup, whose version may be newer, with settings that this server lacks.
        File::create(standby.data().join("standby.signal"))?;
        let settings = standby.data().join("postgresql.auto.conf");
        let mut settings = File::options().append(true).open(settings)?;
        writeln!(settings, "primary_conninfo = '{}'", self.url)?;
        standby.listen_somewhere()
    }

    /// Returns the statements that restore a schema, by `pg_dump`.
    ///
    /// # Errors
    ///
    /// If `pg_dump` fails.
    pub fn dump(&self, schema: &str) -> Result<String, Box<dyn Error>> {
        let mut dump = self.scratch.command(self.bin.join("pg_dump"));
        // With INSERT instead of COPY, so that any client can execute it.
        dump.args(["--inserts", "--schema", schema, "--dbname", &self.url]);
        let Output {
            status,
            stdout,
            stderr,
        } = dump.output()?;
        if !status.success() {
            return Err(format!("pg_dump:\n{}", String::from_utf8_lossy(&stderr)).into());
        }
        // The others are commands of psql.
        let text = String::from_utf8(stdout)?;
        Ok(text
            .lines()
            .filter(|line| !line.starts_with('\\'))
            .map(|line| format!("{line}\n"))
            .collect())
    }

    fn new(is_durable: bool) -> Result<Self, Box<dyn Error>> {
        // It may be a link to a folder with more programs.
        let bin = server::find("postgres", folders())
            .ok_or(MISSING)?
            .canonicalize()?
            .with_file_name("");
        // SIGQUIT is an immediate shutdown. PostgreSQL refuses to run as root.
        let scratch = Scratch::new(&name(), "QUIT", &["postgres", "nobody"])?;
        Ok(Self {
            url: String::new(),
            port: 0,
            is_durable,
            server: None,
            disk: None,
            clocks: None,
            scratch,
            bin,
        })
    }

    fn start_server(is_durable: bool, faults: Faults) -> Result<Self, Box<dyn Error>> {
        let mut database = Self::new(is_durable)?;
        if faults.disk {
            database.disk = Some(Disk::mount(&database.data())?);
        }
        database.init()?;
        if faults.clock {
            let clock = |name| WallClock::new(database.scratch.path(), name);
            database.clocks = Some(Clocks {
                server: clock("server")?,
                nodes: clock("nodes")?,
            });
        }
        database.listen_somewhere()
    }

    /// If another process takes the port, the next attempt uses another port.
    fn listen_somewhere(mut self) -> Result<Self, Box<dyn Error>> {
        let is_ready = (0..3).any(|_| {
            self.port = server::free_port().unwrap_or(0);
            self.listen().is_ok()
        });
        if is_ready {
            Ok(self)
        } else {
            Err(self.log().into())
        }
    }

    /// Ends the server and starts it again on the same port.
    ///
    /// # Errors
    ///
    /// If it cannot be started again.
    pub fn restart(&mut self, end: End) -> Result<(), Box<dyn Error>> {
        if let Some(mut server) = self.server.take() {
            if end == End::Kill {
                server.kill()?;
            }
            // Dropping it sends the signal of its folder.
        }
        // The processes of its connections end a little later, and the new server waits for that.
        let is_ready = (0..50).any(|_| {
            thread::sleep(Duration::from_millis(100));
            self.listen().is_ok()
        });
        if is_ready {
            Ok(())
        } else {
            Err(self.log().into())
        }
    }

    /// The clocks, if it was started with them.
    pub fn clocks(&mut self) -> Option<&mut Clocks> {
        self.clocks.as_mut()
    }

    /// Fills its disk for some time, and until a statement has failed by that. Starts the server
    /// again if it has ended by that. Returns the number of errors in the log of the server.
    ///
    /// # Errors
    ///
    /// If it was started without a disk of its own, or it cannot be started again.
    pub fn fill_disk(&mut self, time: Duration) -> Result<usize, Box<dyn Error>> {
        let disk = self.disk.as_ref().ok_or("it has no disk of its own")?;
        let mut ballast = disk.fill()?;
        let begin = Instant::now();
        let mut errors = 0;
        while begin.elapsed() < time || errors == 0 && begin.elapsed() < FULL_TIMEOUT {
            thread::sleep(Duration::from_millis(20));
            ballast.fill()?;
            errors = fs::read_to_string(self.log_file())?
                .matches("No space left on device")
                .count();
        }
        drop(ballast);
        // Without space for its journal, it ends, and may fail to recover.
        if !self.is_ready() {
            self.restart(End::Immediate)?;
        }
        Ok(errors)
    }

    /// Returns whether it accepts connections soon.
    fn is_ready(&self) -> bool {
        let is_ready = || {
            self.url
                .parse::<Config>()
                .is_ok_and(|config| config.connect(NoTls).is_ok())
        };
        (0..20).any(|_| {
            thread::sleep(Duration::from_millis(100));
            is_ready()
        })
    }

    fn init(&self) -> Result<(), Box<dyn Error>> {
        let mut initdb = self.command("initdb");
        // The data need not be durable.
        initdb.args([
            "--auth=trust",
            "--username=postgres",
            "--no-locale",
            "--encoding=UTF8",
            "--no-sync",
        ]);
        let Output { status, stderr, .. } = initdb.output()?;
        let why = || {
            format!(
                "initdb {}:\n{}",
                self.place(),
                String::from_utf8_lossy(&stderr)
            )
        };
        if status.success() {
            Ok(())
        } else {
            Err(why().into())
        }
    }

    fn listen(&mut self) -> io::Result<()> {
        let port = self.port;
        self.url = format!("postgresql://postgres@127.0.0.1:{port}/postgres");
        let mut postgres = self.command("postgres");
        postgres.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k", ""]);
        // Only processes are killed here, not the machine, so tests do not need fsync.
        let fsync = if self.is_durable {
            "fsync=on"
        } else {
            "fsync=off"
        };
        postgres.args(["-c", fsync, "-c", "max_connections=300"]);
        if self.disk.is_some() {
            // The journal is as small as possible.
            postgres.args(["-c", "min_wal_size=32MB", "-c", "max_wal_size=32MB"]);
        }
        if let Some(clocks) = &self.clocks {
            postgres.envs(clocks.server.environment());
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())?;
        postgres.stdout(log.try_clone()?).stderr(log);
        let config: Config = self.url.parse().map_err(io::Error::other)?;
        let data = self.data();
        let is_ours = || {
            let shown = config
                .connect(NoTls)
                .and_then(|mut client| client.query_one("SHOW data_directory", &[]));
            shown.is_ok_and(|row| Path::new(row.get::<_, &str>(0)) == data)
        };
        self.server = Some(Server::start(
            &self.scratch,
            &mut postgres,
            START_TIMEOUT,
            is_ours,
        )?);
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
        format!("PostgreSQL cannot be started {}:\n{log}", self.place())
    }

    fn place(&self) -> String {
        format!(
            "in {} as {}",
            self.scratch.path().display(),
            self.scratch.user()
        )
    }
}

/// Several tests of one process have a server each.
fn name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("job_scheduler_{}", COUNT.fetch_add(1, Relaxed))
}

/// Returns the folders where packages install it, the newest version first.
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
            let version = name
                .to_str()
                .and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
            found.extend(version.map(|version| (version, entry.path().join("bin"))));
        }
    }
    found.sort_by_key(|&(version, _)| cmp::Reverse(version));
    found.into_iter().map(|(_, folder)| folder).collect()
}
