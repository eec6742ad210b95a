use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use hashed_wheel_examples::top::{Frame, Level, Snapshot, Wheel};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::attach::Heard;
use crate::draw;
use crate::state::{State, quantile};

const TICK: Duration = Duration::from_millis(10);

fn state() -> State {
    State::new((Ipv4Addr::LOCALHOST, 7070).into(), None)
}

fn level(ticks_per_slot: u64, slots: Vec<usize>, present: usize) -> Level {
    Level { ticks_per_slot, size: slots.len(), present, slots }
}

fn wheel(levels: Vec<Level>) -> Option<Wheel> {
    Some(Wheel { tick: 1_234, on_the_way: 17, levels })
}

/// A timer that has run for so many seconds, at 1 000 timeouts in each, of which one in ten expires.
fn snapshot(seconds: u64, wheel: Option<Wheel>) -> Snapshot {
    let bounds = [1, 2, 4, 8, 16, 32].map(|sixteenths| Some(TICK * sixteenths / 16));
    Snapshot {
        name: "connections".into(),
        tick: TICK,
        ticks_per_wheel: 512,
        wheel,
        pending: 2_000 + seconds,
        scheduled: 1_000 * seconds + 7,
        expired: 100 * seconds,
        cancelled: 900 * seconds,
        reset: 12_345 * seconds,
        turns: 100 * seconds,
        busy: Duration::from_millis(125) * seconds as u32,
        longest_turn: Duration::from_micros(1_530),
        worst_lateness: Duration::from_millis(15),
        lateness: bounds.into_iter().chain([None]).zip([0, 98 * seconds, 0, 0, 2 * seconds, 0, 0]).collect(),
        ..Snapshot::default()
    }
}

fn hear(state: &mut State, age: u64, timers: Vec<Snapshot>) {
    let frame = Frame { program: "server".into(), age: Duration::from_secs(age), timers };
    state.hear(Heard::Frame(frame), Instant::now());
}

/// One timer, seen for 20 s.
fn after_a_while(wheel: Option<Wheel>) -> State {
    let mut state = state();
    for seconds in 1..=20 {
        hear(&mut state, seconds, vec![snapshot(seconds, wheel.clone())]);
    }
    state
}

fn hashed() -> State {
    after_a_while(wheel(vec![level(1, (0..512).map(|slot| slot % 7).collect(), 133)]))
}

fn hierarchical() -> State {
    let levels = [1, 64, 64 * 64].map(|ticks| level(ticks, (0..64).collect(), 33));
    after_a_while(wheel(levels.to_vec()))
}

fn draw(state: &State, width: u16, height: u16) -> String {
    // Not from zero on: who takes an area's size for its end goes beyond it.
    let mut buf = Buffer::empty(Rect::new(3, 2, width, height));
    draw::all(state, buf.area, &mut buf);
    let rows = buf.content().chunks(usize::from(width).max(1));
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
}

#[track_caller]
fn assert_shows(picture: &str, texts: &[&str]) {
    for text in texts {
        assert!(picture.contains(text), "no {text:?} in\n{picture}");
    }
}

// --- pictures -----------------------------------------------------------------------------------------------------------

#[test]
fn any_size_will_do_for_any_state() {
    let mut ended = hashed();
    ended.hear(Heard::Ended, Instant::now());
    let slots = |slots, most| after_a_while(wheel(vec![level(1, vec![most; slots], slots - 1)]));
    let mut stopped = state();
    hear(&mut stopped, 1, vec![Snapshot { is_stopped: true, ..Snapshot::default() }]);
    let many = (0..40).map(|n| level(1 << n, vec![1, 0], 1)).collect();
    let states = [
        state(),
        hashed(),
        hierarchical(),
        ended,
        stopped,
        after_a_while(None),
        after_a_while(wheel(vec![])),
        after_a_while(wheel(vec![level(u64::MAX, vec![0, 0], 1)])),
        after_a_while(wheel(many)),
        slots(1, 0),
        slots(2, 1),
        slots(1_024, usize::MAX / 1_024),
    ];
    let sides = [0, 1, 2, 3, 5, 10, 23, 40, 64, 120];
    for (number, state) in states.iter().enumerate() {
        for width in sides {
            for height in sides {
                let picture = draw(state, width, height);
                assert!(picture.lines().count() <= height.into(), "state {number}, {width}x{height}");
            }
        }
    }
}

