//! The traces, read: README.md says what they look like.

use std::fs;
use std::path::Path;

#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) name: String,
    /// What the timer was asked to be, and what Netty made of it.
    pub(crate) asked: Size,
    pub(crate) netty: Size,
    /// 0: none.
    pub(crate) limit: usize,
    /// The tick that the timer has come to when the script begins.
    pub(crate) from: u64,
    pub(crate) steps: Vec<Step>,
}

/// Nanoseconds, and slots.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Size {
    pub(crate) tick: u64,
    pub(crate) slots: usize,
}

#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) op: Op,
    /// What Netty did, in order.
    pub(crate) events: Vec<Event>,
    /// What Netty's `pendingTimeouts` said then.
    pub(crate) pending: i64,
    /// How many of Netty's timeouts were neither expired nor cancelled.
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
    /// Time passes, then the worker makes all ticks that are due.
    Turn(u64),
    /// So many ticks, each on time.
    Run(u64),
    Stop,
    /// `stop` comes in the middle of `newTimeout`, and again afterwards.
    StopWithinAdd,
}

/// What the task of a timeout does.
#[derive(Clone, Default)]
pub(crate) struct Task {
    pub(crate) cancels: Vec<usize>,
    /// Then it schedules another one.
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
        won: bool,
    },
    Full,
    Stopped,
    /// By `stop`; the lowest id first.
    Returned(usize),
    /// How many of those were cancelled by `stop`.
    CancelledByStop(usize),
    Lost,
}

/// One family of scripts.
pub(crate) fn scripts(family: &str) -> Vec<Script> {
    let mut scripts: Vec<Script> = Vec::new();
    for line in lines(family) {
        match line.strip_prefix("script ") {
            Some(head) => scripts.push(script(head)),
            None => scripts.last_mut().unwrap().steps.push(step(&line)),
        }
    }
    scripts
}

/// Without what is only for people.
pub(crate) fn lines(family: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/netty-oracle");
    let text = fs::read_to_string(folder.join(family).with_extension("txt")).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(String::from).collect()
}

/// What was asked, and what was answered.
pub(crate) fn halves(line: &str) -> (&str, &str) {
    line.split_once(" =").map(|(asked, answer)| (asked, answer.trim_start())).expect(line)
}

pub(crate) fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number that fits here"))
}

pub(crate) fn size(words: &[&str]) -> Size {
    Size { tick: number(words[0]), slots: number(words[1]) }
}

fn script(head: &str) -> Script {
    let (asked, answer) = halves(head);
    let [name, tick, slots, limit, from] = asked.split(' ').collect::<Vec<_>>()[..] else { panic!("{head}") };
    Script {
        name: name.to_owned(),
        asked: size(&[tick, slots]),
        netty: size(&answer.split(' ').collect::<Vec<_>>()),
        limit: number(limit),
        from: number(from),
        steps: Vec::new(),
    }
}

fn step(line: &str) -> Step {
    let (asked, answer) = halves(line);
    let (events, count) = answer.rsplit_once(' ').unwrap_or(("", answer));
    let (pending, alive) = count.split_once('/').expect(line);
    let op = match asked.split(' ').collect::<Vec<_>>()[..] {
        ["+", delay, ref words @ ..] => Op::Add { delay: number(delay), task: task(words) },
        ["f", count, delay] => Op::Fill { count: number(count), delay: number(delay) },
        ["x", id] => Op::Cancel(number(id)),
        [">", by] => Op::Stall(number(by)),
        ["@", by] => Op::Turn(number(by)),
        ["*", count] => Op::Run(number(count)),
        ["!"] => Op::Stop,
        ["+!", _] => Op::StopWithinAdd,
        _ => panic!("{line}"),
    };
    let events = events.split(' ').filter(|word| !word.is_empty()).map(event).collect();
    Step { op, events, pending: number(pending), alive: number(alive) }
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
                Event::Fired { tick: number(tick), id: number(id) }
            } else if let Some(cancel) = word.strip_prefix('x') {
                let (id, end) = cancel.split_at(cancel.len() - 1);
                Event::Cancel { id: number(id), won: end == "y" }
            } else if let Some(count) = word.strip_prefix('c') {
                Event::CancelledByStop(number(count))
            } else {
                Event::Returned(number(word))
            }
        }
    }
}
