//! The trial: operations of other threads on the loop, and their expected effects.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Timeout};
use hashed_wheel_trial::{Lateness, Verdict};

use crate::server::{Counts, IDLE, Server};
use crate::watch::Watch;
use crate::{Options, TIMEOUT, clients};

/// How long to check that nothing happens.
const QUIET_TIME: Duration = Duration::from_millis(300);

/// Delays for which the loop sleeps long. These timeouts are pending until the end.
const LONG: Duration = Duration::from_secs(60);
const VERY_LONG: Duration = Duration::from_secs(120);
const LATER_TIMEOUTS: u64 = 100;

type Outcome = Result<(), Box<dyn Error>>;

struct Trial<'a> {
    options: &'a Options,
    timer: HashedWheelTimer,
    watch: Arc<Watch>,
    verdict: Verdict,
}

/// Returns an error if the trial could not be completed.
pub(crate) fn run(options: &Options) -> Result<Verdict, Box<dyn Error>> {
    let watch = Arc::new(Watch::default());
    let server = Server::new(Arc::clone(&watch))?;
    let (timer, address) = (server.timer(), server.address()?);
    options.top.watch("loop", &timer);
    let (end, ended) = mpsc::channel();
    thread::spawn(move || end.send(server.run()));

    let mut trial = Trial { options, timer, watch, verdict: Verdict::default() };
    trial.nothing_pending()?;
    trial.earlier_timeouts()?;
    trial.later_timeouts()?;
    let clients = trial.clients(address)?;
    let server = trial.stop(&ended)?;
    trial.compare(&server, &clients);
    Ok(trial.verdict)
}

impl Trial<'_> {
    /// Checks that the loop sleeps without a time limit.
    fn nothing_pending(&mut self) -> Outcome {
        self.until_asleep()?;
        thread::sleep(QUIET_TIME);
        let seen = self.watch.seen();
        println!(
            "nothing pending  the loop sleeps without a time limit; {} wake-ups in {QUIET_TIME:?}",
            seen.wake_ups
        );
        self.verdict.expect(seen.unlimited == 1, "with nothing pending, next_turn was not None");
        self.verdict.expect(seen.wake_ups == 0, "with nothing pending, the loop woke up");
        Ok(())
    }

    /// Schedules timeouts while the loop sleeps for long. Each one has to wake the loop and to fire
    /// in time.
    fn earlier_timeouts(&mut self) -> Outcome {
        let count = u64::from(self.options.timeouts);
        let mut random = fastrand::Rng::with_seed(1);
        let sleeping = self.watch.seen();
        self.timer.new_timeout(|_| (), LONG)?;
        self.until("the loop is woken", |trial| trial.watch.seen().wake_ups > sleeping.wake_ups)?;
        let before = self.watch.seen();
        let (mut lateness, mut early) = (Lateness::default(), 0);
        for _ in 0..count {
            self.until_asleep()?;
            let (fired, firing) = mpsc::channel();
            let delay = Duration::from_micros(random.u64(1_000..10_000));
            let due = Instant::now() + delay;
            let task = move |_: &Timeout| fired.send(Instant::now()).expect("the receiver exists");
            self.timer.new_timeout(task, delay)?;
            let at = firing.recv_timeout(TIMEOUT)?;
            early += u64::from(at < due);
            lateness.record(at.saturating_duration_since(due));
        }
        let seen = self.watch.seen().since(before);
        println!("{:<16} {seen}", format!("{count} earlier"));
        println!("                 fired late: {lateness}");
        self.verdict.expect(early == 0, format!("{early} timeouts fired early"));
        self.verdict.expect(
            seen.waker_calls == count,
            "the earlier timeouts did not call the waker exactly once each",
        );
        self.expect_in_time("timeouts of another thread", &lateness);
        Ok(())
    }

    /// Schedules timeouts after the loop's next wake-up. They must not wake the loop.
    fn later_timeouts(&mut self) -> Outcome {
        self.until_asleep()?;
        let before = self.watch.seen();
        for _ in 0..LATER_TIMEOUTS {
            self.timer.new_timeout(|_| (), VERY_LONG)?;
        }
        thread::sleep(QUIET_TIME);
        let seen = self.watch.seen().since(before);
        println!("{:<16} {seen}", format!("{LATER_TIMEOUTS} later"));
        self.verdict.expect(seen.waker_calls == 0, "later timeouts called the waker");
        self.verdict.expect(seen.wake_ups == 0, "later timeouts woke the loop");
        Ok(())
    }

    /// Checks that the loop disconnects the silent clients and no others.
    fn clients(&mut self, server: SocketAddr) -> Result<clients::Seen, Box<dyn Error>> {
        let before = self.watch.seen();
        let seen = clients::run(server, self.options.silent(), self.options.busy())?;
        self.until("the server has noticed that the clients have disconnected", |trial| {
            trial.timer.pending_timeouts() as u64 == 1 + LATER_TIMEOUTS
        })?;
        let woken = self.watch.seen().since(before);
        println!(
            "clients          {} silent ones closed (expected {}), {} busy ones kept (expected {})",
            seen.closed,
            self.options.silent(),
            seen.kept,
            self.options.busy()
        );
        println!("                 {woken}");
        self.verdict.expect(woken.waker_calls == 0, "the loop's own timeouts called the waker");
        Ok(seen)
    }

    /// Checks that the loop ends when the timer is stopped.
    fn stop(&mut self, ended: &Receiver<io::Result<Counts>>) -> Result<Counts, Box<dyn Error>> {
        self.until_asleep()?;
        let stopped = Instant::now();
        let pending = self.timer.stop().len() as u64;
        let counts = ended.recv_timeout(TIMEOUT).map_err(|_| "the loop did not end")??;
        println!(
            "stop             returned {pending} timeouts; the loop ended after {:.1?}",
            stopped.elapsed()
        );
        self.verdict.expect(pending == 1 + LATER_TIMEOUTS, format!("stop returned {pending} timeouts"));
        Ok(counts)
    }

    /// Compares the observations of the server and the clients.
    fn compare(&mut self, server: &Counts, clients: &clients::Seen) {
        println!("closed late      {}", server.lateness);
        let (silent, busy) = (self.options.silent(), self.options.busy());
        let gap = clients.longest_gap;
        let verdict = &mut self.verdict;
        verdict.expect(
            clients.closed == silent,
            "not all silent clients were closed, or some were closed early",
        );
        verdict.expect(
            clients.kept == busy,
            format!(
                "not all busy clients stayed connected (the longest pause between packets was {gap:.1?}, the limit is {IDLE:?})"
            ),
        );
        verdict.expect((server.closed, server.left) == (silent, busy), "server and clients do not agree");
        verdict.expect(server.early == 0, format!("{} connections were closed early", server.early));
        self.expect_in_time("closed connections", &server.lateness);
    }

    fn expect_in_time(&mut self, what: &str, lateness: &Lateness) {
        let late = lateness.p99();
        let is_in_time = late <= self.options.max_late;
        self.verdict.expect(is_in_time, format!("{what}: the 99th percentile of the lateness is {late:.1?}"));
    }

    fn until_asleep(&self) -> Outcome {
        self.until("the loop sleeps", |trial| trial.watch.is_asleep())
    }

    fn until(&self, what: &str, is_true: impl Fn(&Self) -> bool) -> Outcome {
        let began = Instant::now();
        while !is_true(self) {
            if began.elapsed() > TIMEOUT {
                return Err(format!("timed out waiting until {what}").into());
            }
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}
