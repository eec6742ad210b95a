//! A Redis server for one run, a cluster of several, and a master with a replica and a sentinel.

use std::error::Error;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Commands, Connection, InfoDict, RedisResult};

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
        Self::start_prepared(name, |_| Ok(arguments.clone()))
    }

    /// Starts a server with the additional arguments that `prepare` returns. `prepare` is called
    /// with the folder of the server, for example to write files there. If the server does not
    /// start, it is called again for the next try, so it can choose other ports.
    ///
    /// # Errors
    ///
    /// [`Missing`], the error of `prepare`, or the reason why the server does not start.
    pub fn start_prepared(
        name: &str,
        mut prepare: impl FnMut(&Path) -> io::Result<Vec<String>>,
    ) -> Result<Self, Box<dyn Error>> {
        let program = server::find("redis-server", []);
        let program = program.ok_or(Missing {
            program: "redis-server",
            package: "redis-server",
            instead: "use --url with a Redis that no other program uses",
        })?;
        let scratch = Scratch::new(name, "KILL", &[])?;
        let mut redis = Self {
            server: None,
            program,
            arguments: Vec::new(),
            port: 0,
            scratch,
        };
        let mut tries = 1..TRIES;
        loop {
            redis.port = server::free_port()?;
            redis.arguments = prepare(redis.scratch.path())?;
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

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns a field of `INFO`, or nothing if there is none.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn info(&self, field: &str) -> RedisResult<String> {
        let info: InfoDict = redis::cmd("INFO")
            .arg("everything")
            .query(&mut connect(&self.url())?)?;
        Ok(info.get(field).unwrap_or_default())
    }

    /// Returns how many channels with this pattern have subscribers at this server.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn subscribed_channels(&self, pattern: &str) -> RedisResult<usize> {
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg(&["CHANNELS", pattern])
            .query(&mut connect(&self.url())?)?;
        Ok(channels.len())
    }

    /// Returns whether the server considers itself a master.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn is_master(&self) -> RedisResult<bool> {
        Ok(self.info("role")? == "master")
    }

    /// Starts Redis on the same port with the existing data. Without fsync, acknowledged data
    /// survives a kill of Redis, but not a crash of the machine.
    pub fn restart(&mut self) -> Result<(), Box<dyn Error>> {
        let mut command = self.scratch.command(&self.program);
        // First, because the name of a configuration file must be the first argument.
        command.args(&self.arguments);
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &self.port.to_string(),
            "--save",
            "",
        ]);
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "no",
            "--logfile",
            "redis.log",
        ]);
        let url = self.url();
        // Redis answers only after it has loaded its data.
        let is_ready = || {
            connect(&url)
                .and_then(|mut redis| redis.ping::<String>())
                .is_ok()
        };
        let server =
            Server::start(&self.scratch, &mut command, PATIENCE, is_ready).map_err(|error| {
                let log =
                    fs::read_to_string(self.scratch.path().join("redis.log")).unwrap_or_default();
                format!("{error}. Its log:\n{log}")
            })?;
        let info: InfoDict = redis::cmd("INFO")
            .arg("server")
            .query(&mut connect(&url)?)?;
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

    /// Deletes the data of a killed Redis: a folder, or a file in Redis 6.2 and older.
    pub fn lose_data(&self) -> io::Result<()> {
        let [folder, file] =
            ["appendonlydir", "appendonly.aof"].map(|name| self.scratch.path().join(name));
        fs::remove_dir_all(folder).or_else(|_| fs::remove_file(file))
    }

    /// Stops Redis: it accepts connections but does not answer.
    pub fn freeze(&self) -> io::Result<()> {
        self.server
            .as_ref()
            .map_or(Ok(()), |server| signal(server.id(), "STOP"))
    }

    pub fn thaw(&self) -> io::Result<()> {
        self.server
            .as_ref()
            .map_or(Ok(()), |server| signal(server.id(), "CONT"))
    }
}

/// Opens a connection for queries of a test.
///
/// It has no timeouts. With one, a read fails if this process is stopped and continued meanwhile.
pub fn connect(url: &str) -> RedisResult<Connection> {
    Client::open(url)?.get_connection()
}

