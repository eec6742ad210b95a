//! The state after frames, and after the end of a program.

use std::net::Ipv4Addr;

use super::*;
use crate::cli::tests::{after_20_s, assert_shows, draw, hashed, receive, snapshot, state, wheel};

#[test]
fn status_describes_the_connection() {
    let mut state = state();
    let now = Instant::now();
    state.receive(Message::Gone(Why::Silent), now);
    assert_shows(
        &draw(&state, 80, 24),
        &["the program at 127.0.0.1:7070 sends nothing"],
    );
    state.receive(Message::Gone(Why::NotListening), now);
    assert_shows(
        &draw(&state, 80, 24),
        &["no program listens on 127.0.0.1:7070: is it running"],
    );
    state.receive(Message::Gone(Why::Invalid), now);
    state.receive(Message::Gone(Why::Silent), now);
    assert_shows(&draw(&state, 80, 24), &["does not send timer states"]);
    state.receive(Message::Gone(Why::TooLong), now);
    state.receive(Message::Gone(Why::Silent), now);
    assert_shows(
        &draw(&state, 80, 24),
        &["sends too much: above 4 MiB at a time"],
    );
    receive(&mut state, 1, vec![snapshot(1, None)]);
    assert_shows(&draw(&state, 80, 24), &["● live"]);
    state.receive(Message::Gone(Why::Ended), now);
    // The last state stays.
    state.receive(Message::Gone(Why::NotListening), now);
    state.receive(Message::Gone(Why::Silent), now);
    assert_shows(&draw(&state, 80, 24), &["■ the program has ended", "2,001"]);
}

#[test]
fn silence_is_reported() {
    let mut state = hashed();
    let (_never, nothing) = std::sync::mpsc::channel();
    state.receive_all(&nothing, Instant::now() + Duration::from_secs(9));
    let status = state.status();
    assert!(
        ["silent for 8s", "silent for 9s"].contains(&&*status),
        "{status}"
    );
}

#[test]
fn new_program_starts_from_zero() {
    let mut state = hashed();
    state.receive(Message::Gone(Why::Ended), Instant::now());
    receive(&mut state, 1, vec![snapshot(500, None)]);
    let timer = state.shown().unwrap();
    assert_eq!(
        (timer.rate(|timer| timer.scheduled), timer.pending(10)),
        (0.0, vec![2_500])
    );
    // A selected timer is shown as soon as it exists again.
    let other = |seconds| Snapshot {
        number: 1,
        name: "other".into(),
        ..snapshot(seconds, None)
    };
    receive(&mut state, 2, vec![snapshot(500, None), other(1)]);
    state.show_next();
    state.receive(Message::Gone(Why::Ended), Instant::now());
    receive(&mut state, 1, vec![snapshot(501, None)]);
    receive(&mut state, 2, vec![snapshot(502, None), other(1)]);
    assert_eq!(state.shown().unwrap().now.name, "other");
}

#[test]
fn timers_of_the_same_name_are_distinguished() {
    let mut state = state();
    let timers = |numbers: &[u64]| {
        let numbered = |number: &u64| Snapshot {
            number: *number,
            pending: *number,
            ..snapshot(1, None)
        };
        numbers.iter().map(numbered).collect::<Vec<_>>()
    };
    receive(&mut state, 1, timers(&[1, 2, 3]));
    for (age, place) in [(2, 2), (3, 3), (4, 1), (5, 2)] {
        state.show_next();
        receive(&mut state, age, timers(&[1, 2, 3]));
        assert_eq!(state.position_of_shown(), (place, 3));
    }
    // The first one ends. The others keep their histories.
    receive(&mut state, 6, timers(&[2, 3]));
    assert_eq!(state.position_of_shown(), (1, 2));
    let past: Vec<_> = state
        .shown()
        .unwrap()
        .past
        .iter()
        .map(|one| one.1)
        .collect();
    assert_eq!(past, [2; 6]);
    // A new one has none.
    receive(&mut state, 7, timers(&[4]));
    assert_eq!(state.shown().unwrap().past.len(), 1);
}

