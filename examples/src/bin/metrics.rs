//! A service whose timer is monitored by Prometheus.
//!
//! ```sh
//! cargo run --release -p hashed-wheel-examples --bin metrics
//! ```
//!
//! Several threads make requests. Each request has a deadline, which is cancelled when the request
//! is answered. Each connection has an idle timeout, which a request resets. Some requests are
//! never answered, so their deadlines expire. Some tasks are slow, some panic, and sometimes there
//! are more deadlines than the timer accepts. Meanwhile the service serves the page that Prometheus
//! reads: `Metrics` below is the part to copy.
//!
//! The program reads its own page all the time, as Prometheus does. No counter may decrease. After
//! the timer has been stopped, the page, `stats()` and the service's own counts must agree. At the
//! end the program prints PASS, or FAIL and the reasons. Exit status: 0 is PASS, 1 is FAIL, 2 is
//! bad options.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Stats, Timeout};
use hashed_wheel_examples::top::Top;
use hashed_wheel_trial::{Verdict, rounded};
use hashed_wheel_util::metrics::publish;
use indicatif::HumanCount;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// The name of the timer on the page, and of its thread.
const NAME: &str = "requests";

/// The maximum number of pending deadlines. The timer rejects more.
const LIMIT: usize = 500;

const SLOW: Duration = Duration::from_millis(5);

/// A service whose timer is monitored by Prometheus.
#[derive(Debug, Parser)]
#[command(name = "metrics", after_help = "Exit status: 0 is PASS, 1 is FAIL, 2 is bad options.")]
struct Options {
    /// How many requests each connection makes
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,

    /// How many connections there are, each with its own thread
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,

    /// Print the page
    #[arg(long)]
    page: bool,

    #[command(flatten)]
    top: Top,
}

fn main() -> ExitCode {
    // Silences the panics of tasks: they are part of the service here, and the timer reports them.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if thread::current().name() != Some(NAME) {
            usual(info);
        }
    }));
    let options = Options::parse();
    match run(&options) {
        Ok(verdict) => verdict.print(),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves the page that Prometheus reads.
struct Metrics {
    timer: HashedWheelTimer,
    prometheus: PrometheusHandle,
}

impl Metrics {
    fn install(timer: HashedWheelTimer) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let prometheus = recorder.handle();
        metrics::set_global_recorder(recorder).expect("this is the only recorder in the process");
        Self { timer, prometheus }
    }

    /// Publishes the timer's current numbers and returns the page.
    fn page(&self) -> String {
        publish(&self.timer.stats(), NAME);
        self.prometheus.render()
    }

    fn serve(self, listener: &TcpListener) -> io::Result<()> {
        loop {
            let (mut stream, _) = listener.accept()?;
            let head = BufReader::new(stream.try_clone()?).lines();
            let _ = head.map_while(Result::ok).take_while(|line| !line.is_empty()).count();
            let page = self.page();
            write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n{page}")?;
        }
    }
}

/// The values on the page by name and labels.
type Page = BTreeMap<String, f64>;

fn fetch(from: SocketAddr) -> io::Result<(String, Page)> {
    let mut stream = TcpStream::connect(from)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let text = answer.split_once("\r\n\r\n").map_or(String::new(), |(_, page)| page.to_owned());
    let line = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    let page = text.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect();
    Ok((text, page))
}

/// What the service has counted itself.
#[derive(Default)]
struct Counts {
    scheduled: u64,
    refused: u64,
    answered: u64,
    panics: u64,
    slow: u64,
}

fn connection(timer: &HashedWheelTimer, idle: &Timeout, requests: u32) -> Result<Counts, NewTimeoutError> {
    let mut counts = Counts { scheduled: 1, ..Counts::default() };
    let mut open = Vec::new();
    for request in 0..requests {
        _ = idle.reset(Duration::from_secs(3_600));
        let (is_slow, panics) = (request % 5_000 == 77, request % 5_000 == 78);
        let task = move |_: &Timeout| {
            if is_slow {
                thread::sleep(SLOW * 2);
            }
            assert!(!panics, "an intentional panic");
        };
        match timer.new_timeout(task, Duration::from_millis(20)) {
            Ok(deadline) => {
                counts.scheduled += 1;
                // These requests are never answered.
                if is_slow || panics || request % 100 == 99 {
                    counts.slow += u64::from(is_slow);
                    counts.panics += u64::from(panics);
                } else {
                    open.push(deadline);
                }
            }
            Err(NewTimeoutError::TooManyPending { .. }) => counts.refused += 1,
            Err(error) => return Err(error),
        }
        // Answers arrive in groups, and sometimes in very large ones.
        if open.len() >= if request % 10_000 < 9_000 { 50 } else { 2 * LIMIT } {
            counts.answered += open.drain(..).filter(Timeout::cancel).count() as u64;
        }
        if request % 1_000 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
    }
    counts.answered += open.drain(..).filter(Timeout::cancel).count() as u64;
    counts.answered += u64::from(idle.cancel());
    Ok(counts)
}

