//! Against the original: what Netty's own `HashedWheelTimer` did with a thousand scripts, and what this crate does with
//! them. `tests/netty-oracle/README.md` has the format of the traces and the command that remakes them; no Java is needed here.
//!
//! All is the same, tick by tick and in the same order, but for the differences that are named here. They are on
//! purpose. Each has a rule that says exactly where Netty does what instead, and a test that fails where Netty does not.
//!
//! * A deadline on a tick: Netty is a tick late. (So it is told that a cancel won which comes too late here.)
//! * A cancelled timeout: Netty counts it until its worker comes by, and keeps its place under the limit so long.
//! * One that is cancelled in the tick that comes upon it: Netty takes it off the count twice.
//! * `stop`: Netty does not cancel what it returns, and goes on counting it.
//! * A refusal by a stopped timer: Netty counts it, for ever.
//! * `stop` in the middle of `newTimeout`: Netty loses the timeout.
//! * More than 100 000 at a time: Netty makes the rest wait for the next tick, and fires it in the order of its slot.
//! * A tick of less than a millisecond: Netty makes it one.
//! * A task that is running: Netty's `stop` interrupts it.
//! * A turn of the wheel that takes more than 146 years: Netty takes up to 292.

mod common;
#[path = "netty-oracle/history.rs"]
mod history;
#[path = "netty-oracle/real.rs"]
mod real;
#[path = "netty-oracle/replay.rs"]
mod replay;
#[path = "netty-oracle/trace.rs"]
mod trace;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::ends;
use hashed_wheel::{BuildError, Builder, Clock, HashedWheelTimer, NewTimeoutError, Timeout};

use history::{History, Ticks};
use replay::{Answers, Settings};
use trace::{Event, Op, Script, Size};

/// `differs`, `build` and `real` have tests of their own.
const FAMILIES: [&str; 10] =
    ["alone", "around", "exact", "cancel", "goal", "chain", "limit", "stop", "random", "old"];

/// On the hashed wheel and on the hierarchical one.
const WHEELS: [Settings; 2] = [|builder| builder, Builder::hierarchical];

fn all_scripts() -> impl Iterator<Item = (&'static str, Script)> {
    FAMILIES
        .into_iter()
        .flat_map(|family| trace::scripts(family).into_iter().map(move |script| (family, script)))
}

#[test]
fn all_that_netty_does_and_nothing_else() {
    let mut count = 0;
    for (family, script) in all_scripts() {
        assert_eq!(script.asked.tick, script.netty.tick);
        let (expected, moved) = expected(&script);
        assert_eq!(moved > 0, family == "exact", "{}", script.name);
        for settings in WHEELS {
            assert_same(&script, &replay::on_timer(&script, settings), &expected);
        }
        for answers in replay::on_plain_wheels(&script).into_iter().flatten() {
            assert_same(&script, &answers, &expected);
        }
        count += 1;
    }
    assert!(count > 900, "{count} scripts");
}

#[track_caller]
fn assert_same(script: &Script, ours: &Answers, expected: &Answers) {
    assert_eq!(ours.len(), expected.len());
    for (step, (ours, expected)) in ours.iter().zip(expected).enumerate() {
        assert_eq!(ours, expected, "script {}, step {}", script.name, step + 1);
    }
}

/// What Netty did, but for its ticks that are late, as it looks from outside. And how many those are.
fn expected(script: &Script) -> (Answers, usize) {
    let history = History::of(script);
    let mut answers: Answers = script.steps.iter().map(|step| (step.events.clone(), step.alive)).collect();
    let moved = make_punctual(script, &history, &mut answers);
    for (step, (events, pending)) in answers.iter_mut().enumerate() {
        // Checked in `on_timer` and in `netty_does_not_end_what_stop_returns`.
        events.retain(|event| !matches!(event, Event::CancelledByStop(_)));
        for event in events {
            if let Event::Fired { tick, .. } = event {
                // Several ticks made at once look like the last of them.
                *tick = (*tick).max(history.ticks[step].in_time);
            }
        }
        if matches!(script.steps[step].op, Op::Stop) {
            *pending = 0;
        }
    }
    (answers, moved)
}

