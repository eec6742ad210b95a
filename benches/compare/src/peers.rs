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
pub(crate) const PEERS: [Peer; 14] = [
    peer(OURS, "hashed-wheel"),
    peer(BASE, "hashed-wheel, base"),
    peer(NETTY, "Netty"),
    peer("hierarchical", "hashed-wheel, hierarchical"),
    peer(TOKIO, "tokio `Sleep`"),
    peer(TOKIO_ALT, "tokio, `enable_alt_timer`"),
    peer(GO, "Go `AfterFunc`"),
    peer("delay-queue", "tokio-util's `DelayQueue`"),
    peer("util-delay-queue", "hashed-wheel-util's `DelayQueue`"),
    peer("hhwt", "`hierarchical_hash_wheel_timer`"),
    peer(MAP, "`ExpiringMap`"),
    peer("moka", "moka"),
    peer("quick-cache", "quick_cache"),
    peer("dashmap", "dashmap"),
];

const fn peer(name: &'static str, title: &'static str) -> Peer {
    Peer { name, title }
}

pub(crate) const OURS: &str = "ours";
pub(crate) const NETTY: &str = "netty";
pub(crate) const TOKIO: &str = "tokio-sleep";
pub(crate) const GO: &str = "go";
pub(crate) const TOKIO_ALT: &str = "tokio-alt";
pub(crate) const MAP: &str = "expiring-map";

/// Another version of this crate: the environment variable names a build of this program with that
/// version. The script `versions` sets it.
const BASE: &str = "base";
const BASE_VARIABLE: &str = "COMPARE_BASE";

fn has_go() -> bool {
    let is_built = home().is_ok_and(|home| home.join("go/compare-go").exists());
    is_built || Command::new("go").arg("version").output().is_ok()
}

/// Returns the folder with what starts the competitors that are not in this program: that of the
/// program in a bundle, or the sources.
fn home() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let bundle = program.parent().filter(|home| home.join("netty").exists());
    Ok(bundle.map_or(env!("CARGO_MANIFEST_DIR").into(), Into::into))
}

impl Peer {
    /// Why the peer is not measured, unless it is named.
    pub(crate) fn skipped(&self) -> Option<&'static str> {
        match self.name {
            BASE if env::var_os(BASE_VARIABLE).is_none() => {
                Some("the script `versions` measures it")
            }
            TOKIO_ALT if !cfg!(tokio_unstable) => {
                Some("built without RUSTFLAGS=\"--cfg tokio_unstable\"")
            }
            GO if !has_go() => Some("no Go toolchain"),
            _ => None,
        }
    }

    pub(crate) fn is_netty(&self) -> bool {
        self.name == NETTY
    }

    /// Whether it is this crate or Netty, in some version.
    pub(crate) fn is_primary(&self) -> bool {
        self.is_netty() || [OURS, BASE, "hierarchical"].contains(&self.name)
    }

    pub(crate) fn is_map(&self) -> bool {
        [MAP, "moka", "quick-cache", "dashmap"].contains(&self.name)
    }

    /// Whether rows by number of threads show it.
    pub(crate) fn has_threads(&self) -> bool {
        [OURS, BASE, NETTY, TOKIO, TOKIO_ALT, GO].contains(&self.name)
    }

    /// Returns the command that starts a child.
    pub(crate) fn command(&self) -> io::Result<Command> {
        let script = || Ok::<_, io::Error>(home()?.join(self.name).join("run"));
        let (program, argument, name) = match self.name {
            NETTY | GO => ("bash".into(), script()?.into_os_string(), ""),
            BASE => {
                let base = env::var_os(BASE_VARIABLE);
                let base = base.ok_or_else(|| io::Error::other("COMPARE_BASE is not set"))?;
                (base.into(), "--serve".into(), OURS)
            }
            name => (env::current_exe()?, "--serve".into(), name),
        };
        let mut command = Command::new::<PathBuf>(program);
        command.args([argument, name.into()]);
        Ok(command)
    }
}