fn run(options: &Options) -> Result<Verdict, Box<dyn std::error::Error>> {
    let builder =
        HashedWheelTimer::builder().tick(Duration::from_millis(1)).max_pending_timeouts(Some(LIMIT));
    let timer = builder.slow_task_threshold(SLOW).thread_name(NAME).build()?;
    options.top.watch(NAME, &timer);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    println!("http://{address}/metrics: {} connections", options.connections);
    let metrics = Metrics::install(timer.clone());
    thread::spawn(move || metrics.serve(&listener));

    let mut verdict = Verdict::default();
    let (mut before, mut reads) = (Page::new(), 0);
    let mut read = || -> io::Result<Vec<String>> {
        let (_, page) = fetch(address)?;
        let fell = before.iter().filter(|(name, value)| is_counter(name) && page.get(*name) < Some(value));
        let fell = fell.map(|(name, _)| name.clone()).collect();
        (before, reads) = (page, reads + 1);
        Ok(fell)
    };
    let mut counted = Counts::default();
    // Created before the requests, which may reach the limit.
    let idle = |_| timer.new_timeout(|_| (), Duration::from_secs(3_600));
    let idles = (0..options.connections).map(idle).collect::<Result<Vec<_>, _>>()?;
    let timer = &timer;
    thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        let connection = |idle| move || connection(timer, idle, options.requests);
        let connections: Vec<_> = idles.iter().map(|idle| scope.spawn(connection(idle))).collect();
        while !connections.iter().all(|connection| connection.is_finished()) {
            for name in read()? {
                verdict.expect(false, format!("{name} has decreased"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        for connection in connections {
            let its = connection.join().expect("a connection does not panic")?;
            counted.scheduled += its.scheduled;
            counted.refused += its.refused;
            counted.answered += its.answered;
            counted.panics += its.panics;
            counted.slow += its.slow;
        }
        Ok(())
    })?;
    let begin = Instant::now();
    while timer.pending_timeouts() > 0 && begin.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(5));
    }
    timer.stop();

    let (text, page) = fetch(address)?;
    if options.page {
        println!("\n{text}");
    }
    let stats = timer.stats();
    compare(&page, &stats, &counted, &mut verdict);
    let lateness = stats.lateness;
    println!(
        "requests     {} deadlines, {} answered, {} expired, {} rejected",
        HumanCount(stats.scheduled),
        HumanCount(stats.cancelled),
        HumanCount(stats.expired),
        HumanCount(stats.rejected)
    );
    println!("tasks        {} slow, {} panics", stats.slow_tasks, stats.panics);
    println!("turns        {}, the longest {}", HumanCount(stats.turns), rounded(stats.longest_turn, 2));
    let quantiles = [lateness.quantile(0.5), lateness.quantile(0.99), lateness.max];
    let [p50, p99, max] = quantiles.map(|late| rounded(late, 2));
    println!("lateness     p50 at most {p50}, p99 at most {p99}, max {max}");
    println!("page         {} lines, read {reads} times", text.lines().count());
    Ok(verdict)
}

fn is_counter(name: &str) -> bool {
    name.contains("_total{") || name.contains("_bucket{") || name.contains("_count{")
}

/// Checks that the page, `stats()` and the service agree.
fn compare(page: &Page, stats: &Stats, counted: &Counts, verdict: &mut Verdict) {
    let mut says = |name: &str, expected: f64| {
        let name = format!("hashed_wheel_{name}{{timer=\"{NAME}\"}}");
        let found = page.get(&name);
        let agrees = found.is_some_and(|found| (found - expected).abs() < 1e-9);
        verdict.expect(agrees, format!("{name} is {found:?} instead of {expected}"));
    };
    for (name, of_stats, of_service) in [
        ("scheduled_total", stats.scheduled, counted.scheduled),
        ("cancelled_total", stats.cancelled, counted.answered),
        ("expired_total", stats.expired, counted.scheduled - counted.answered),
        ("rejected_total", stats.rejected, counted.refused),
        ("panics_total", stats.panics, counted.panics),
        ("lateness_seconds_count", stats.expired, stats.expired),
        ("pending", stats.pending, 0),
        ("cancelled_not_reclaimed", stats.cancelled_not_reclaimed, 0),
        ("dropped_tasks_total", stats.dropped_tasks, 0),
        ("turns_total", stats.turns, stats.turns),
        ("wake_ups_total", stats.wake_ups, stats.wake_ups),
        ("long_turns_total", stats.long_turns, stats.long_turns),
        (
            "busy_time_microseconds_total",
            stats.busy_time.as_micros() as u64,
            stats.busy_time.as_micros() as u64,
        ),
        ("slow_tasks_total", stats.slow_tasks, stats.slow_tasks),
    ] {
        says(name, of_stats as f64);
        says(name, of_service as f64);
    }
    says("longest_turn_seconds", stats.longest_turn.as_secs_f64());
    says("max_lateness_seconds", stats.lateness.max.as_secs_f64());

    // A busy machine may make other tasks slow too.
    let (found, least) = (stats.slow_tasks, counted.slow);
    verdict.expect(found >= least, format!("{found} slow tasks instead of at least {least}"));
    verdict.expect(least == 0 || stats.longest_turn >= SLOW * 2, "no turn was as long as a slow task");
    let mut so_far = 0;
    for (bound, count) in stats.lateness.buckets() {
        so_far += count;
        let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
        let name = format!("hashed_wheel_lateness_seconds_bucket{{timer=\"{NAME}\",le=\"{bound}\"}}");
        let found = page.get(&name).copied();
        verdict.expect(found == Some(so_far as f64), format!("{name} is {found:?} instead of {so_far}"));
    }
}
