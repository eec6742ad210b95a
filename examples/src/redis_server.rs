//! A Redis server for one run.

use std::error::Error;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, Commands, Connection, InfoDict};

use crate::process::signal;
use crate::server::{self, Missing, Scratch, Server};

/// How long the server may take to start, and to answer a query.
const PATIENCE: Duration = Duration::from_secs(20);

/// The number of ports that are tried.
const TRIES: u32 = 3;

/// A Redis server on a free port of the loopback interface, with its data in its own folder. Both
/// are removed when this value is dropped.
#[derive(Debug)]
pub struct RedisServer {
    server: Option<Server>,
    program: PathBuf,
    arguments: Vec<String>,
    port: u16,
    scratch: Arc<Scratch>,
}

impl RedisServer {
    /// Starts a server in a folder whose name starts with `name`.
    ///
    /// # Errors
    ///
    /// [`Missing`], or the reason why it does not start.
    pub fn start(name: &str) -> Result<Self, Box<dyn Error>> {
        Self::start_with(name, Vec::new())
    }

    /// Starts a server with additional arguments.
    ///
    /// # Errors
    ///
    /// [`Missing`], or the reason why it does not start.
    pub fn start_with(name: &str, arguments: Vec<String>) -> Result<Self, Box<dyn Error>> {
        let program = server::find("redis-server", []);
        let program = program.ok_or(Missing {
            program: "redis-server",
            package: "redis-server",
            instead: "use --url with a Redis that no other program uses",
        })?;
        let scratch = Scratch::new(name, "KILL", &[])?;
        let mut redis = Self { server: None, program, arguments, port: 0, scratch };
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

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Starts Redis on the same port with the existing data. Without fsync, acknowledged data
    /// survives a kill of Redis, but not a crash of the machine.
    pub fn restart(&mut self) -> Result<(), Box<dyn Error>> {
        let mut command = self.scratch.command(&self.program);
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "no", "--logfile", "redis.log"]);
        command.args(&self.arguments);
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
    pub fn kill(&mut self) -> io::Result<()> {
        if let Some(mut server) = self.server.take() {
            server.kill()?;
        }
        Ok(())
    }

    /// Deletes the data of a killed Redis.
    pub fn lose_data(&self) -> io::Result<()> {
        fs::remove_dir_all(self.scratch.path().join("appendonlydir"))
    }

    /// Stops Redis: it accepts connections but does not answer.
    pub fn freeze(&self) -> io::Result<()> {
        self.server.as_ref().map_or(Ok(()), |server| signal(server.id(), "STOP"))
    }

    pub fn thaw(&self) -> io::Result<()> {
        self.server.as_ref().map_or(Ok(()), |server| signal(server.id(), "CONT"))
    }
}

/// Opens a connection for queries of a test.
pub fn connect(url: &str) -> redis::RedisResult<Connection> {
    let connection = Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}