/// The difference: *a deadline on a tick*. Netty's slot for it is that of the time from this tick to the next, and it is
/// looked at when that is over. Unless the tick had been made already: then the next one is right.
fn make_punctual(script: &Script, history: &History, answers: &mut Answers) -> usize {
    let mut moved = 0;
    for step in 0..answers.len() {
        let mut late = Vec::new();
        for event in std::mem::take(&mut answers[step].0) {
            match event {
                Event::Fired { tick, id } if is_late(script, history, tick, id) => late.push((tick - 1, id)),
                _ => answers[step].0.push(event),
            }
        }
        moved += late.len();
        for (tick, id) in late {
            let made_it = |made: &Ticks| made.before < tick && tick <= made.last;
            let earlier = history.ticks.iter().position(made_it).unwrap();
            answers[earlier..step].iter_mut().for_each(|(_, pending)| *pending -= 1);
            let key = |event: &Event| match *event {
                Event::Fired { tick, id } => (tick, id),
                _ => panic!("script {}: where deadlines are on a tick, nothing else happens", script.name),
            };
            let events = &mut answers[earlier].0;
            let place = events.partition_point(|event| key(event) < (tick, id));
            events.insert(place, Event::Fired { tick, id });
            assert!(events.is_sorted_by_key(key), "a tick is in the order of scheduling");
        }
    }
    moved
}

fn is_late(script: &Script, history: &History, tick: u64, id: usize) -> bool {
    let known = &history.timeouts[id];
    let length = i128::from(script.netty.tick);
    let on_tick = known.deadline / length;
    let is_late = known.deadline % length == 0 && on_tick > known.after.into();
    assert!(!is_late || on_tick + 1 == tick.into(), "script {}, id {id}: Netty is punctual", script.name);
    is_late
}

// --- what Netty counts ----------------------------------------------------------------------------------------------

/// The differences: *a cancelled timeout*; *one that is cancelled in the tick that comes upon it*. Where there is neither,
/// Netty's count is right.
#[test]
fn netty_counts_the_cancelled_until_its_worker_comes_by_and_then_takes_some_off_twice() {
    let (mut seen_waiting, mut seen_twice) = (0, 0);
    for (family, script) in all_scripts() {
        let history = History::of(&script);
        let mut is_stopped = false;
        for (index, step) in script.steps.iter().enumerate() {
            is_stopped |= matches!(step.op, Op::Stop);
            let (mut waiting, mut twice) = (0, 0);
            for cancelled in history.cancels.iter().filter(|cancelled| cancelled.step <= index) {
                match (is_stopped || cancelled.settled <= history.ticks[index].last, cancelled.within_reach) {
                    (false, false) => waiting += 1,
                    (true, true) => twice += 1,
                    _ => {}
                }
            }
            assert_eq!(
                step.pending,
                step.alive as i64 + waiting - twice,
                "script {}, step {}: of those cancelled {waiting} are waiting, {twice} were taken off twice",
                script.name,
                index + 1
            );
            seen_waiting += waiting;
            seen_twice += twice;
            assert!(waiting == 0 || ["cancel", "goal", "random", "limit", "old", "stop"].contains(&family));
            assert!(twice == 0 || ["goal", "random"].contains(&family));
        }
    }
    assert!(seen_waiting > 100 && seen_twice > 100, "{seen_waiting}, {seen_twice}");
}

/// The difference: *stop*.
#[test]
fn netty_does_not_end_what_stop_returns() {
    let mut with_rest = 0;
    for (_, script) in all_scripts() {
        let mut stops = script.steps.iter().filter(|step| matches!(step.op, Op::Stop));
        if let Some(first) = stops.next() {
            let (cancelled, rest) = first.events.split_last().unwrap();
            assert_eq!(*cancelled, Event::CancelledByStop(0), "script {}", script.name);
            assert_eq!(rest.len(), first.alive, "script {}", script.name);
            with_rest += usize::from(!rest.is_empty());
            // They are still counted: see the test above.
            assert!(
                stops.all(|step| step.events == [Event::CancelledByStop(0)] && step.alive == first.alive)
            );
        }
    }
    assert!(with_rest > 100, "{with_rest}");
}

// --- one by one -----------------------------------------------------------------------------------------------------

fn differing(name: &str) -> Script {
    trace::scripts("differs").into_iter().find(|script| script.name == name).unwrap()
}

