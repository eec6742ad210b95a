//! Parses the traces. README.md describes their format.

use std::fs;
use std::path::Path;

#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) name: String,
    /// The requested size, and the size that Netty made of it.
    pub(crate) asked: Size,
    pub(crate) netty: Size,
    /// 0 means no limit.
    pub(crate) limit: usize,
    /// The tick at which the timer is when the script begins.
    pub(crate) from: u64,
    pub(crate) steps: Vec<Step>,
}

/// In nanoseconds and slots.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Size {
    pub(crate) tick: u64,
    pub(crate) slots: usize,
}

#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) op: Op,
    /// The events in Netty, in order.
    pub(crate) events: Vec<Event>,
    /// Netty's `pendingTimeouts` after the step.
    pub(crate) pending: i64,
    /// The number of Netty's timeouts that were neither expired nor cancelled.
    pub(crate) alive: usize,
}

#[derive(Clone)]
pub(crate) enum Op {
    Add {
        delay: i64,
        task: Task,
    },
    Fill {
        count: usize,
        delay: i64,
    },
    Cancel(usize),
    /// Time passes and the worker does nothing.
    Stall(u64),
    /// Time passes, and then the worker processes all due ticks.
    Turn(u64),
    /// Processes this many ticks, each on time.
    Run(u64),
    Stop,
    /// `stop` comes in the middle of `newTimeout`, and again afterwards.
    StopWithinAdd,
}

/// The actions of a timeout's task.
#[derive(Clone, Default)]
pub(crate) struct Task {
    pub(crate) cancels: Vec<usize>,
    /// Then the task schedules another timeout.
    pub(crate) next: Option<(i64, Box<Task>)>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Event {
    Fired {
        tick: u64,
        id: usize,
    },
    Cancel {
        id: usize,
        succeeded: bool,
    },
    Full,
    Stopped,
    /// Returned by `stop`, in ascending order of the ids.
    Returned(usize),
    /// How many of the returned timeouts `stop` has cancelled.
    CancelledByStop(usize),
    Lost,
}

/// A version of Netty that has run the scripts, and what it does differently from the other one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Netty {
    /// The lines of its traces that differ from those of 4.1.
    differences: Option<&'static str>,
    /// Whether `stop` cancels the timeouts that it returns.
    pub(crate) stop_cancels: bool,
    /// Whether a timeout that is cancelled in the tick in which the worker reaches it is subtracted
    /// from the count twice.
    pub(crate) subtracts_twice: bool,
}

pub(crate) const VERSIONS: [Netty; 2] = [
    Netty {
        differences: None,
        stop_cancels: false,
        subtracts_twice: true,
    },
    Netty {
        differences: Some("4.2.txt"),
        stop_cancels: true,
        subtracts_twice: false,
    },
];

/// Reads one family of scripts.
pub(crate) fn scripts(netty: Netty, family: &str) -> Vec<Script> {
    let mut scripts: Vec<Script> = Vec::new();
    for line in lines(netty, family) {
        match line.strip_prefix("script ") {
            Some(head) => scripts.push(script(head)),
            None => scripts.last_mut().unwrap().steps.push(step(&line)),
        }
    }
    scripts
}

/// Returns the lines without comments.
pub(crate) fn lines(netty: Netty, family: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/netty-oracle");
    let text = fs::read_to_string(folder.join("4.1").join(family).with_extension("txt")).unwrap();
    let mut lines: Vec<_> = text.lines().map(String::from).collect();
    if let Some(file) = netty.differences {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        for line in text.lines() {
            let own = line.strip_prefix(family);
            let Some(own) = own.and_then(|own| own.strip_prefix(':')) else {
                continue;
            };
            let (at, line) = own.split_once(':').expect(line);
            lines[number::<usize>(at) - 1] = line.to_owned();
        }
    }
    lines.retain(|line| !line.starts_with('#'));
    lines
}

/// Splits a line into the operation and the result.
pub(crate) fn halves(line: &str) -> (&str, &str) {
    let (asked, answer) = line.split_once(" =").expect(line);
    (asked, answer.trim_start())
}

pub(crate) fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse()
        .unwrap_or_else(|_| panic!("{word:?} is not a number of the expected type"))
}

pub(crate) fn size(words: &[&str]) -> Size {
    Size {
        tick: number(words[0]),
        slots: number(words[1]),
    }
}

fn script(head: &str) -> Script {
    let (requested, actual) = halves(head);
    let [name, tick, slots, limit, from] = requested.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{head}")
    };
    Script {
        name: name.to_owned(),
        asked: size(&[tick, slots]),
        netty: size(&actual.split(' ').collect::<Vec<_>>()),
        limit: number(limit),
        from: number(from),
        steps: Vec::new(),
    }
}

fn step(line: &str) -> Step {
    let (operation, result) = halves(line);
    let (events, count) = result.rsplit_once(' ').unwrap_or(("", result));
    let (pending, alive) = count.split_once('/').expect(line);
    let op = match operation.split(' ').collect::<Vec<_>>()[..] {
        ["+", delay, ref words @ ..] => Op::Add {
            delay: number(delay),
            task: task(words),
        },
        ["f", count, delay] => Op::Fill {
            count: number(count),
            delay: number(delay),
        },
        ["x", id] => Op::Cancel(number(id)),
        [">", by] => Op::Stall(number(by)),
        ["@", by] => Op::Turn(number(by)),
        ["*", count] => Op::Run(number(count)),
        ["!"] => Op::Stop,
        ["+!", _] => Op::StopWithinAdd,
        _ => panic!("{line}"),
    };
    let events = events.split_whitespace().map(event).collect();
    Step {
        op,
        events,
        pending: number(pending),
        alive: number(alive),
    }
}

fn task(words: &[&str]) -> Task {
    let mut task = Task::default();
    for (index, word) in words.iter().enumerate() {
        match word.split_at(1) {
            ("x", id) => task.cancels.push(number(id)),
            ("+", delay) => {
                task.next = Some((number(delay), Box::new(self::task(&words[index + 1..]))));
                break;
            }
            _ => panic!("{word}"),
        }
    }
    task
}

fn event(word: &str) -> Event {
    match word {
        "full" => Event::Full,
        "stopped" => Event::Stopped,
        "lost" => Event::Lost,
        _ => {
            if let Some((tick, id)) = word.split_once(':') {
                Event::Fired {
                    tick: number(tick),
                    id: number(id),
                }
            } else if let Some(cancel) = word.strip_prefix('x') {
                let (id, end) = cancel.split_at(cancel.len() - 1);
                Event::Cancel {
                    id: number(id),
                    succeeded: end == "y",
                }
            } else if let Some(count) = word.strip_prefix('c') {
                Event::CancelledByStop(number(count))
            } else {
                Event::Returned(number(word))
            }
        }
    }
}
