//! Who is compared, and how a child of each is started.

use std::path::PathBuf;
use std::process::Command;
use std::{env, io};

pub(crate) struct Peer {
    /// On the command line and in docs/compare.json.
    pub(crate) name: &'static str,
    /// In tables.
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
    pub(crate) lives: Lives,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Ours,
    Netty,
    Other,
}

/// For how long a child does. Memory that one workload has left behind is not to be found by the next.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Lives {
    /// A JVM is to stay warm, and collects between the rounds.
    Run,
    Workload,
    /// It leaks, or has a thread that nothing ends, or one that is not at rest when nothing is pending any more.
    Round,
}

const fn other(name: &'static str, title: &'static str, lives: Lives) -> Peer {
    Peer { name, title, kind: Kind::Other, lives }
}

/// In the order of the tables. Whoever is asked next to the other is compared best: so Netty comes after ours.
pub(crate) const PEERS: [Peer; 12] = [
    Peer { name: OURS, title: "hashed-wheel", kind: Kind::Ours, lives: Lives::Workload },
    Peer { name: NETTY, title: "Netty", kind: Kind::Netty, lives: Lives::Run },
    Peer {
        name: "hierarchical",
        title: "hashed-wheel, hierarchical",
        kind: Kind::Ours,
        lives: Lives::Workload,
    },
    Peer { name: "netty-g1", title: "Netty, G1", kind: Kind::Netty, lives: Lives::Run },
    other("tokio", "tokio `spawn`", Lives::Workload),
    other("tokio-sleep", "tokio `Sleep`", Lives::Workload),
    other("delay-queue", "`DelayQueue`", Lives::Workload),
    other("hhwt", "`hierarchical_hash_wheel_timer`", Lives::Round),
    other("hashed_wheel_timer", "`hashed_wheel_timer`", Lives::Round),
    other("pingora", "`pingora-timeout`", Lives::Round),
    other("heap", "`BinaryHeap`", Lives::Workload),
    other("btree", "`BTreeMap`", Lives::Workload),
];

pub(crate) const OURS: &str = "ours";
pub(crate) const NETTY: &str = "netty";

impl Peer {
    /// Whether it is one of those that the goals are about, and gets the more rounds.
    pub(crate) fn is_core(&self) -> bool {
        [OURS, NETTY, "hierarchical"].contains(&self.name)
    }

    /// What starts a child.
    pub(crate) fn command(&self) -> io::Result<Command> {
        if self.kind == Kind::Netty {
            let mut command = Command::new("bash");
            command.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("netty/run"));
            if self.name != NETTY {
                command.arg("--g1");
                // Beside that of the other one: on most machines there is no room for two of the size that this has.
                if env::var_os("NETTY_HEAP").is_none() {
                    command.env("NETTY_HEAP", "4g");
                }
            }
            return Ok(command);
        }
        let mut command = Command::new(env::current_exe()?);
        command.args(["--serve", self.name]);
        Ok(command)
    }
}
