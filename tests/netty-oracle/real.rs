//! The scripts for the real thread and the real clock. None of these checks fails on a slow
//! machine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout};

use super::replay::{self, Settings};
use super::trace::{self, Size, number};
use crate::common::{TEST_TIMEOUT, ms, quietly};

#[derive(Clone)]
pub(crate) struct Script {
    name: String,
    size: Size,
    steps: Vec<(String, String)>,
}

/// The scripts, which have the same results with each version of Netty.
pub(crate) fn scripts() -> Vec<Script> {
    let [first, others @ ..] = trace::VERSIONS;
    let lines = trace::lines(first, "real");
    let is_same = |&netty: &_| trace::lines(netty, "real") == lines;
    assert!(others.iter().all(is_same));
    let mut scripts: Vec<Script> = Vec::new();
    for line in lines {
        if let Some(head) = line.strip_prefix("script ") {
            let (name, size) = head.split_once(' ').unwrap();
            let size = trace::size(&size.split(' ').collect::<Vec<_>>());
            scripts.push(Script {
                name: name.to_owned(),
                size,
                steps: Vec::new(),
            });
        } else {
            let (operation, result) = trace::halves(&line);
            let step = (operation.to_owned(), result.to_owned());
            scripts.last_mut().unwrap().steps.push(step);
        }
    }
    scripts
}

/// A task that has run, and how it ended.
struct Ran {
    id: usize,
    outcome: &'static str,
    at: Instant,
}

struct Real {
    timer: HashedWheelTimer,
    sender: Sender<Ran>,
    receiver: Receiver<Ran>,
    asleep_sender: Sender<()>,
    asleep: Receiver<()>,
    timeouts: Vec<Known>,
    is_stopped: bool,
}

struct Known {
    timeout: Option<Timeout>,
    /// The deadline is between these two.
    deadline: (Instant, Instant),
}

impl Script {
    pub(crate) fn replay(&self, settings: Settings) {
        let mut real = Real::new(self.size, settings);
        let (mut ran, mut ran_in_netty) = (Vec::new(), Vec::new());
        for (operation, netty) in &self.steps {
            let ours = match operation.split(' ').collect::<Vec<_>>()[..] {
                ["+", delay] => real.add(ms(number(delay)), ""),
                ["+", delay, kind] => real.add(ms(number(delay)), kind),
                ["x", id] => real.cancel(number(id)),
                ["!"] => real.stop(),
                ["z"] => {
                    real.asleep.recv_timeout(TEST_TIMEOUT).unwrap();
                    continue;
                }
                ["w", count] => {
                    // Compared at the end, because the order of these events depends on the timing.
                    ran.extend((0..number(count)).map(|_| real.wait()));
                    ran_in_netty.extend(netty.split(' ').map(expected_here));
                    continue;
                }
                _ => panic!("{operation}"),
            };
            assert_eq!(&ours, netty, "script {}, {operation}", self.name);
        }
        self.check(&real, &ran, &ran_in_netty);
        let other = real.receiver.try_recv().is_err();
        assert!(other, "script {}: another task has run", self.name);
    }

    pub(crate) fn interrupts_in_netty(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|(_, netty)| netty.contains("interrupted"))
    }

    fn check(&self, real: &Real, ran: &[Ran], ran_in_netty: &[String]) {
        let ours = ran.iter().map(|ran| format!("{}{}", ran.id, ran.outcome));
        let mut ours: Vec<_> = ours.collect();
        let mut netty = ran_in_netty.to_vec();
        ours.sort_unstable();
        netty.sort_unstable();
        assert_eq!(ours, netty, "script {}", self.name);
        for (index, later) in ran.iter().enumerate() {
            let is_due = later.at >= real.timeouts[later.id].deadline.0;
            assert!(is_due, "script {}: early", self.name);
            // If this thread was delayed, the deadlines may be closer together.
            let certainly_later = |earlier: &&Ran| {
                let tick = Duration::from_nanos(self.size.tick);
                real.timeouts[later.id].deadline.1 + tick < real.timeouts[earlier.id].deadline.0
            };
            let wrong = ran[..index].iter().find(certainly_later).map(|ran| ran.id);
            assert_eq!(wrong, None, "script {}: ran before {}", self.name, later.id);
        }
    }
}

/// The difference: Netty's `stop` interrupts a running task, and then waits for it.
fn expected_here(netty: &str) -> String {
    netty.replace("interrupted", "slept")
}

impl Real {
    fn new(size: Size, settings: Settings) -> Self {
        let builder = replay::build(size, HashedWheelTimer::builder());
        let timer = settings(builder).build().unwrap();
        let (sender, receiver) = channel();
        let (asleep_sender, asleep) = channel();
        Self {
            timer,
            sender,
            receiver,
            asleep_sender,
            asleep,
            timeouts: Vec::new(),
            is_stopped: false,
        }
    }

    fn add(&mut self, delay: Duration, kind: &str) -> String {
        let id = self.timeouts.len();
        let (sender, asleep_sender) = (self.sender.clone(), self.asleep_sender.clone());
        let kind = kind.to_owned();
        let task = move |timeout: &Timeout| {
            let at = Instant::now();
            let outcome = match &*kind {
                "stop" => {
                    let stop = AssertUnwindSafe(|| timeout.timer().stop());
                    let stopped = quietly(|| catch_unwind(stop));
                    stopped.map_or("refused", |_| "stopped")
                }
                "sleep" => {
                    asleep_sender.send(()).unwrap();
                    thread::sleep(ms(150));
                    "slept"
                }
                _ => "",
            };
            sender.send(Ran { id, outcome, at }).unwrap();
            if kind == "throw" {
                quietly(|| panic!("the script demands a panic"));
            }
        };
        let before = Instant::now();
        let result = self.timer.new_timeout(task, delay);
        let deadline = (before + delay, Instant::now() + delay);
        let text = match &result {
            Ok(_) => "ok",
            Err(NewTimeoutError::Stopped) => "stopped",
            Err(other) => panic!("{other}"),
        };
        let timeout = result.ok();
        self.timeouts.push(Known { timeout, deadline });
        text.to_owned()
    }

    fn cancel(&self, id: usize) -> String {
        let cancelled = self.timeouts[id].timeout.as_ref().unwrap().cancel();
        if cancelled { "y" } else { "n" }.to_owned()
    }

    fn stop(&mut self) -> String {
        self.is_stopped = true;
        let rest = self.timer.stop();
        let is_returned = |id: &usize| {
            let timeout = self.timeouts[*id].timeout.as_ref();
            timeout.is_some_and(|timeout| rest.contains(timeout))
        };
        let ids: Vec<_> = (0..self.timeouts.len()).filter(is_returned).collect();
        assert_eq!(ids.len(), rest.len());
        let ids: Vec<_> = ids.iter().map(usize::to_string).collect();
        ids.join(" ")
    }

    /// Receives the next task that has run. A stopped timer has already waited for it.
    fn wait(&self) -> Ran {
        match self.is_stopped {
            true => self.receiver.try_recv().unwrap(),
            false => self.receiver.recv_timeout(TEST_TIMEOUT).unwrap(),
        }
    }
}
