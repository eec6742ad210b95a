//! Compares this crate with the original: a thousand scripts have run on Netty's own
//! `HashedWheelTimer`, of the versions 4.1.48 and 4.2.7, and the recorded traces are compared with
//! what this crate does. `tests/netty-oracle/README.md` describes the format of the traces and the
//! command that makes them again. The tests need no Java.
//!
//! All results are the same, tick by tick and in the same order, except for the differences below.
//! They are on purpose. Each has a rule that states exactly where Netty behaves differently, and a
//! test that fails if Netty does not.
//!
//! * A deadline on a tick: Netty is a tick late. (So a cancel that is too late here succeeds in
//!   Netty.)
//! * A cancelled timeout: Netty counts it until its worker processes the cancellation. Until then
//!   it keeps its place under the limit.
//! * A timeout that is cancelled in the tick in which the worker reaches it: Netty 4.1.48 subtracts
//!   it from the count twice.
//! * `stop`: Netty before 4.1.111 does not cancel the timeouts that it returns. Both
//!   recorded versions continue to count them.
//! * A rejection by a stopped timer: Netty counts the timeout permanently.
//! * `stop` in the middle of `newTimeout`: Netty loses the timeout.
//! * More than 100 000 new timeouts at a time: Netty delays the rest until the next tick, and fires
//!   them in the order of their slot.
//! * A tick of less than a millisecond: Netty makes it one millisecond.
//! * A running task: Netty's `stop` interrupts it.
//! * A round of the wheel of more than 146 years: Netty accepts up to 292 years.
// Miri would take hours.
#![cfg(not(miri))]

#[path = "../netty-oracle/history.rs"]
mod history;
#[path = "../netty-oracle/real.rs"]
mod real;
#[path = "../netty-oracle/replay.rs"]
mod replay;
#[path = "../netty-oracle/trace.rs"]
mod trace;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Schedules, ends};
use hashed_wheel::{BuildError, Clock, HashedWheelTimer, NewTimeoutError, Timeout};

use history::{History, Ticks};
use replay::{Results, Settings};
use trace::{Event, Netty, Op, Script, Size, VERSIONS};

/// The families `differs`, `build` and `real` have separate tests.
const FAMILIES: [&str; 10] = [
    "alone", "around", "exact", "cancel", "goal", "chain", "limit", "stop", "random", "old",
];

/// On the hashed wheel and on the hierarchical wheel.
const WHEELS: [Settings; 2] = [|builder| builder, |builder| builder.hierarchical(true)];

fn all_scripts() -> impl Iterator<Item = (Netty, &'static str, Script)> {
    VERSIONS.into_iter().flat_map(|netty| {
        FAMILIES.into_iter().flat_map(move |family| {
            trace::scripts(netty, family)
                .into_iter()
                .map(move |script| (netty, family, script))
        })
    })
}

#[test]
fn all_scripts_have_the_same_results_as_netty() {
    let mut count = 0;
    for (_, family, script) in all_scripts() {
        assert_eq!(script.asked.tick, script.netty.tick);
        let (expected, moved) = expected(&script);
        assert_eq!(moved > 0, family == "exact", "{}", script.name);
        for settings in WHEELS {
            assert_same(&script, &replay::on_timer(&script, settings), &expected);
        }
        for results in replay::on_plain_wheels(&script).into_iter().flatten() {
            assert_same(&script, &results, &expected);
        }
        count += 1;
    }
    assert!(count > 1_800, "{count} scripts");
}

#[track_caller]
fn assert_same(script: &Script, ours: &Results, expected: &Results) {
    assert_eq!(ours.len(), expected.len());
    for (step, (ours, expected)) in ours.iter().zip(expected).enumerate() {
        assert_eq!(ours, expected, "script {}, step {}", script.name, step + 1);
    }
}

/// Returns what Netty did, corrected for its late ticks and as it looks from outside. Also returns
/// the number of corrected timeouts.
fn expected(script: &Script) -> (Results, usize) {
    let history = History::of(script);
    let mut results: Results = script
        .steps
        .iter()
        .map(|step| (step.events.clone(), step.alive))
        .collect();
    let moved = move_late_timeouts(script, &history, &mut results);
    for (step, (events, pending)) in results.iter_mut().enumerate() {
        // Checked in `on_timer` and in `netty_returns_and_counts_timeouts_at_stop`.
        events.retain(|event| !matches!(event, Event::CancelledByStop(_)));
        for event in events {
            if let Event::Fired { tick, .. } = event {
                // If several ticks are processed at once, they look like the last of them.
                *tick = (*tick).max(history.ticks[step].in_time);
            }
        }
        if matches!(script.steps[step].op, Op::Stop) {
            *pending = 0;
        }
    }
    (results, moved)
}

