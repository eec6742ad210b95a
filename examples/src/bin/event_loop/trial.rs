//! The trial: what other threads do to the loop, and what has to come of it.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Timeout};
use hashed_wheel_examples::{Lateness, Verdict};

use crate::server::{Counts, IDLE, Server};
use crate::watch::Watch;
use crate::{Options, PATIENCE, clients};

/// How long to look on while nothing should happen.
const A_WHILE: Duration = Duration::from_millis(300);

/// As far off as these are, the loop sleeps for long. They are pending until the end.
const LONG: Duration = Duration::from_secs(60);
const LONGER: Duration = Duration::from_secs(120);
const LONGER_ONES: u64 = 100;

type Outcome = Result<(), Box<dyn Error>>;

struct Trial<'a> {
    options: &'a Options,
    timer: HashedWheelTimer,
    watch: Arc<Watch>,
    verdict: Verdict,
}

/// An error here means that it did not come to its end.
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
    /// The loop sleeps for ever.
    fn nothing_pending(&mut self) -> Outcome {
        self.until_asleep()?;
        thread::sleep(A_WHILE);
        let seen = self.watch.seen();
        println!("nothing pending  the loop sleeps with no end; {} wake-ups in {A_WHILE:?}", seen.wake_ups);
        self.verdict.expect(seen.for_ever == 1, "with nothing pending, next_turn was not None");
        self.verdict.expect(seen.wake_ups == 0, "with nothing pending, the loop woke");
        Ok(())
    }

    /// Each comes while the loop sleeps for long, has to wake it, and has to fire in time.
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
            let task = move |_: &Timeout| fired.send(Instant::now()).expect("it is waited for");
            self.timer.new_timeout(task, delay)?;
            let at = firing.recv_timeout(PATIENCE)?;
            early += u64::from(at < due);
            lateness.record(at.saturating_duration_since(due));
        }
        let seen = self.watch.seen().since(before);
        println!("{:<16} {seen}", format!("{count} earlier"));
        println!("                 fired late: {lateness}");
        self.verdict.expect(early == 0, format!("{early} timeouts fired early"));
        self.verdict.expect(seen.rings == count, "earlier timeouts did not call the waker once each");
        self.expect_in_time("timeouts of another thread fired", &lateness);
        Ok(())
    }

    /// The loop need not know of them yet.
    fn later_timeouts(&mut self) -> Outcome {
        self.until_asleep()?;
        let before = self.watch.seen();
        for _ in 0..LONGER_ONES {
            self.timer.new_timeout(|_| (), LONGER)?;
        }
        thread::sleep(A_WHILE);
        let seen = self.watch.seen().since(before);
        println!("{:<16} {seen}", format!("{LONGER_ONES} later"));
        self.verdict.expect(seen.rings == 0, "later timeouts called the waker");
        self.verdict.expect(seen.wake_ups == 0, "later timeouts woke the loop");
        Ok(())
    }

    /// The loop closes those that fall silent, and no others.
    fn clients(&mut self, server: SocketAddr) -> Result<clients::Seen, Box<dyn Error>> {
        let before = self.watch.seen();
        let seen = clients::run(server, self.options.silent(), self.options.busy())?;
        self.until("the server has noticed that the clients left", |trial| {
            trial.timer.pending_timeouts() as u64 == 1 + LONGER_ONES
        })?;
        let woken = self.watch.seen().since(before);
        println!(
            "clients          {} silent ones closed (should be {}), {} busy ones kept (should be {})",
            seen.closed,
            self.options.silent(),
            seen.kept,
            self.options.busy()
        );
        println!("                 {woken}");
        self.verdict.expect(woken.rings == 0, "the loop's own timeouts called the waker");
        Ok(seen)
    }

    /// The loop ends.
    fn stop(&mut self, ended: &Receiver<io::Result<Counts>>) -> Result<Counts, Box<dyn Error>> {
        self.until_asleep()?;
        let stopped = Instant::now();
        let pending = self.timer.stop().len() as u64;
        let counts = ended.recv_timeout(PATIENCE).map_err(|_| "the loop did not end")??;
        println!(
            "stop             returned {pending} timeouts; the loop ended after {:.1?}",
            stopped.elapsed()
        );
        self.verdict.expect(pending == 1 + LONGER_ONES, format!("stop returned {pending} timeouts"));
        Ok(counts)
    }

    /// Server and clients have to agree.
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
                "not all busy clients were kept (at most {gap:.1?} between two packets; {IDLE:?} are allowed)"
            ),
        );
        verdict.expect((server.closed, server.left) == (silent, busy), "server and clients do not agree");
        verdict.expect(server.early == 0, format!("{} connections were closed early", server.early));
        self.expect_in_time("connections were closed", &server.lateness);
    }

    fn expect_in_time(&mut self, what: &str, lateness: &Lateness) {
        let late = lateness.p99();
        let is_in_time = late.as_millis() <= self.options.max_late.into();
        self.verdict.expect(is_in_time, format!("1 in 100 {what} {late:.1?} late or more"));
    }

    fn until_asleep(&self) -> Outcome {
        self.until("the loop sleeps", |trial| trial.watch.is_asleep())
    }

    fn until(&self, what: &str, is_true: impl Fn(&Self) -> bool) -> Outcome {
        let began = Instant::now();
        while !is_true(self) {
            if began.elapsed() > PATIENCE {
                return Err(format!("waited in vain until {what}").into());
            }
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}