#[test]
fn long_turn_differs_from_an_idle_worker() {
    let one_turn = |wheel| Snapshot {
        turns: 9,
        busy: Duration::ZERO,
        ..snapshot(0, wheel)
    };
    let mut state = state();
    receive(&mut state, 3, vec![one_turn(None)]);
    assert_shows(
        &draw(&state, 100, 32),
        &["the worker is in a turn", "● live"],
    );
    receive(&mut state, 4, vec![one_turn(wheel(vec![]))]);
    assert_shows(
        &draw(&state, 100, 32),
        &["the wheel was never used", "● live"],
    );
    receive(&mut state, 9, vec![one_turn(None)]);
    let picture = draw(&state, 100, 32);
    assert_eq!(picture.matches("in a turn for 5s").count(), 2, "{picture}");
    assert!(!picture.contains("live"), "{picture}");
    assert_eq!(state.shown().unwrap().load(), 1.0);
    // Another turn.
    receive(
        &mut state,
        10,
        vec![Snapshot {
            turns: 10,
            ..one_turn(None)
        }],
    );
    assert_shows(&draw(&state, 100, 32), &["● live", "busy 0.0 %"]);
    // The timer has never been seen between two turns.
    let mut state = after_20_s(None);
    receive(
        &mut state,
        22,
        vec![Snapshot {
            scheduled: 30_000,
            ..snapshot(20, None)
        }],
    );
    assert_shows(
        &draw(&state, 100, 32),
        &["the worker is in a turn", "in a turn for 2s"],
    );
}

#[test]
fn too_large_wheel_is_not_shown() {
    let mut state = state();
    for age in [1, 9] {
        let large = Snapshot {
            ticks_per_wheel: 1 << 17,
            turns: 5,
            ..snapshot(9, None)
        };
        receive(&mut state, age, vec![large]);
    }
    assert_shows(
        &draw(&state, 100, 32),
        &["too many slots to show", "● live"],
    );
}

#[test]
fn number_of_kept_states_is_limited() {
    let kept = |state: &State| {
        let timer = state.shown().unwrap();
        (timer.past.len(), timer.recent.len())
    };
    let mut one = state();
    // Its age does not grow.
    (0..5_000).for_each(|_| receive(&mut one, 1, vec![snapshot(1, None)]));
    assert_eq!(kept(&one), (max_kept(PAST), max_kept(LATENESS)));
    let mut one = state();
    for frames in 0..1_000 {
        let frame = Frame {
            program: "server".into(),
            age: INTERVAL * frames,
            timers: vec![snapshot(1, None)],
        };
        one.receive(Message::Frame(frame), Instant::now());
    }
    // The last ten seconds suffice for everything but the pending timeouts.
    assert_eq!(kept(&one), (601, 101));
}

#[test]
fn last_wheel_stays_during_a_turn() {
    let mut state = hashed();
    receive(&mut state, 21, vec![snapshot(21, None)]);
    assert_shows(&draw(&state, 80, 24), &["▲ 133", "2,021"]);
    receive(
        &mut state,
        22,
        vec![Snapshot {
            is_stopped: true,
            ..snapshot(22, None)
        }],
    );
    assert_shows(&draw(&state, 80, 24), &["■ the timer is stopped"]);
    assert!(state.shown().unwrap().wheel.is_none());
}

fn named(name: &str) -> Snapshot {
    Snapshot {
        number: name.as_bytes()[0].into(),
        name: name.into(),
        ..snapshot(1, None)
    }
}

fn shown(state: &State) -> String {
    state.shown().unwrap().now.name.clone()
}

