//! The scripts for the real thread and the real clock. Nothing here fails because the machine is slow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout};

use crate::common::{TEST_TIMEOUT, ms, quietly};
use crate::replay::{self, Settings};
use crate::trace::{self, Size, number};

#[derive(Clone)]
pub(crate) struct Script {
    name: String,
    size: Size,
    steps: Vec<(String, String)>,
}

pub(crate) fn scripts() -> Vec<Script> {
    let mut scripts: Vec<Script> = Vec::new();
    for line in trace::lines("real") {
        if let Some(head) = line.strip_prefix("script ") {
            let (name, size) = head.split_once(' ').unwrap();
            let size = trace::size(&size.split(' ').collect::<Vec<_>>());
            scripts.push(Script { name: name.to_owned(), size, steps: Vec::new() });
        } else {
            let (asked, answer) = trace::halves(&line);
            scripts.last_mut().unwrap().steps.push((asked.to_owned(), answer.to_owned()));
        }
    }
    scripts
}

/// A task that has run: who, and how it went.
struct Ran {
    id: usize,
    how: &'static str,
    at: Instant,
}

struct Real {
    timer: HashedWheelTimer,
    tell: Sender<Ran>,
    told: Receiver<Ran>,
    tell_asleep: Sender<()>,
    asleep: Receiver<()>,
    timeouts: Vec<Known>,
    is_stopped: bool,
}

struct Known {
    timeout: Option<Timeout>,
    /// Between these two.
    deadline: (Instant, Instant),
}

impl Script {
    pub(crate) fn replay(&self, settings: Settings) {
        let mut real = Real::new(self.size, settings);
        let (mut ran, mut ran_in_netty) = (Vec::new(), Vec::new());
        for (asked, netty) in &self.steps {
            let ours = match asked.split(' ').collect::<Vec<_>>()[..] {
                ["+", delay] => real.add(ms(number(delay)), ""),
                ["+", delay, kind] => real.add(ms(number(delay)), kind),
                ["x", id] => real.cancel(number(id)),
                ["!"] => real.stop(),
                ["z"] => {
                    real.asleep.recv_timeout(TEST_TIMEOUT).unwrap();
                    continue;
                }
                ["w", count] => {
                    // Compared below: in how many steps they come is a matter of time.
                    ran.extend((0..number(count)).map(|_| real.wait()));
                    ran_in_netty.extend(netty.split(' ').map(as_here));
                    continue;
                }
                _ => panic!("{asked}"),
            };
            assert_eq!(&ours, netty, "script {}, {asked}", self.name);
        }
        self.check(&real, &ran, &ran_in_netty);
        assert!(real.told.try_recv().is_err(), "script {}: nothing else has run", self.name);
    }

    pub(crate) fn interrupts_in_netty(&self) -> bool {
        self.steps.iter().any(|(_, netty)| netty.contains("interrupted"))
    }

    fn check(&self, real: &Real, ran: &[Ran], ran_in_netty: &[String]) {
        let mut ours: Vec<_> = ran.iter().map(|ran| format!("{}{}", ran.id, ran.how)).collect();
        let mut netty = ran_in_netty.to_vec();
        ours.sort_unstable();
        netty.sort_unstable();
        assert_eq!(ours, netty, "script {}", self.name);
        for (index, later) in ran.iter().enumerate() {
            assert!(later.at >= real.timeouts[later.id].deadline.0, "script {}: early", self.name);
            // Where this thread was held up, the deadlines may have come closer.
            let surely_first = |earlier: &&Ran| {
                let tick = Duration::from_nanos(self.size.tick);
                real.timeouts[later.id].deadline.1 + tick < real.timeouts[earlier.id].deadline.0
            };
            let wrong = ran[..index].iter().find(surely_first).map(|ran| ran.id);
            assert_eq!(wrong, None, "script {}: ran before {}", self.name, later.id);
        }
    }
}

/// The difference: Netty's `stop` interrupts a task that is running, and then waits for it.
fn as_here(netty: &str) -> String {
    netty.replace("interrupted", "slept")
}

impl Real {
    fn new(size: Size, settings: Settings) -> Self {
        let timer = settings(replay::build(size, HashedWheelTimer::builder())).build().unwrap();
        let (tell, told) = channel();
        let (tell_asleep, asleep) = channel();
        Self { timer, tell, told, tell_asleep, asleep, timeouts: Vec::new(), is_stopped: false }
    }

    fn add(&mut self, delay: Duration, kind: &str) -> String {
        let id = self.timeouts.len();
        let (tell, tell_asleep, kind) = (self.tell.clone(), self.tell_asleep.clone(), kind.to_owned());
        let task = move |timeout: &Timeout| {
            let at = Instant::now();
            let how = match &*kind {
                "stop" => {
                    let stop = AssertUnwindSafe(|| timeout.timer().stop());
                    if quietly(|| catch_unwind(stop)).is_err() { "refused" } else { "stopped" }
                }
                "sleep" => {
                    tell_asleep.send(()).unwrap();
                    thread::sleep(ms(150));
                    "slept"
                }
                _ => "",
            };
            tell.send(Ran { id, how, at }).unwrap();
            if kind == "throw" {
                quietly(|| panic!("wanted"));
            }
        };
        let before = Instant::now();
        let answer = self.timer.new_timeout(task, delay);
        let deadline = (before + delay, Instant::now() + delay);
        let said = match &answer {
            Ok(_) => "ok",
            Err(NewTimeoutError::Stopped) => "stopped",
            Err(other) => panic!("{other}"),
        };
        self.timeouts.push(Known { timeout: answer.ok(), deadline });
        said.to_owned()
    }

    fn cancel(&self, id: usize) -> String {
        let won = self.timeouts[id].timeout.as_ref().unwrap().cancel();
        if won { "y" } else { "n" }.to_owned()
    }

    fn stop(&mut self) -> String {
        self.is_stopped = true;
        let rest = self.timer.stop();
        let is_there =
            |id: &usize| self.timeouts[*id].timeout.as_ref().is_some_and(|timeout| rest.contains(timeout));
        let ids: Vec<_> = (0..self.timeouts.len()).filter(is_there).collect();
        assert_eq!(ids.len(), rest.len());
        ids.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The next that runs. A stopped timer has waited for it.
    fn wait(&self) -> Ran {
        self.told.recv_timeout(if self.is_stopped { Duration::ZERO } else { TEST_TIMEOUT }).unwrap()
    }
}