/// What each step said: there, and here on both wheels.
#[track_caller]
fn assert_differs(script: &Script, netty: &[&str], ours: &[&str]) {
    let said = |events: &[Event], pending: i64| {
        let mut words: Vec<_> = events.iter().map(word).collect();
        words.push(pending.to_string());
        words.join(" ")
    };
    let netty_said: Vec<_> = script.steps.iter().map(|step| said(&step.events, step.pending)).collect();
    assert_eq!(netty_said, netty);
    for settings in WHEELS {
        let answers = replay::on_timer(script, settings);
        let we_said: Vec<_> = answers.iter().map(|(events, pending)| said(events, *pending as i64)).collect();
        assert_eq!(we_said, ours);
    }
    assert_ne!(netty, ours);
}

/// As in the traces.
fn word(event: &Event) -> String {
    match event {
        Event::Fired { tick, id } => format!("{tick}:{id}"),
        Event::Cancel { id, won } => format!("x{id}{}", if *won { "y" } else { "n" }),
        Event::Full => "full".into(),
        Event::Stopped => "stopped".into(),
        Event::Returned(id) => id.to_string(),
        Event::CancelledByStop(count) => format!("c{count}"),
        Event::Lost => "lost".into(),
    }
}

/// *A deadline on a tick*: it can be cancelled in Netty when it should have fired.
#[test]
fn netty_cancels_what_was_due_a_tick_ago() {
    assert_differs(
        &differing("exact-cancel"),
        &["1", "2", "2", "x1y 2", "2:0 0"],
        &["1", "2", "1:0 1:1 0", "x1n 0", "0"],
    );
}

/// *A deadline on a tick*.
#[test]
fn netty_stops_before_what_was_due_a_tick_ago() {
    assert_differs(&differing("exact-stop"), &["1", "1", "0 c0 1"], &["1", "1:0 0", "0"]);
}

/// *A cancelled timeout*, under a limit of one.
#[test]
fn netty_refuses_a_timeout_when_there_is_a_place() {
    assert_differs(
        &differing("limit-cancel"),
        &["1", "x0y 1", "full 1", "0", "1", "3:2 0"],
        &["1", "x0y 0", "1", "1", "full 1", "2:1 0"],
    );
}

/// *A refusal by a stopped timer*.
#[test]
fn netty_counts_what_a_stopped_timer_refuses() {
    assert_differs(
        &differing("refused"),
        &["1", "0 c0 1", "stopped 2", "stopped 3"],
        &["1", "0 0", "stopped 0", "stopped 0"],
    );
}

/// *More than 100 000 at a time*. The two that come after these are for the first tick and the second, as is the one
/// before.
#[test]
fn netty_makes_what_exceeds_a_hundred_thousand_wait_for_the_next_tick() {
    assert_differs(
        &differing("backlog"),
        &["1", "100000", "100001", "100002", "100002", "2:0 2:100000 2:100001 99999"],
        &["1", "100000", "100001", "100002", "1:100000 100001", "2:0 2:100001 99999"],
    );
}

/// *More than 100 000 at a time*. What comes after these is in the wrong order, and the worker makes two ticks in one go.
#[test]
fn netty_catches_up_in_the_order_of_the_slot() {
    assert_differs(
        &differing("backlog-late"),
        &["100000", "100001", "100002", "2:100000 2:100001 100000"],
        &["100000", "100001", "100002", "2:100001 2:100000 100000"],
    );
}

/// *A tick of less than a millisecond*.
#[test]
fn netty_makes_a_short_tick_longer() {
    let mut script = differing("short-tick");
    assert_eq!(script.asked, Size { tick: 250_000, slots: 8 });
    assert_eq!(script.netty, Size { tick: 1_000_000, slots: 8 });
    let netty: Vec<_> = script.steps.iter().flat_map(|step| &step.events).map(word).collect();
    assert_eq!(netty, ["1:0", "2:1", "c0"]);
    // As long as Netty's two.
    script.steps[2].op = Op::Run(8);
    for settings in WHEELS {
        let ours: Vec<_> =
            replay::on_timer(&script, settings).iter().flat_map(|(events, _)| events).map(word).collect();
        assert_eq!(ours, ["3:0", "5:1"]);
    }
}

