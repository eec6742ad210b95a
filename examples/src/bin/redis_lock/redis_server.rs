//! A Redis server for one run.

use std::error::Error;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hashed_wheel_examples::process::signal;
use hashed_wheel_examples::server::{self, Missing, Scratch, Server};
use redis::{Client, Commands, Connection, InfoDict};

use crate::trial::PATIENCE;

/// The number of ports that are tried.
const TRIES: u32 = 3;

/// A Redis server on a free port of the loopback interface, with its data in its own folder. Both
/// are removed when this value is dropped.
pub(crate) struct RedisServer {
    server: Option<Server>,
    program: PathBuf,
    port: u16,
    scratch: Arc<Scratch>,
}

impl RedisServer {
    /// # Errors
    ///
    /// [`Missing`], or the reason why it does not start.
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let program = server::find("redis-server", []);
        let program = program.ok_or(Missing {
            program: "redis-server",
            package: "redis-server",
            instead: "use --url with a Redis that no other program uses",
        })?;
        let scratch = Scratch::new("redis_lock", "KILL", &[])?;
        let mut redis = Self { server: None, program, port: 0, scratch };
        let mut tries = 1..TRIES;
        loop {
            redis.port = server::free_port()?;
            match redis.restart() {
                Ok(()) => return Ok(redis),
                // Another process may have taken the port.
                Err(error) if tries.next().is_none() => return Err(error),
                Err(_) => {}
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Starts Redis on the same port with the existing data. Without fsync, acknowledged data
    /// survives a kill of Redis, but not a crash of the machine.
    pub(crate) fn restart(&mut self) -> Result<(), Box<dyn Error>> {
        let mut command = self.scratch.command(&self.program);
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "no", "--logfile", "redis.log"]);
        let url = self.url();
        // Redis answers only after it has loaded its data.
        let is_ready = || connect(&url).and_then(|mut redis| redis.ping::<String>()).is_ok();
        let server = Server::start(&self.scratch, &mut command, PATIENCE, is_ready).map_err(|error| {
            let log = fs::read_to_string(self.scratch.path().join("redis.log")).unwrap_or_default();
            format!("{error}. Its log:\n{log}")
        })?;
        let info: InfoDict = redis::cmd("INFO").arg("server").query(&mut connect(&url)?)?;
        if info.get::<u32>("process_id") != Some(server.id()) {
            return Err(format!("another process listens on port {}", self.port).into());
        }
        self.server = Some(server);
        Ok(())
    }

    /// Kills Redis, as `kill -9` does.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        if let Some(mut server) = self.server.take() {
            server.kill()?;
        }
        Ok(())
    }

    /// Deletes the data of a killed Redis.
    pub(crate) fn lose_data(&self) -> io::Result<()> {
        fs::remove_dir_all(self.scratch.path().join("appendonlydir"))
    }

    /// Stops Redis: it accepts connections but does not answer.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        self.server.as_ref().map_or(Ok(()), |server| signal(server.id(), "STOP"))
    }

    pub(crate) fn thaw(&self) -> io::Result<()> {
        self.server.as_ref().map_or(Ok(()), |server| signal(server.id(), "CONT"))
    }
}

/// Opens a connection for the trial's own queries.
pub(crate) fn connect(url: &str) -> redis::RedisResult<Connection> {
    let connection = Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}