/// The difference: *a deadline on a tick*. In Netty, such a deadline is in the slot of the time
/// from this tick to the next, and the worker visits that slot when this time is over. If the tick
/// had already been processed, the next one is right.
fn move_late_timeouts(script: &Script, history: &History, results: &mut Results) -> usize {
    let mut moved = 0;
    for step in 0..results.len() {
        let mut late = Vec::new();
        for event in std::mem::take(&mut results[step].0) {
            match event {
                Event::Fired { tick, id } if is_late(script, history, tick, id) => {
                    late.push((tick - 1, id));
                }
                _ => results[step].0.push(event),
            }
        }
        moved += late.len();
        for (tick, id) in late {
            let processed_it =
                |processed: &Ticks| processed.before < tick && tick <= processed.last;
            let earlier = history.ticks.iter().position(processed_it).unwrap();
            results[earlier..step]
                .iter_mut()
                .for_each(|(_, pending)| *pending -= 1);
            let key = |event: &Event| match *event {
                Event::Fired { tick, id } => (tick, id),
                _ => panic!(
                    "script {}: with deadlines on a tick there are no other events",
                    script.name
                ),
            };
            let events = &mut results[earlier].0;
            let place = events.partition_point(|event| key(event) < (tick, id));
            events.insert(place, Event::Fired { tick, id });
            assert!(events.is_sorted_by_key(key), "in the order of scheduling");
        }
    }
    moved
}

fn is_late(script: &Script, history: &History, tick: u64, id: usize) -> bool {
    let known = &history.timeouts[id];
    let length = i128::from(script.netty.tick);
    let on_tick = known.deadline / length;
    let is_late = known.deadline % length == 0 && on_tick > known.after.into();
    assert!(
        !is_late || on_tick + 1 == tick.into(),
        "script {}, id {id}: Netty is not late",
        script.name
    );
    is_late
}

// --- Netty's counts ------------------------------------------------------------------------------

/// The differences: *a cancelled timeout*, and *a timeout that is cancelled in the tick in which
/// the worker reaches it*. Without these two, Netty's count is right.
#[test]
fn netty_counts_cancelled_timeouts_until_processed_and_subtracts_some_twice() {
    let (mut seen_waiting, mut seen_twice) = (0, 0);
    for (netty, family, script) in all_scripts() {
        let history = History::of(&script);
        let mut is_stopped = false;
        // Cancelled by `stop`, and still counted.
        let mut left = 0;
        for (index, step) in script.steps.iter().enumerate() {
            is_stopped |= matches!(step.op, Op::Stop);
            if let Some(Event::CancelledByStop(count)) = step.events.last() {
                left += *count as i64;
            }
            let (mut waiting, mut twice) = (0, 0);
            for cancelled in history
                .cancels
                .iter()
                .filter(|cancelled| cancelled.step <= index)
            {
                match (
                    is_stopped || cancelled.processed <= history.ticks[index].last,
                    cancelled.in_current_slot && netty.subtracts_twice,
                ) {
                    (false, false) => waiting += 1,
                    (true, true) => twice += 1,
                    _ => {}
                }
            }
            assert_eq!(
                step.pending,
                step.alive as i64 + left + waiting - twice,
                "script {}, step {}: {waiting} cancelled timeouts are still counted, {twice} were subtracted twice",
                script.name,
                index + 1
            );
            seen_waiting += waiting;
            seen_twice += twice;
            assert!(
                waiting == 0
                    || ["cancel", "goal", "random", "limit", "old", "stop"].contains(&family)
            );
            assert!(twice == 0 || ["goal", "random"].contains(&family));
        }
    }
    assert!(
        seen_waiting > 100 && seen_twice > 100,
        "{seen_waiting}, {seen_twice}"
    );
}

/// The difference: *stop*.
#[test]
fn netty_returns_and_counts_timeouts_at_stop() {
    let mut with_rest = 0;
    for (netty, _, script) in all_scripts() {
        let mut stops = script
            .steps
            .iter()
            .filter(|step| matches!(step.op, Op::Stop));
        if let Some(first) = stops.next() {
            let (cancelled, rest) = first.events.split_last().unwrap();
            let (cancelled_now, alive) = if netty.stop_cancels {
                (rest.len(), 0)
            } else {
                (0, rest.len())
            };
            assert_eq!(
                *cancelled,
                Event::CancelledByStop(cancelled_now),
                "script {}",
                script.name
            );
            assert_eq!(first.alive, alive, "script {}", script.name);
            with_rest += usize::from(!rest.is_empty());
            // They are still counted: see the test above.
            assert!(stops.all(
                |step| step.events == [Event::CancelledByStop(0)] && step.alive == first.alive
            ));
        }
    }
    assert!(with_rest > 200, "{with_rest}");
}

