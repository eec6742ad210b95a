//! The load: `wrk`, on connections that it keeps.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use hashed_wheel_examples::server::{self, Missing};
use tokio::process::Command;

/// Has wrk say what it saw in a way that a program can read.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/proxy/load.lua");

/// What wrk saw.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    pub(crate) time: Duration,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// In connecting, reading, writing; other answers than "OK"; and none for a minute.
    pub(crate) errors: [u64; 5],
}

pub(crate) fn find() -> Result<PathBuf, Missing> {
    let missing = Missing { program: "wrk", package: "wrk", instead: "build it: github.com/wg/wrk" };
    server::find("wrk", []).ok_or(missing)
}

pub(crate) async fn run(wrk: &Path, proxy: SocketAddr, connections: u32, time: Duration) -> io::Result<Load> {
    let output = Command::new(wrk)
        .args(["--threads=1", "--latency", "--timeout=60s", "--script", SCRIPT])
        .arg(format!("--connections={connections}"))
        .arg(format!("--duration={}s", time.as_secs()))
        .arg(format!("http://{proxy}/"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let text = String::from_utf8_lossy(&output.stdout);
    let load = text.lines().find_map(|line| Load::parse(line.strip_prefix("load")?));
    load.ok_or_else(|| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!("wrk has not said what it saw ({}): {text}{complaint}", output.status))
    })
}

impl Load {
    fn parse(numbers: &str) -> Option<Self> {
        // A percentile may be a fraction.
        let mut numbers = numbers.split_whitespace().map(str::parse::<f64>);
        let mut next = || numbers.next()?.ok();
        let (requests, mut micros) = (next()? as u64, || Some(Duration::from_micros(next()? as u64)));
        let [time, p50, p99] = [micros()?, micros()?, micros()?];
        let mut count = || Some(next()? as u64);
        let errors = [count()?, count()?, count()?, count()?, count()?];
        Some(Self { requests, time, p50, p99, errors })
    }
}