/// *`stop` in the middle of `newTimeout`*: between its look at the timer's state and its push. Here a stop can come
/// anywhere, as `loom-tests/` prove; in this thread, where the clock is read.
#[test]
fn netty_loses_a_timeout_that_is_scheduled_while_it_stops() {
    ends(stop_within_add);
}

fn stop_within_add() {
    /// Stops the timer that reads it.
    #[derive(Clone, Default)]
    struct Stopper(Arc<Mutex<Option<HashedWheelTimer>>>, Arc<Mutex<Vec<Timeout>>>);
    impl Clock for Stopper {
        fn now(&self) -> Duration {
            let timer = self.0.lock().unwrap().take();
            self.1.lock().unwrap().extend(timer.iter().flat_map(HashedWheelTimer::stop));
            Duration::ZERO
        }
    }

    let script = differing("stop-within-add");
    let netty = &script.steps[1];
    assert!(matches!(netty.op, Op::StopWithinAdd));
    assert_eq!(netty.events, [Event::Returned(0), Event::Lost]);
    assert_eq!(netty.pending, 2);

    let clock = Stopper::default();
    let builder = replay::build(script.asked, HashedWheelTimer::builder()).clock(clock.clone());
    let (timer, _driver) = builder.build_driven().unwrap();
    let first = timer.new_timeout(|_| (), Duration::from_millis(10)).unwrap();
    *clock.0.lock().unwrap() = Some(timer.clone());
    let second = timer.new_timeout(|_| (), Duration::from_millis(10));
    assert!(clock.0.lock().unwrap().is_none(), "it was stopped in there");
    let mut returned = std::mem::take(&mut *clock.1.lock().unwrap());
    returned.extend(timer.stop());
    match second {
        Ok(second) => assert_eq!(returned, [first, second]),
        Err(NewTimeoutError::Stopped) => assert_eq!(returned, [first]),
        Err(other) => panic!("{other}"),
    }
    assert_eq!(timer.pending_timeouts(), 0);
}

/// No difference but in the type: a negative delay is none.
#[test]
fn netty_takes_a_negative_delay_for_none() {
    let script = differing("negative");
    let (expected, moved) = expected(&script);
    assert_eq!(moved, 0);
    for settings in WHEELS {
        assert_same(&script, &replay::on_timer(&script, settings), &expected);
    }
}

// --- what is no timeout's ----------------------------------------------------------------------------------------------

/// The difference: *a turn of the wheel that takes more than 146 years*.
#[test]
fn refuses_to_be_made_of_what_netty_refuses_and_rounds_as_netty_does() {
    let (mut refused, mut too_long) = (0, 0);
    for line in trace::lines("build") {
        let (asked, answer) = trace::halves(line.strip_prefix("build ").unwrap());
        let size = trace::size(&asked.split(' ').collect::<Vec<_>>());
        let ours = replay::build(size, HashedWheelTimer::builder()).build_driven();
        match (answer, ours) {
            ("refused", Err(_)) => refused += 1,
            ("refused", Ok(_)) => panic!("Netty refuses {size:?}"),
            (_, Err(BuildError::TickTooLong { max })) => {
                assert_eq!(max, Duration::from_nanos(((1 << 62) - 3) / size.slots as u64));
                too_long += 1;
            }
            (answer, ours) => {
                let (timer, _) = ours.unwrap();
                let ours =
                    Size { tick: timer.tick_duration().as_nanos() as u64, slots: timer.ticks_per_wheel() };
                assert_eq!(ours, trace::size(&answer.split(' ').collect::<Vec<_>>()));
            }
        }
    }
    assert!(refused > 5 && too_long > 1, "{refused}, {too_long}");
}

/// The difference: *a task that is running*.
#[test]
fn does_on_its_thread_what_netty_does_on_its_own() {
    let scripts = real::scripts();
    assert!(scripts.len() >= 40);
    assert!(scripts.iter().any(real::Script::interrupts_in_netty));
    for settings in WHEELS {
        // All at once: most of it is waiting.
        std::thread::scope(|scope| {
            for script in scripts.clone() {
                scope.spawn(move || ends(move || script.replay(settings)));
            }
        });
    }
}