// --- the differences -----------------------------------------------------------------------------

/// Returns the script as it ran on 4.1. On 4.2 the result is the same, except for what `stop`
/// cancels.
fn differing(name: &str) -> Script {
    let [first, second] = VERSIONS.map(|netty| {
        trace::scripts(netty, "differs")
            .into_iter()
            .find(|script| script.name == name)
            .unwrap()
    });
    let steps = |script: &Script| -> Vec<_> {
        let is_kept = |event: &&Event| !matches!(event, Event::CancelledByStop(_));
        let events = |step: &trace::Step| {
            step.events
                .iter()
                .filter(is_kept)
                .cloned()
                .collect::<Vec<_>>()
        };
        script
            .steps
            .iter()
            .map(|step| (events(step), step.pending))
            .collect()
    };
    assert_eq!(steps(&first), steps(&second));
    first
}

/// Compares the results of each step: those of Netty, and those of this crate on both wheels.
#[track_caller]
fn assert_differs(script: &Script, netty: &[&str], ours: &[&str]) {
    let text = |events: &[Event], pending: i64| {
        let mut words: Vec<_> = events.iter().map(word).collect();
        words.push(pending.to_string());
        words.join(" ")
    };
    let netty_texts: Vec<_> = script
        .steps
        .iter()
        .map(|step| text(&step.events, step.pending))
        .collect();
    assert_eq!(netty_texts, netty);
    for settings in WHEELS {
        let results = replay::on_timer(script, settings);
        let our_texts: Vec<_> = results
            .iter()
            .map(|(events, pending)| text(events, *pending as i64))
            .collect();
        assert_eq!(our_texts, ours);
    }
    assert_ne!(netty, ours);
}

/// The format of the traces.
fn word(event: &Event) -> String {
    match event {
        Event::Fired { tick, id } => format!("{tick}:{id}"),
        Event::Cancel { id, succeeded } => format!("x{id}{}", if *succeeded { "y" } else { "n" }),
        Event::Full => "full".into(),
        Event::Stopped => "stopped".into(),
        Event::Returned(id) => id.to_string(),
        Event::CancelledByStop(count) => format!("c{count}"),
        Event::Lost => "lost".into(),
    }
}

/// *A deadline on a tick*: in Netty the timeout can still be cancelled when it should have fired.
#[test]
fn netty_can_cancel_a_timeout_one_tick_after_its_deadline() {
    assert_differs(
        &differing("exact-cancel"),
        &["1", "2", "2", "x1y 2", "2:0 0"],
        &["1", "2", "1:0 1:1 0", "x1n 0", "0"],
    );
}

/// *A deadline on a tick*.
#[test]
fn netty_can_stop_before_a_timeout_that_was_due_one_tick_ago() {
    assert_differs(
        &differing("exact-stop"),
        &["1", "1", "0 c0 1"],
        &["1", "1:0 0", "0"],
    );
}

/// *A cancelled timeout*, with a limit of one.
#[test]
fn netty_rejects_a_timeout_although_a_place_is_free() {
    assert_differs(
        &differing("limit-cancel"),
        &["1", "x0y 1", "full 1", "0", "1", "3:2 0"],
        &["1", "x0y 0", "1", "1", "full 1", "2:1 0"],
    );
}

/// *A rejection by a stopped timer*.
#[test]
fn netty_counts_timeouts_that_a_stopped_timer_rejects() {
    assert_differs(
        &differing("refused"),
        &["1", "0 c0 1", "stopped 2", "stopped 3"],
        &["1", "0 0", "stopped 0", "stopped 0"],
    );
}

/// *More than 100 000 new timeouts at a time*. The two timeouts after these are for the first and
/// the second tick, and so is the one before.
#[test]
fn netty_delays_more_than_a_hundred_thousand_until_the_next_tick() {
    assert_differs(
        &differing("backlog"),
        &[
            "1",
            "100000",
            "100001",
            "100002",
            "100002",
            "2:0 2:100000 2:100001 99999",
        ],
        &[
            "1",
            "100000",
            "100001",
            "100002",
            "1:100000 100001",
            "2:0 2:100001 99999",
        ],
    );
}

/// *More than 100 000 new timeouts at a time*. The timeouts after these come in the wrong order,
/// and the worker processes two ticks at once.
#[test]
fn netty_catches_up_in_the_order_of_the_slot_list() {
    assert_differs(
        &differing("backlog-late"),
        &["100000", "100001", "100002", "2:100000 2:100001 100000"],
        &["100000", "100001", "100002", "2:100001 2:100000 100000"],
    );
}

