//! The competitors, and how the child of each one is started.

use std::path::PathBuf;
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
pub(crate) const PEERS: [Peer; 8] = [
    Peer { name: OURS, title: "hashed-wheel" },
    Peer { name: BASE, title: "hashed-wheel, base" },
    Peer { name: NETTY, title: "Netty" },
    Peer { name: OTHER_NETTY, title: "Netty, other" },
    Peer { name: "hierarchical", title: "hashed-wheel, hierarchical" },
    Peer { name: "tokio-sleep", title: "tokio `Sleep`" },
    Peer { name: "delay-queue", title: "`DelayQueue`" },
    Peer { name: "hhwt", title: "`hierarchical_hash_wheel_timer`" },
];

pub(crate) const OURS: &str = "ours";
pub(crate) const NETTY: &str = "netty";

/// Another version of this crate: the environment variable names a build of this program with that
/// version. The script `versions` sets it.
const BASE: &str = "base";
const BASE_VARIABLE: &str = "COMPARE_BASE";

/// Another version of Netty: the environment variable has its class path.
const OTHER_NETTY: &str = "netty-other";
const OTHER_NETTY_VARIABLE: &str = "OTHER_NETTY_JAR";

impl Peer {
    /// Whether the peer can be measured without naming it: the other versions need their variable.
    pub(crate) fn is_available(&self) -> bool {
        match self.name {
            BASE => env::var_os(BASE_VARIABLE).is_some(),
            OTHER_NETTY => env::var_os(OTHER_NETTY_VARIABLE).is_some(),
            _ => true,
        }
    }

    pub(crate) fn is_netty(&self) -> bool {
        self.name.starts_with(NETTY)
    }

    /// Whether it is this crate or Netty, in some version.
    pub(crate) fn is_primary(&self) -> bool {
        self.is_netty() || [OURS, BASE, "hierarchical"].contains(&self.name)
    }

    /// Returns the command that starts a child.
    pub(crate) fn command(&self) -> io::Result<Command> {
        let variable = |name| {
            env::var_os(name).ok_or_else(|| io::Error::other(format!("the variable {name} is not set")))
        };
        if self.is_netty() {
            let mut command = Command::new("bash");
            command.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("netty/run"));
            if self.name == OTHER_NETTY {
                command.env("NETTY_JAR", variable(OTHER_NETTY_VARIABLE)?);
            }
            // Two JVMs run at the same time, and most machines have too little memory for two heaps
            // of the default size.
            if env::var_os(OTHER_NETTY_VARIABLE).is_some() && env::var_os("NETTY_HEAP").is_none() {
                command.env("NETTY_HEAP", "4g");
            }
            return Ok(command);
        }
        let (program, name) = match self.name {
            BASE => (variable(BASE_VARIABLE)?.into(), OURS),
            name => (env::current_exe()?, name),
        };
        let mut command = Command::new(program);
        command.args(["--serve", name]);
        Ok(command)
    }
}