#[test]
fn all_is_there_in_a_small_terminal_and_in_a_large_one() {
    for (width, height) in [(80, 24), (100, 32), (120, 40), (200, 60)] {
        let picture = draw(&hashed(), width, height);
        assert_shows(
            &picture,
            &[
                "server: connections",
                "● live",
                "512 slots of 10 ms",
                "tick 1,234",
                "▲ 133",
                "pending, 60 s",
                "2,020, 17 on the way",
                "scheduled       1,000/s         20,007",
                "expired           100/s          2,000",
                "cancelled         900/s         18,000",
                "re-armed       12,345/s        246,900",
                "refused             0/s              0",
                "busy 12.5 % of the time",
                "100 turns/s, 0 wake-ups/s",
                "longest turn 1.53 ms",
                "worst ever 15 ms",
                "half ≤ 1.25 ms, 99 % ≤ 10 ms",
            ],
        );
        // The circle, and where its quarters are.
        assert_shows(&picture, &["128", "256", "384"]);
        assert!(picture.chars().any(|char| ('\u{2801}'..='\u{28ff}').contains(&char)), "{picture}");
    }
}

#[test]
fn each_level_has_a_row() {
    for (width, height) in [(80, 24), (120, 40), (50, 40)] {
        let picture = draw(&hierarchical(), width, height);
        assert_shows(
            &picture,
            &["3 levels", "in slots of 10 ms", "in slots of 640 ms", "in slots of 41 s", "2,016", "▲ 33"],
        );
        assert_eq!(picture.matches("▲ 33").count(), 3);
    }
}

#[test]
fn a_narrow_terminal_has_the_most_important_things() {
    assert_shows(&draw(&hashed(), 40, 30), &["slots of 10 ms", "▲ 133", "2,020", "scheduled"]);
    assert_shows(&draw(&hashed(), 30, 10), &["▲ 133", "2,020"]);
}

#[test]
fn the_hand_is_below_its_slot() {
    for present in [0, 5, 7] {
        let mut slots = vec![0; 8];
        slots[present] = 1;
        // 58 columns and a frame: 7 for each slot.
        let picture = draw(&after_a_while(wheel(vec![level(1, slots, present)])), 60, 12);
        let column = |of| {
            let line = picture.lines().find(|line| line.contains(of)).expect("it is there");
            line.chars().position(|char| char == of)
        };
        assert_eq!(column('▲'), Some(1 + present * 7), "{picture}");
        assert_eq!(column('█'), column('▲'), "{picture}");
    }
}

#[test]
fn problems_are_named_when_there_are_some() {
    assert!(!draw(&hashed(), 100, 32).contains("slow tasks"));
    let mut state = state();
    let troubled = Snapshot { slow: 3, panicked: 2, long_turns: 1, dropped: 4, ..snapshot(1, None) };
    hear(&mut state, 1, vec![troubled]);
    assert_shows(&draw(&state, 100, 24), &["long turns 1, slow tasks 3, panics 2, dropped 4"]);
}

#[test]
fn a_time_has_three_digits() {
    for (nanos, text) in [
        (0, "0"),
        (1, "1 ns"),
        (999, "999 ns"),
        (1_530, "1.53 µs"),
        (625_000, "625 µs"),
        (999_400, "999 µs"),
        (999_600, "1 ms"),
        (10_000_000, "10 ms"),
        (15_720_000, "15.7 ms"),
        (99_960_000, "100 ms"),
        (2_560_000_000, "2.56 s"),
        (40_960_000_000, "41 s"),
        (2_621_440_000_000, "43.7 min"),
        (86_400_000_000_000, "1 d"),
    ] {
        assert_eq!(draw::span(Duration::from_nanos(nanos)), text);
    }
    assert_eq!(draw::span(Duration::MAX), "584542046091 y");
}

// --- what is known ------------------------------------------------------------------------------------------------------

#[test]
fn it_says_how_it_stands_with_the_program() {
    let mut state = state();
    let now = Instant::now();
    state.hear(Heard::Nobody, now);
    assert_shows(&draw(&state, 80, 24), &["nobody is at 127.0.0.1:7070: start an example with --top"]);
    state.hear(Heard::Nonsense, now);
    assert_shows(&draw(&state, 80, 24), &["does not speak of timers"]);
    hear(&mut state, 1, vec![snapshot(1, None)]);
    assert_shows(&draw(&state, 80, 24), &["● live"]);
    state.hear(Heard::Ended, now);
    // The last picture stays.
    state.hear(Heard::Nobody, now);
    assert_shows(&draw(&state, 80, 24), &["■ the program has ended", "2,001"]);
}

#[test]
fn who_says_nothing_is_silent() {
    let mut state = hashed();
    let (_never, nothing) = std::sync::mpsc::channel();
    state.hear_all(&nothing, Instant::now() + Duration::from_secs(9));
    let status = state.status();
    assert!(["silent for 8 s", "silent for 9 s"].contains(&&*status), "{status}");
}

