//! The service's process: its main function, and its interface for the parent.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use hashed_wheel::{HashedWheelTimer, Stats};
use hashed_wheel_services::On;
use hashed_wheel_trial::process::{self, cpu_time};
use hashed_wheel_util::HyperTimer;
use hashed_wheel_util::tokio::build_on;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpSocket;
use tokio::runtime::{self, Runtime};

use crate::server::serve;
use crate::timers::{Module, Timers, Tokio};

/// The load connects faster than the service accepts.
const BACKLOG: u32 = 4096;

/// The CPU time and memory of a service.
#[derive(Default)]
pub(crate) struct Used {
    /// The CPU time of all its threads. Zero if the system does not provide it.
    pub(crate) cpu: Duration,
    // The counters of the wheel. The two modules have none.
    pub(crate) scheduled: u64,
    pub(crate) wake_ups: u64,
}

impl Used {
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            scheduled: self.scheduled - before.scheduled,
            wake_ups: self.wake_ups - before.wake_ups,
        }
    }
}

/// The main function of the service's process. It ends when its standard input is closed.
pub(crate) fn main(on: On, tick: Duration, threads: Option<usize>) -> io::Result<()> {
    let mut runtime = runtime::Builder::new_multi_thread();
    runtime.enable_io();
    if let Some(threads) = threads {
        runtime.worker_threads(threads);
    }
    let wheel = HashedWheelTimer::builder().tick(tick);
    match on {
        // tokio's own timer is not enabled.
        On::Wheel => on_wheel(&runtime.build()?, wheel.build().map_err(io::Error::other)?),
        On::Task => {
            let runtime = runtime.enable_time().build()?;
            let timer = build_on(wheel, runtime.handle()).map_err(io::Error::other)?;
            on_wheel(&runtime, timer)
        }
        On::Module => on_tokio(&runtime.enable_time().build()?, Module),
        On::Tokio => on_tokio(&runtime.enable_time().build()?, Tokio),
    }
}

fn on_tokio(runtime: &Runtime, timers: impl Timers) -> io::Result<()> {
    run(runtime, timers, TokioTimer::new(), Stats::default)
}

fn on_wheel(runtime: &Runtime, timer: HashedWheelTimer) -> io::Result<()> {
    run(runtime, timer.clone(), HyperTimer::new(&timer), || {
        timer.stats()
    })
}

fn run<T: Timers>(
    runtime: &Runtime,
    timers: T,
    hypers: impl hyper::rt::Timer + Send + Sync + 'static,
    wheel: impl Fn() -> Stats,
) -> io::Result<()> {
    let _context = runtime.enter();
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let listener = socket.listen(BACKLOG)?;
    let mut output = io::stdout();
    writeln!(output, "{}", listener.local_addr()?)?;
    runtime.spawn(serve(listener, Arc::new(timers), hypers));
    io::stdin().lines().try_for_each(|line| {
        line?;
        let Stats {
            scheduled,
            wake_ups,
            ..
        } = wheel();
        writeln!(output, "{scheduled} {wake_ups}")
    })
}

/// The service's process, from the point of view of the parent. It is killed when this value is
/// dropped.
pub(crate) struct Process {
    pub(crate) address: SocketAddr,
    child: process::Process,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program again with the same options, as a service.
    pub(crate) fn start(on: On) -> io::Result<Self> {
        let name = on.to_possible_value().expect("no variant is skipped");
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(std::env::args_os().skip(1))
            .args(["--serve-on", name.get_name()]);
        let mut child =
            process::Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let requests = child.stdin.take().expect("it was piped");
        let mut answers = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut line = String::new();
        answers.read_line(&mut line)?;
        let address = line.trim_end().parse();
        let address = address.map_err(|_| io::Error::other("the service cannot be started"))?;
        Ok(Self {
            address,
            child,
            requests,
            answers,
        })
    }

    /// Returns what the service has used since it was started.
    pub(crate) fn ask(&mut self) -> io::Result<Used> {
        let cpu = cpu_time(self.child.id()).unwrap_or_default();
        let mut line = String::new();
        let asked = self
            .requests
            .write_all(b"\n")
            .and_then(|()| self.answers.read_line(&mut line));
        asked.map_err(|error| self.explain(error))?;
        let mut numbers = line
            .split_whitespace()
            .map_while(|number| number.parse().ok());
        let mut next = || {
            numbers
                .next()
                .ok_or_else(|| self.explain(io::ErrorKind::UnexpectedEof.into()))
        };
        Ok(Used {
            cpu,
            scheduled: next()?,
            wake_ups: next()?,
        })
    }

    /// Returns the error with its cause, if that is the end of the service's process.
    pub(crate) fn explain(&mut self, error: io::Error) -> io::Error {
        // Its pipes and sockets are closed shortly before it has ended.
        for _ in 0..500 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return io::Error::other(format!("the service's process has ended: {status}"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        io::Error::new(error.kind(), format!("the service: {error}"))
    }
}