/// Waits until the condition is true. An error counts as false.
///
/// # Errors
///
/// If it takes longer than a server may take to start.
pub fn until(
    what: &str,
    mut condition: impl FnMut() -> RedisResult<bool>,
) -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    loop {
        let is_true = condition();
        if matches!(is_true, Ok(true)) {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("not within {PATIENCE:?}: {what} ({is_true:?})").into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A cluster of three masters, and a replica of the first one. This is the least that fails over:
/// two masters have to agree that the other one is down.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

/// The number of masters.
const MASTERS: usize = 3;

/// The number of slots, of which each master has a third.
const SLOTS: usize = 16_384;

impl RedisCluster {
    /// The numbers of the nodes of which one is the master of the first third of the slots: first
    /// node 0, until it fails.
    pub const PAIR: [usize; 2] = [0, MASTERS];

    /// The slots of this pair.
    pub const FIRST_SLOTS: Range<usize> = 0..SLOTS / MASTERS;

    /// Starts a cluster whose folders have names that start with `name`. If a node does not answer
    /// for `node_timeout`, the others consider it to be down.
    ///
    /// # Errors
    ///
    /// [`Missing`], or the reason why the cluster does not start.
    pub fn start(name: &str, node_timeout: Duration) -> Result<Self, Box<dyn Error>> {
        let start = |number| start_node(&format!("{name}-{number}"), node_timeout);
        let cluster = Self {
            nodes: (0..=MASTERS).map(start).collect::<Result<_, _>>()?,
        };
        cluster.create()?;
        Ok(cluster)
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    pub fn node(&mut self, number: usize) -> &mut RedisServer {
        &mut self.nodes[number]
    }

    /// Waits until the node is the master of the first third of the slots, and all nodes in
    /// `witnesses` know that.
    ///
    /// # Errors
    ///
    /// If it takes too long.
    pub fn until_failed_over(
        &self,
        number: usize,
        witnesses: &[usize],
    ) -> Result<(), Box<dyn Error>> {
        let id = self.nodes[number].cluster(&["MYID"])?;
        for &witness in witnesses {
            until(
                &format!("node {number} is a master, for node {witness}"),
                || {
                    let nodes = self.nodes[witness].cluster(&["NODES"])?;
                    let line = nodes
                        .lines()
                        .find(|line| line.starts_with(&id))
                        .unwrap_or_default();
                    Ok(line.contains("master")
                        && line.contains(" 0-")
                        && self.nodes[witness].cluster_is_ok()?)
                },
            )?;
        }
        Ok(())
    }

    /// Waits until the node replicates the data of the other one of the [pair](Self::PAIR).
    ///
    /// # Errors
    ///
    /// If it takes too long.
    pub fn until_replicates(&self, number: usize) -> Result<(), Box<dyn Error>> {
        until(&format!("node {number} is a replica"), || {
            self.nodes[number].replicates()
        })
    }

    /// Waits until the second of the [pair](Self::PAIR) has all data of the first one.
    ///
    /// # Errors
    ///
    /// If it takes too long.
    pub fn until_replicated(&self) -> Result<(), Box<dyn Error>> {
        let [master, replica] = Self::PAIR.map(|number| &self.nodes[number]);
        until("the replica has all data", || {
            Ok(master.info("master_repl_offset")? == replica.info("slave_repl_offset")?)
        })
    }

    /// Makes the second of the [pair](Self::PAIR) lose its connection to the first one, and not
    /// find it again. It remains a part of the cluster, and takes over with the data that it has.
    ///
    /// # Errors
    ///
    /// If a server does not answer, or it takes too long.
    pub fn stop_replication(&self) -> Result<(), Box<dyn Error>> {
        let [master, replica] = Self::PAIR.map(|number| &self.nodes[number]);
        let mut to_replica = connect(&replica.url())?;
        for (option, value) in [("masteruser", "nobody"), ("masterauth", "wrong")] {
            let () = redis::cmd("CONFIG")
                .arg("SET")
                .arg(option)
                .arg(value)
                .query(&mut to_replica)?;
        }
        until("the replica is disconnected", || {
            // It connects again with the credentials, which the master does not know.
            let _: i64 = redis::cmd("CLIENT")
                .arg(&["KILL", "TYPE", "replica"])
                .query(&mut connect(&master.url())?)?;
            Ok(master.info("connected_slaves")? == "0"
                && replica.info("master_link_status")? == "down")
        })
    }

    /// Joins the nodes.
    fn create(&self) -> Result<(), Box<dyn Error>> {
        let [first, others @ ..] = &self.nodes[..] else {
            return Ok(());
        };
        for (number, master) in self.nodes[..MASTERS].iter().enumerate() {
            let [start, end] = [number, number + 1].map(|third| SLOTS * third / MASTERS);
            master.cluster(&["ADDSLOTSRANGE", &start.to_string(), &(end - 1).to_string()])?;
            // Otherwise they resolve the conflict of equal epochs later, and a replica with an old
            // one gets no votes.
            master.cluster(&["SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
        }
        for other in others {
            let [port, bus] = other.ports()?;
            first.cluster(&["MEET", "127.0.0.1", &port, &bus])?;
        }
        let (id, replica) = (first.cluster(&["MYID"])?, &self.nodes[MASTERS]);
        until("the replica knows its master", || {
            replica
                .cluster(&["REPLICATE", &id])
                .map(|answer| answer == "OK")
        })?;
        for node in &self.nodes {
            until("the cluster is complete", || {
                Ok(node.knows_all()? && node.cluster_is_ok()?)
            })?;
        }
        self.until_replicates(MASTERS)
    }
}

impl RedisServer {
    /// Calls a subcommand of `CLUSTER`.
    fn cluster(&self, arguments: &[&str]) -> RedisResult<String> {
        redis::cmd("CLUSTER")
            .arg(arguments)
            .query(&mut connect(&self.url())?)
    }

    /// Returns whether this node can be used, and knows the masters of all slots.
    fn cluster_is_ok(&self) -> RedisResult<bool> {
        let info = self.cluster(&["INFO"])?;
        Ok(
            info.contains("cluster_state:ok")
                && info.contains(&format!("cluster_slots_ok:{SLOTS}")),
        )
    }

    /// Returns whether this node knows the roles of all nodes.
    fn knows_all(&self) -> RedisResult<bool> {
        let nodes = self.cluster(&["NODES"])?;
        let count = |role| nodes.lines().filter(|line| line.contains(role)).count();
        Ok((count("master"), count("slave")) == (MASTERS, 1) && !nodes.contains("handshake"))
    }

    /// Returns whether this server is a replica that is connected to its master.
    fn replicates(&self) -> RedisResult<bool> {
        Ok(self.info("role")? == "slave" && self.info("master_link_status")? == "up")
    }

    /// Returns the port, and the port for the other nodes of the cluster.
    fn ports(&self) -> RedisResult<[String; 2]> {
        // `ID 127.0.0.1:PORT@BUS_PORT myself …`
        let nodes = self.cluster(&["NODES"])?;
        let bus = nodes
            .split_once('@')
            .map(|(_, rest)| rest.split([' ', ',']).next().unwrap_or_default());
        Ok([self.port.to_string(), bus.unwrap_or_default().to_owned()])
    }
}

fn start_node(name: &str, node_timeout: Duration) -> Result<RedisServer, Box<dyn Error>> {
    RedisServer::start_prepared(name, |_| {
        let (bus, timeout) = (
            server::free_port()?.to_string(),
            node_timeout.as_millis().to_string(),
        );
        let options = [
            ["--cluster-enabled", "yes"],
            // The default, port + 10000, may be too large.
            ["--cluster-port", &bus],
            ["--cluster-node-timeout", &timeout],
            // While a third of the slots has no master, the others can be used.
            ["--cluster-require-full-coverage", "no"],
            // A replica whose data is old takes over too.
            ["--cluster-replica-validity-factor", "0"],
            ["--repl-diskless-sync-delay", "0"],
        ];
        Ok(options.concat().into_iter().map(str::to_owned).collect())
    })
}

/// A master, a replica of it, and a sentinel that makes the replica the master if the master fails.
#[derive(Debug)]
pub struct SentinelSetup {
    pub master: RedisServer,
    pub replica: RedisServer,
    pub sentinel: RedisServer,
}

impl SentinelSetup {
    /// Starts the servers, in folders whose names start with `name`. The sentinel knows the master
    /// as `service`, and considers it to be down after `down_after` without an answer.
    ///
    /// # Errors
    ///
    /// [`Missing`], or the reason why a server does not start.
    pub fn start(name: &str, service: &str, down_after: Duration) -> Result<Self, Box<dyn Error>> {
        let own = || {
            ["--repl-diskless-sync-delay", "0"]
                .map(str::to_owned)
                .to_vec()
        };
        let master = RedisServer::start_with(&format!("{name}-master"), own())?;
        let port = master.port();
        let replica_of = ["--replicaof", "127.0.0.1", &port.to_string()].map(str::to_owned);
        let replica = RedisServer::start_with(
            &format!("{name}-replica"),
            [own(), replica_of.to_vec()].concat(),
        )?;
        until("the replica is connected", || replica.replicates())?;
        // After the replica, because a sentinel asks its master for replicas only every 10 s.
        let sentinel = RedisServer::start_prepared(&format!("{name}-sentinel"), |folder| {
            let config = format!(
                "sentinel monitor {service} 127.0.0.1 {port} 1\n\
                 sentinel down-after-milliseconds {service} {}\n\
                 sentinel failover-timeout {service} 10000\n",
                down_after.as_millis()
            );
            // The sentinel changes it.
            fs::write(folder.join("sentinel.conf"), config)?;
            Ok(["sentinel.conf", "--sentinel"].map(str::to_owned).to_vec())
        })?;
        let setup = Self {
            master,
            replica,
            sentinel,
        };
        until("the sentinel knows the replica", || {
            let replicas: Vec<redis::Value> = redis::cmd("SENTINEL")
                .arg("REPLICAS")
                .arg(service)
                .query(&mut connect(&setup.sentinel.url())?)?;
            Ok(replicas.len() == 1)
        })?;
        Ok(setup)
    }
}