/// *A tick of less than a millisecond*.
#[test]
fn netty_lengthens_a_short_tick() {
    let mut script = differing("short-tick");
    assert_eq!(
        script.asked,
        Size {
            tick: 250_000,
            slots: 8
        }
    );
    assert_eq!(
        script.netty,
        Size {
            tick: 1_000_000,
            slots: 8
        }
    );
    let netty: Vec<_> = script
        .steps
        .iter()
        .flat_map(|step| &step.events)
        .map(word)
        .collect();
    assert_eq!(netty, ["1:0", "2:1", "c0"]);
    // The same time as two of Netty's ticks.
    script.steps[2].op = Op::Run(8);
    for settings in WHEELS {
        let ours: Vec<_> = replay::on_timer(&script, settings)
            .iter()
            .flat_map(|(events, _)| events)
            .map(word)
            .collect();
        assert_eq!(ours, ["3:0", "5:1"]);
    }
}

/// *`stop` in the middle of `newTimeout`*, between the check of the timer's state and the push to
/// the queue. In this crate a stop can come anywhere, as the models in `loom-tests/` prove. In this
/// single-threaded test it comes when the clock is read.
#[test]
fn netty_loses_a_timeout_that_is_scheduled_while_it_stops() {
    ends(stop_within_add);
}

fn stop_within_add() {
    /// Stops the timer that reads it.
    #[derive(Clone, Default)]
    struct Stopper(
        Arc<Mutex<Option<HashedWheelTimer>>>,
        Arc<Mutex<Vec<Timeout>>>,
    );
    impl Clock for Stopper {
        fn now(&self) -> Duration {
            let timer = self.0.lock().unwrap().take();
            self.1
                .lock()
                .unwrap()
                .extend(timer.iter().flat_map(HashedWheelTimer::stop));
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
    let first = timer.schedule(|_| (), Duration::from_millis(10));
    *clock.0.lock().unwrap() = Some(timer.clone());
    let second = timer.new_timeout(|_| (), Duration::from_millis(10));
    assert!(clock.0.lock().unwrap().is_none(), "the clock stopped it");
    let mut returned = std::mem::take(&mut *clock.1.lock().unwrap());
    returned.extend(timer.stop());
    match second {
        Ok(second) => assert_eq!(returned, [first, second]),
        Err(NewTimeoutError::Stopped) => assert_eq!(returned, [first]),
        Err(other) => panic!("{other}"),
    }
    assert_eq!(timer.pending_timeouts(), 0);
}

/// Only the type differs: a negative delay counts as zero.
#[test]
fn netty_treats_a_negative_delay_as_zero() {
    let script = differing("negative");
    let (expected, moved) = expected(&script);
    assert_eq!(moved, 0);
    for settings in WHEELS {
        assert_same(&script, &replay::on_timer(&script, settings), &expected);
    }
}

// --- settings and the real thread ----------------------------------------------------------------

/// The difference: *a round of the wheel of more than 146 years*.
#[test]
fn build_rejects_the_same_settings_as_netty_and_rounds_like_netty() {
    let (mut rejected, mut too_long) = (0, 0);
    for line in VERSIONS
        .into_iter()
        .flat_map(|netty| trace::lines(netty, "build"))
    {
        let (asked, answer) = trace::halves(line.strip_prefix("build ").unwrap());
        let size = trace::size(&asked.split(' ').collect::<Vec<_>>());
        let ours = replay::build(size, HashedWheelTimer::builder()).build_driven();
        match (answer, ours) {
            ("refused", Err(_)) => rejected += 1,
            ("refused", Ok(_)) => panic!("Netty rejects {size:?}"),
            (_, Err(BuildError::TickTooLong { max })) => {
                assert_eq!(
                    max,
                    Duration::from_nanos(((1 << 62) - 3) / size.slots as u64)
                );
                too_long += 1;
            }
            (answer, ours) => {
                let (timer, _) = ours.unwrap();
                let ours = Size {
                    tick: timer.tick_duration().as_nanos() as u64,
                    slots: timer.ticks_per_wheel(),
                };
                assert_eq!(ours, trace::size(&answer.split(' ').collect::<Vec<_>>()));
            }
        }
    }
    assert!(rejected > 10 && too_long > 2, "{rejected}, {too_long}");
}

/// The difference: *a running task*.
#[test]
fn a_timer_with_a_thread_behaves_like_netty() {
    let scripts = real::scripts();
    assert!(scripts.len() >= 40);
    assert!(scripts.iter().any(real::Script::interrupts_in_netty));
    for settings in WHEELS {
        // All scripts at once, because most of the time they wait.
        std::thread::scope(|scope| {
            for script in scripts.clone() {
                scope.spawn(move || ends(move || script.replay(settings)));
            }
        });
    }
}
