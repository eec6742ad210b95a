//! The competitors, and how the child of each one is started.

use std::process::Command;
use std::{env, io};

pub(crate) struct Peer {
    /// The name on the command line and in docs/benchmarks.json.
    pub(crate) name: &'static str,
    /// The name in the tables.
    pub(crate) title: &'static str,
}

/// The competitors in the order of the tables and of the measurement. Measurements close in time
/// compare best, so Netty comes directly after this crate.
pub(crate) const PEERS: [Peer; 9] = [
    Peer {
        name: OURS,
        title: "hashed-wheel",
    },
    Peer {
        name: BASE,
        title: "hashed-wheel, base",
    },
    Peer {
        name: NETTY,
        title: "Netty",
    },
    Peer {
        name: NETTY_JAR,
        title: "Netty of NETTY_JAR",
    },
    Peer {
        name: "hierarchical",
        title: "hashed-wheel, hierarchical",
    },
    Peer {
        name: "tokio-sleep",
        title: "tokio `Sleep`",
    },
    Peer {
        name: "delay-queue",
        title: "tokio-util's `DelayQueue`",
    },
    Peer {
        name: "util-delay-queue",
        title: "hashed-wheel-util's `DelayQueue`",
    },
    Peer {
        name: "hhwt",
        title: "`hierarchical_hash_wheel_timer`",
    },
];

pub(crate) const OURS: &str = "ours";
pub(crate) const NETTY: &str = "netty";

/// Another version of Netty: the environment variable names its class path.
pub(crate) const NETTY_JAR: &str = "netty-jar";
const JAR_VARIABLE: &str = "NETTY_JAR";

/// Another version of this crate: the environment variable names a build of this program with that
/// version. The script `versions` sets it.
const BASE: &str = "base";
const BASE_VARIABLE: &str = "COMPARE_BASE";

/// Whether the peer with this name is Netty, in some version.
pub(crate) fn is_netty(name: &str) -> bool {
    [NETTY, NETTY_JAR].contains(&name)
}

impl Peer {
    /// Whether the peer can be measured without naming it: another version needs its variable.
    pub(crate) fn is_available(&self) -> bool {
        let variable = [(BASE, BASE_VARIABLE), (NETTY_JAR, JAR_VARIABLE)].into_iter();
        variable
            .filter(|(name, _)| *name == self.name)
            .all(|(_, variable)| env::var_os(variable).is_some())
    }

    pub(crate) fn is_netty(&self) -> bool {
        is_netty(self.name)
    }

    /// Whether it is this crate or Netty, in some version.
    pub(crate) fn is_primary(&self) -> bool {
        self.is_netty() || [OURS, BASE, "hierarchical"].contains(&self.name)
    }

    /// Returns the command that starts a child.
    pub(crate) fn command(&self) -> io::Result<Command> {
        if self.is_netty() {
            let mut command = Command::new("bash");
            command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/netty/run"));
            if self.name == NETTY {
                command.env_remove(JAR_VARIABLE);
            }
            return Ok(command);
        }
        let no_base = || io::Error::other(format!("the variable {BASE_VARIABLE} is not set"));
        let (program, name) = match self.name {
            BASE => (env::var_os(BASE_VARIABLE).ok_or_else(no_base)?.into(), OURS),
            name => (env::current_exe()?, name),
        };
        let mut command = Command::new(program);
        command.args(["--serve", name]);
        Ok(command)
    }
}
