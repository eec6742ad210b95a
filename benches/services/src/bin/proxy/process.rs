//! The proxy's process: its main function, and its interface for the parent.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::ValueEnum;
use hashed_wheel::{BuildError, HashedWheelTimer, Stats};
use hashed_wheel_services::On;
use hashed_wheel_trial::process::cpu_time;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::{self, Runtime};

use crate::Options;
use crate::proxy::{Counts, Proxy};
use crate::timers::{Timers, Tokio};
use crate::upstream::{self, UNREACHABLE};

/// The counters of a proxy, as one line for the parent.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: u64,
    pub(crate) ended: u64,
    pub(crate) answered: u64,
    pub(crate) timed_out: [u64; 4],
    /// The counters of the wheel. tokio's timer has none.
    pub(crate) scheduled: u64,
    pub(crate) pending: u64,
    /// The 99th percentile of the timer's own lateness in microseconds, until it woke the task.
    pub(crate) late: u64,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            accepted,
            ended,
            answered,
            timed_out: [connect, header, idle, total],
            ..
        } = self;
        let Self {
            scheduled,
            pending,
            late,
            ..
        } = self;
        write!(
            f,
            "{accepted} {ended} {answered} {connect} {header} {idle} {total} "
        )?;
        write!(f, "{scheduled} {pending} {late}")
    }
}

impl FromStr for Counters {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Self> {
        let mut numbers = line.split(' ').map(str::parse);
        let mut next = || {
            let number = numbers.next().and_then(Result::ok);
            number.ok_or_else(|| io::Error::other(format!("invalid line from the proxy: {line:?}")))
        };
        Ok(Self {
            accepted: next()?,
            ended: next()?,
            answered: next()?,
            timed_out: [next()?, next()?, next()?, next()?],
            scheduled: next()?,
            pending: next()?,
            late: next()?,
        })
    }
}

impl Counters {
    fn new(counts: &Counts, wheel: &Stats) -> Self {
        // In this order: a connection that is accepted in between has not ended yet.
        let ended = counts.ended.load(Relaxed);
        Self {
            accepted: counts.accepted.load(Relaxed),
            ended,
            answered: counts.answered.load(Relaxed),
            timed_out: counts.timed_out.each_ref().map(|count| count.load(Relaxed)),
            scheduled: wheel.scheduled,
            pending: wheel.pending,
            late: wheel.lateness.quantile(0.99).as_micros() as u64,
        }
    }
}

/// The main function of the proxy's process. It ends when its standard input is closed.
pub(crate) fn main(on: On, options: &Options) -> io::Result<()> {
    let mut runtime = runtime::Builder::new_multi_thread();
    runtime.enable_io();
    match on {
        // tokio's own timer is not enabled.
        On::Wheel => serve_on_wheel(runtime.build()?, options, options.wheel().build()),
        On::Task => {
            let runtime = runtime.enable_time().build()?;
            let timer = options.wheel().build_on_tokio(runtime.handle());
            serve_on_wheel(runtime, options, timer)
        }
        On::Tokio => serve(
            runtime.enable_time().build()?,
            options,
            Tokio,
            Stats::default,
        ),
    }
}

fn serve_on_wheel(
    runtime: Runtime,
    options: &Options,
    timer: Result<HashedWheelTimer, BuildError>,
) -> io::Result<()> {
    let timer = timer.map_err(io::Error::other)?;
    serve(runtime, options, timer.clone(), || timer.stats())
}

fn serve<T: Timers>(
    runtime: Runtime,
    options: &Options,
    timers: T,
    wheel: impl Fn() -> Stats,
) -> io::Result<()> {
    let &[upstream, unreachable] = options.upstreams.as_slice() else {
        return Err(io::Error::other("expected two upstreams"));
    };
    let routes = vec![(UNREACHABLE.into(), unreachable), ("/".into(), upstream)];
    let proxy = Arc::new(Proxy {
        timers,
        limits: options.proxy_limits(),
        routes,
        counts: Counts::default(),
    });
    let _context = runtime.enter();
    let listener = upstream::listen()?;
    let mut output = io::stdout();
    writeln!(output, "{}", listener.local_addr()?)?;
    runtime.spawn(Arc::clone(&proxy).serve(listener));
    io::stdin().lines().try_for_each(|line| {
        line?;
        writeln!(output, "{}", Counters::new(&proxy.counts, &wheel()))
    })
}

/// The proxy's process, from the point of view of the parent. It is killed when this value is
/// dropped.
pub(crate) struct Process {
    pub(crate) address: SocketAddr,
    child: Child,
    requests: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts this program again with the same options, as a proxy.
    pub(crate) async fn start(on: On, upstreams: [SocketAddr; 2]) -> io::Result<Self> {
        let name = on.to_possible_value().expect("no variant is skipped");
        let mut child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .args(["--proxy-on", name.get_name()])
            .arg(format!("--upstreams={},{}", upstreams[0], upstreams[1]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let requests = child.stdin.take().expect("it was piped");
        let output = child.stdout.take().expect("it was piped");
        let mut lines = BufReader::new(output).lines();
        let line = lines.next_line().await?.unwrap_or_default();
        let address = line
            .parse()
            .map_err(|_| io::Error::other("the proxy cannot be started"))?;
        Ok(Self {
            address,
            child,
            requests,
            lines,
        })
    }

    pub(crate) async fn ask(&mut self) -> io::Result<Counters> {
        let sent = self.requests.write_all(b"\n").await;
        let line = if sent.is_ok() {
            self.lines.next_line().await?
        } else {
            None
        };
        line.ok_or_else(|| io::Error::other("the proxy's process has ended too early"))?
            .parse()
    }

    /// Returns the CPU time of all threads. `None` if the system does not provide it.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        // All threads exist from the start to the end of the process.
        cpu_time(self.child.id()?)
    }

    /// Returns the peak memory in bytes.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
    }

    pub(crate) async fn end(mut self) -> io::Result<()> {
        self.child.kill().await
    }
}
