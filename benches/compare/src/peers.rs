//! The competitors, and how the child of each one is started.

use std::path::PathBuf;
use std::process::Command;
use std::{env, io};

pub(crate) struct Peer {
    /// The name on the command line and in docs/benchmarks.json.
    pub(crate) name: &'static str,
    /// The name in the tables.
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
    pub(crate) lifetime: Lifetime,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Ours,
    Netty,
    Other,
}

/// How long a child lives. Most children live for one workload, so that memory that a workload has
/// left behind does not affect the next one.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Lifetime {
    /// As long as the parent. A JVM must stay warm, and collects garbage between the commands.
    Program,
    Workload,
    /// One command. The competitor leaks memory, or has a thread that cannot be stopped, or a
    /// thread that stays active when nothing is pending.
    Command,
}

const fn other(name: &'static str, title: &'static str, lifetime: Lifetime) -> Peer {
    Peer { name, title, kind: Kind::Other, lifetime }
}

/// The competitors in the order of the tables and of the measurement. Measurements close in time
/// compare best, so Netty comes directly after this crate.
pub(crate) const PEERS: [Peer; 13] = [
    Peer { name: OURS, title: "hashed-wheel", kind: Kind::Ours, lifetime: Lifetime::Workload },
    Peer { name: BASE, title: "hashed-wheel, base", kind: Kind::Ours, lifetime: Lifetime::Workload },
    Peer { name: NETTY, title: "Netty", kind: Kind::Netty, lifetime: Lifetime::Program },
    Peer {
        name: "hierarchical",
        title: "hashed-wheel, hierarchical",
        kind: Kind::Ours,
        lifetime: Lifetime::Workload,
    },
    Peer { name: "netty-g1", title: "Netty, G1", kind: Kind::Netty, lifetime: Lifetime::Program },
    other("tokio", "tokio `spawn`", Lifetime::Workload),
    other("tokio-sleep", "tokio `Sleep`", Lifetime::Workload),
    other("delay-queue", "`DelayQueue`", Lifetime::Workload),
    other("hhwt", "`hierarchical_hash_wheel_timer`", Lifetime::Command),
    other("hashed_wheel_timer", "`hashed_wheel_timer`", Lifetime::Command),
    other("pingora", "`pingora-timeout`", Lifetime::Command),
    other("heap", "`BinaryHeap`", Lifetime::Workload),
    other("btree", "`BTreeMap`", Lifetime::Workload),
];

pub(crate) const OURS: &str = "ours";
pub(crate) const NETTY: &str = "netty";

/// Another version of this crate: the environment variable names a build of this program with that
/// version. The script `versions` sets it.
const BASE: &str = "base";
const BASE_VARIABLE: &str = "COMPARE_BASE";

/// Returns all peers, with the other version of this crate only if it was built.
pub(crate) fn available() -> impl Iterator<Item = &'static Peer> {
    PEERS.iter().filter(|peer| peer.name != BASE || env::var_os(BASE_VARIABLE).is_some())
}

impl Peer {
    /// Whether the goals refer to this peer. Such a peer gets more repetitions.
    pub(crate) fn is_primary(&self) -> bool {
        [OURS, BASE, NETTY, "hierarchical"].contains(&self.name)
    }

    /// Returns the command that starts a child.
    pub(crate) fn command(&self) -> io::Result<Command> {
        if self.kind == Kind::Netty {
            let mut command = Command::new("bash");
            command.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("netty/run"));
            if self.name != NETTY {
                command.arg("--g1");
                // Both JVMs run at the same time, and most machines have too little memory for two
                // heaps of the default size.
                if env::var_os("NETTY_HEAP").is_none() {
                    command.env("NETTY_HEAP", "4g");
                }
            }
            return Ok(command);
        }
        let is_base = self.name == BASE;
        let program = env::var_os(BASE_VARIABLE).filter(|_| is_base).map(PathBuf::from);
        let mut command = Command::new(match program {
            Some(program) => program,
            None if is_base => return Err(io::Error::other(format!("{BASE_VARIABLE} is not set"))),
            None => env::current_exe()?,
        });
        command.args(["--serve", if is_base { OURS } else { self.name }]);
        Ok(command)
    }
}
