//! The load: `wrk` on persistent connections.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use hashed_wheel_trial::server::{self, Missing};
use tokio::process::Command;

/// A script that makes wrk print its results in a machine-readable form.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/proxy/load.lua");

/// The results of wrk.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    pub(crate) time: Duration,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// Errors in connecting, reading and writing, answers with another status than 200, and
    /// timeouts of a minute.
    pub(crate) errors: [u64; 5],
}

pub(crate) fn find() -> Result<PathBuf, Missing> {
    let missing = Missing {
        program: "wrk",
        package: "wrk",
        instead: "build it: github.com/wg/wrk",
    };
    server::find("wrk", []).ok_or(missing)
}

pub(crate) async fn run(
    wrk: &Path,
    proxy: SocketAddr,
    connections: u32,
    time: Duration,
) -> io::Result<Load> {
    let output = Command::new(wrk)
        .args([
            "--threads=1",
            "--latency",
            "--timeout=60s",
            "--script",
            SCRIPT,
        ])
        .arg(format!("--connections={connections}"))
        .arg(format!("--duration={}s", time.as_secs()))
        .arg(format!("http://{proxy}/"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let text = String::from_utf8_lossy(&output.stdout);
    let load = text
        .lines()
        .find_map(|line| Load::parse(line.strip_prefix("load")?));
    load.ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!(
            "wrk has not printed its results ({}): {text}{errors}",
            output.status
        ))
    })
}

impl Load {
    fn parse(numbers: &str) -> Option<Self> {
        // A percentile may be a fraction.
        let mut numbers = numbers.split_whitespace().map(str::parse::<f64>);
        let mut next = || numbers.next()?.ok();
        let (requests, mut micros) = (next()? as u64, || {
            Some(Duration::from_micros(next()? as u64))
        });
        let [time, p50, p99] = [micros()?, micros()?, micros()?];
        let mut count = || Some(next()? as u64);
        let errors = [count()?, count()?, count()?, count()?, count()?];
        Some(Self {
            requests,
            time,
            p50,
            p99,
            errors,
        })
    }
}