#[test]
fn shown_timer_is_selected_by_name() {
    let mut state = State::new((Ipv4Addr::LOCALHOST, 1).into(), Some("c".into()));
    receive(&mut state, 1, vec![named("a"), named("b")]);
    assert_eq!(shown(&state), "a");
    receive(&mut state, 2, vec![named("a"), named("b"), named("c")]);
    assert_eq!(
        (shown(&state), state.position_of_shown()),
        ("c".into(), (3, 3))
    );
    state.show_next();
    state.show_next();
    assert_eq!(shown(&state), "b");
    receive(&mut state, 3, vec![named("b"), named("c")]);
    assert_eq!(shown(&state), "b");
    let next = Snapshot {
        number: 1,
        ..named("b")
    };
    receive(&mut state, 3, vec![named("c"), next]);
    assert_eq!(shown(&state), "b");
    receive(&mut state, 4, vec![named("d")]);
    assert_eq!(shown(&state), "d");
    receive(&mut state, 5, vec![]);
    assert!(state.shown().is_none());
    state.show_next();
}

#[test]
fn tab_replaces_an_earlier_choice() {
    let mut state = State::new((Ipv4Addr::LOCALHOST, 1).into(), Some("c".into()));
    receive(&mut state, 1, vec![named("a"), named("b")]);
    state.show_next();
    receive(&mut state, 2, vec![named("a"), named("b"), named("c")]);
    assert_eq!(shown(&state), "b");
}

#[test]
fn rates_cover_the_last_second() {
    let mut state = state();
    let scheduled = |scheduled| {
        vec![Snapshot {
            scheduled,
            ..snapshot(0, None)
        }]
    };
    let rate = |state: &State| state.shown().unwrap().rate(|timer| timer.scheduled);
    receive(&mut state, 1, scheduled(50));
    assert_eq!(rate(&state), 0.0);
    receive(&mut state, 2, scheduled(150));
    assert_eq!(rate(&state), 100.0);
    receive(&mut state, 6, scheduled(350));
    assert_eq!(rate(&state), 50.0, "there were no frames for a while");
}

#[test]
fn lateness_covers_the_last_ten_seconds() {
    let bound = |millis| Some(Duration::from_millis(millis));
    let counts = |state: &State| state.shown().unwrap().lateness();
    let mut state = state();
    for (age, on_time, late) in [(1, 10, 1_000), (5, 20, 1_000), (15, 35, 1_001)] {
        let lateness = vec![(bound(1), on_time), (bound(2), 0), (None, late)];
        receive(
            &mut state,
            age,
            vec![Snapshot {
                lateness,
                ..snapshot(age, None)
            }],
        );
    }
    assert_eq!(counts(&state), [(bound(1), 15), (bound(2), 0), (None, 1)]);
    // Beyond all bounds, but the maximum is known.
    assert_shows(&draw(&state, 80, 24), &["median ≤ 1ms, p99 ≤ 15ms"]);
    // The maximum may be less than the bound.
    let lateness = vec![(bound(1), 50), (bound(2), 9), (None, 1_001)];
    let worst_lateness = Duration::from_micros(1_300);
    receive(
        &mut state,
        16,
        vec![Snapshot {
            lateness,
            worst_lateness,
            ..snapshot(16, None)
        }],
    );
    assert_shows(&draw(&state, 80, 24), &["p99 ≤ 1.3ms"]);
}

#[test]
fn history_fills_from_the_right() {
    let mut state = state();
    for (age, pending) in [(1, 5), (2, 9), (31, 7)] {
        receive(
            &mut state,
            age,
            vec![Snapshot {
                pending,
                ..snapshot(age, None)
            }],
        );
    }
    let pending = |parts| state.shown().unwrap().pending(parts);
    assert_eq!(pending(2), [5, 9], "the maximum of each part");
    // Ten seconds each. A part without frames has the value of the previous part.
    assert_eq!(pending(6), [5, 9, 9, 7]);
    assert!(pending(0).is_empty());
}
