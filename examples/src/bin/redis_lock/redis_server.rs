//! A Redis for one run.

use std::error::Error;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hashed_wheel_examples::process::signal;
use hashed_wheel_examples::server::{self, Missing, Scratch, Server};
use redis::{Client, Commands, Connection, InfoDict};

use crate::trial::PATIENCE;

/// So often another port is tried.
const TRIES: u32 = 3;

/// On a free port of loopback, with its data in a folder of its own. Both are gone when this is dropped.
pub(crate) struct RedisServer {
    server: Option<Server>,
    program: PathBuf,
    port: u16,
    scratch: Arc<Scratch>,
}

impl RedisServer {
    /// # Errors
    ///
    /// [`Missing`], or what keeps it from coming up.
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let program = server::find("redis-server", []);
        let program = program.ok_or(Missing {
            program: "redis-server",
            package: "redis-server",
            instead: "give the --url of a Redis that nobody uses",
        })?;
        let scratch = Scratch::new("redis_lock", "KILL", &[])?;
        let mut redis = Self { server: None, program, port: 0, scratch };
        let mut tries = 1..TRIES;
        loop {
            redis.port = server::free_port()?;
            match redis.start_again() {
                Ok(()) => return Ok(redis),
                // Somebody else may have taken the port.
                Err(error) if tries.next().is_none() => return Err(error),
                Err(_) => {}
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// On the same port, with what data there is. Without fsync, what was answered outlives Redis, though not the machine.
    pub(crate) fn start_again(&mut self) -> Result<(), Box<dyn Error>> {
        let mut command = self.scratch.command(&self.program);
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "no", "--logfile", "redis.log"]);
        let url = self.url();
        // Not before it has read its data.
        let is_ready = || connect(&url).and_then(|mut redis| redis.ping::<String>()).is_ok();
        let server = Server::start(&self.scratch, &mut command, PATIENCE, is_ready).map_err(|error| {
            let log = fs::read_to_string(self.scratch.path().join("redis.log")).unwrap_or_default();
            format!("{error}. It has said:\n{log}")
        })?;
        let info: InfoDict = redis::cmd("INFO").arg("server").query(&mut connect(&url)?)?;
        if info.get::<u32>("process_id") != Some(server.id()) {
            return Err(format!("somebody else listens on port {}", self.port).into());
        }
        self.server = Some(server);
        Ok(())
    }

    /// As `kill -9` does.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        if let Some(mut server) = self.server.take() {
            server.kill()?;
        }
        Ok(())
    }

    /// As if it had kept nothing, once it is killed.
    pub(crate) fn lose_data(&self) -> io::Result<()> {
        fs::remove_dir_all(self.scratch.path().join("appendonlydir"))
    }

    /// It takes connections and answers nothing.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        self.server.as_ref().map_or(Ok(()), |server| signal(server.id(), "STOP"))
    }

    pub(crate) fn thaw(&self) -> io::Result<()> {
        self.server.as_ref().map_or(Ok(()), |server| signal(server.id(), "CONT"))
    }
}

/// For the trial's own questions.
pub(crate) fn connect(url: &str) -> redis::RedisResult<Connection> {
    let connection = Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}