#[test]
fn another_program_begins_from_zero() {
    let mut state = hashed();
    state.hear(Heard::Ended, Instant::now());
    hear(&mut state, 1, vec![snapshot(500, None)]);
    let timer = state.shown().unwrap();
    assert_eq!((timer.rate(|timer| timer.scheduled), timer.pending(10)), (0.0, vec![2_500]));
    // What was chosen is shown as soon as it is there again.
    let other = |seconds| Snapshot { name: "other".into(), ..snapshot(seconds, None) };
    hear(&mut state, 2, vec![snapshot(500, None), other(1)]);
    state.show_next();
    state.hear(Heard::Ended, Instant::now());
    hear(&mut state, 1, vec![snapshot(501, None)]);
    hear(&mut state, 2, vec![snapshot(502, None), other(1)]);
    assert_eq!(state.shown().unwrap().now.name, "other");
    state.show_next();
    // Another timer of the same name, too.
    hear(&mut state, 3, vec![snapshot(1, None)]);
    assert_eq!(state.shown().unwrap().pending(10), [2_001]);
}

#[test]
fn the_wheel_stays_while_there_is_a_turn() {
    let mut state = hashed();
    hear(&mut state, 21, vec![snapshot(21, None)]);
    assert_shows(&draw(&state, 80, 24), &["▲ 133", "2,021"]);
    hear(&mut state, 22, vec![Snapshot { is_stopped: true, ..snapshot(22, None) }]);
    assert_shows(&draw(&state, 80, 24), &["■ the timer is stopped"]);
    assert!(state.shown().unwrap().wheel.is_none());
}

#[test]
fn the_shown_timer_is_known_by_its_name() {
    let named = |name: &str| Snapshot { name: name.into(), ..snapshot(1, None) };
    let shown = |state: &State| state.shown().unwrap().now.name.clone();
    let mut state = State::new((Ipv4Addr::LOCALHOST, 1).into(), Some("c".into()));
    hear(&mut state, 1, vec![named("a"), named("b")]);
    assert_eq!(shown(&state), "a");
    hear(&mut state, 2, vec![named("a"), named("b"), named("c")]);
    assert_eq!((shown(&state), state.place()), ("c".into(), (3, 3)));
    state.show_next();
    state.show_next();
    assert_eq!(shown(&state), "b");
    hear(&mut state, 3, vec![named("b"), named("c")]);
    assert_eq!(shown(&state), "b");
    hear(&mut state, 4, vec![named("d")]);
    assert_eq!(shown(&state), "d");
    hear(&mut state, 5, vec![]);
    assert!(state.shown().is_none());
    state.show_next();
}

#[test]
fn rates_are_those_of_the_last_second() {
    let mut state = state();
    let scheduled = |scheduled| vec![Snapshot { scheduled, ..snapshot(0, None) }];
    let rate = |state: &State| state.shown().unwrap().rate(|timer| timer.scheduled);
    hear(&mut state, 1, scheduled(50));
    assert_eq!(rate(&state), 0.0);
    hear(&mut state, 2, scheduled(150));
    assert_eq!(rate(&state), 100.0);
    hear(&mut state, 6, scheduled(350));
    assert_eq!(rate(&state), 50.0, "nothing was heard for a while");
}

#[test]
fn lateness_is_that_of_the_last_ten_seconds() {
    let bound = |millis| Some(Duration::from_millis(millis));
    let counts = |state: &State| state.shown().unwrap().lateness();
    let mut state = state();
    for (age, on_time, late) in [(1, 10, 1_000), (5, 20, 1_000), (15, 35, 1_001)] {
        let lateness = vec![(bound(1), on_time), (bound(2), 0), (None, late)];
        hear(&mut state, age, vec![Snapshot { lateness, ..snapshot(age, None) }]);
    }
    assert_eq!(counts(&state), [(bound(1), 15), (bound(2), 0), (None, 1)]);
    assert_eq!(quantile(&counts(&state), 0.5), bound(1));
    assert_eq!(quantile(&counts(&state), 0.99), None);
    assert_eq!(quantile(&[], 0.5), None);
    assert_shows(&draw(&state, 80, 24), &["half ≤ 1 ms, 99 % beyond all bounds"]);
}

#[test]
fn the_past_fills_up_from_the_right() {
    let mut state = state();
    for (age, pending) in [(1, 5), (2, 9), (31, 7)] {
        hear(&mut state, age, vec![Snapshot { pending, ..snapshot(age, None) }]);
    }
    let pending = |parts| state.shown().unwrap().pending(parts);
    assert_eq!(pending(2), [5, 9], "the most in each");
    // Ten seconds each: what was not heard of is as it was before.
    assert_eq!(pending(6), [5, 9, 9, 7]);
    assert!(pending(0).is_empty());
}
