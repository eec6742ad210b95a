//! Pictures of states, and frames that are rejected.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::frame::{Frame, Level, MAX_SENT_SLOTS, MAX_TIMERS, Snapshot, Wheel};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;

use super::attach::{Message, Why, is_valid};
use super::state::State;
use super::{draw, style};

const TICK: Duration = Duration::from_millis(10);

pub(super) fn state() -> State {
    State::new((Ipv4Addr::LOCALHOST, 7070).into(), None)
}

fn level(ticks_per_slot: u64, slots: Vec<usize>, present: usize) -> Level {
    Level {
        ticks_per_slot,
        size: slots.len(),
        present,
        slots,
    }
}

pub(super) fn wheel(levels: Vec<Level>) -> Option<Wheel> {
    Some(Wheel {
        tick: 1_234,
        on_the_way: 17,
        levels,
    })
}

/// Returns the state of a timer after some seconds with 1 000 timeouts per second, one in ten of
/// which expires.
pub(super) fn snapshot(seconds: u64, wheel: Option<Wheel>) -> Snapshot {
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
        turns: 100 * seconds,
        busy: Duration::from_millis(125) * seconds as u32,
        longest_turn: Duration::from_micros(1_530),
        worst_lateness: Duration::from_millis(15),
        lateness: bounds
            .into_iter()
            .chain([None])
            .zip([0, 98 * seconds, 0, 0, 2 * seconds, 0, 0])
            .collect(),
        ..Snapshot::default()
    }
}

pub(super) fn receive(state: &mut State, age: u64, timers: Vec<Snapshot>) {
    let frame = Frame {
        program: "server".into(),
        age: Duration::from_secs(age),
        timers,
    };
    state.receive(Message::Frame(frame), Instant::now());
}

/// Returns the state after 20 s with one timer.
pub(super) fn after_20_s(wheel: Option<Wheel>) -> State {
    let mut state = state();
    for seconds in 1..=20 {
        receive(&mut state, seconds, vec![snapshot(seconds, wheel.clone())]);
    }
    state
}

pub(super) fn hashed() -> State {
    after_20_s(wheel(vec![level(
        1,
        (0..512).map(|slot| slot % 7).collect(),
        133,
    )]))
}

fn hierarchical() -> State {
    let levels = [1, 64, 64 * 64].map(|ticks| level(ticks, (0..64).collect(), 33));
    after_20_s(wheel(levels.to_vec()))
}

pub(super) fn draw(state: &State, width: u16, height: u16) -> String {
    // The area does not start at zero: code that confuses its size with its end would draw outside
    // of it.
    let mut buf = Buffer::empty(Rect::new(3, 2, width, height));
    draw::all(state, buf.area, &mut buf);
    let rows = buf.content().chunks(usize::from(width).max(1));
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n")
        .collect()
}

#[track_caller]
pub(super) fn assert_shows(picture: &str, texts: &[&str]) {
    for text in texts {
        assert!(picture.contains(text), "no {text:?} in\n{picture}");
    }
}

/// Returns the picture of a program with one timer, both of which have this name.
fn draw_named(name: &str) -> String {
    let mut state = state();
    let frame = Frame {
        program: name.into(),
        age: Duration::from_secs(1),
        timers: vec![Snapshot {
            name: name.into(),
            ..snapshot(1, None)
        }],
    };
    state.receive(Message::Frame(frame), Instant::now());
    draw(&state, 120, 32)
}

/// They come from another program.
#[test]
fn names_do_not_control_the_terminal() {
    let picture = draw_named("a\u{1b}[2Jb\u{7}\r\nc\u{9b}d");
    assert_shows(
        &picture,
        &[r" a\u{1b}[2Jb\u{7}\r\nc\u{9b}d", r": a\u{1b}[2Jb\u{7}\r\nc"],
    );
    // Characters that reverse the text after them, or cannot be seen.
    assert_shows(
        &draw_named("a\u{202e}b\u{2066}c\u{200b}d\u{feff}é"),
        &[r" a\u{202e}b\u{2066}c\u{200b}d\u{feff}é: a\u{202e}b"],
    );
    // Any number of accents fit in a column.
    let flood = draw_named(&format!("a{}", "\u{301}".repeat(10_000)));
    let accents = flood.chars().filter(|char| *char == '\u{301}').count();
    assert_eq!(accents, 2 * 63);
    assert_shows(&flood, &["…: a"]);
    let is_control = |character: char| character.is_control() && character != '\n';
    assert!(!picture.contains(is_control), "{picture:?}");
}

#[test]
fn every_state_can_be_drawn_in_every_size() {
    let mut ended = hashed();
    ended.receive(Message::Gone(Why::Ended), Instant::now());
    let slots = |slots, most| after_20_s(wheel(vec![level(1, vec![most; slots], slots - 1)]));
    let mut stopped = state();
    receive(
        &mut stopped,
        1,
        vec![Snapshot {
            is_stopped: true,
            ..Snapshot::default()
        }],
    );
    let many = (0..40).map(|n| level(1 << n, vec![1, 0], 1)).collect();
    // The largest numbers that are accepted.
    let most = (1 << 48) - 1;
    let huge = Snapshot {
        tick: Duration::from_secs(most),
        pending: most,
        scheduled: u64::MAX,
        periodic_runs: u64::MAX,
        turns: u64::MAX,
        longest_turn: Duration::MAX,
        busy: Duration::MAX,
        worst_lateness: Duration::MAX,
        lateness: vec![(Some(Duration::MAX), most); 64],
        ..Snapshot::default()
    };
    let [one, some] = [(1, MAX_SENT_SLOTS), (64, 9)].map(|(levels, count)| {
        let most = most as usize;
        let level = Level {
            ticks_per_slot: u64::MAX,
            size: most,
            present: most - 1,
            slots: vec![most; count],
        };
        let wheel = Wheel {
            tick: u64::MAX,
            on_the_way: usize::MAX,
            levels: vec![level; levels],
        };
        let mut state = state();
        let first = Snapshot {
            tick: huge.tick,
            lateness: huge.lateness.clone(),
            ..Snapshot::default()
        };
        receive(&mut state, 0, vec![first]);
        let timers = vec![Snapshot {
            wheel: Some(wheel),
            ..huge.clone()
        }];
        let frame = Frame {
            program: String::new(),
            age: Duration::MAX,
            timers,
        };
        assert!(is_valid(&frame));
        state.receive(Message::Frame(frame), Instant::now());
        state
    });
    let mut explained = hashed();
    explained.switch_legend();
    let states = [
        explained,
        one,
        some,
        state(),
        hashed(),
        hierarchical(),
        ended,
        stopped,
        after_20_s(None),
        after_20_s(wheel(vec![])),
        after_20_s(wheel(vec![level(u64::MAX, vec![0, 0], 1)])),
        after_20_s(wheel(many)),
        slots(1, 0),
        slots(2, 1),
    ];
    let sides = [0, 1, 2, 3, 5, 10, 23, 40, 64, 120];
    for (number, state) in states.iter().enumerate() {
        for width in sides {
            for height in sides {
                let picture = draw(state, width, height);
                assert!(
                    picture.lines().count() <= height.into(),
                    "state {number}, {width}x{height}"
                );
            }
        }
    }
}

#[test]
fn legend_is_shown_and_hidden() {
    let mut state = hashed();
    for (width, height) in [(80, 24), (120, 40)] {
        let before = draw(&state, width, height);
        state.switch_legend();
        assert_shows(
            &draw(&state, width, height),
            &["legend", "the hand, or ▲", "q: quit", "● live"],
        );
        state.switch_legend();
        assert_eq!(draw(&state, width, height), before);
    }
}

#[test]
fn small_and_large_terminals_show_all_values() {
    for (width, height) in [(80, 24), (100, 32), (120, 40), (200, 60)] {
        let picture = draw(&hashed(), width, height);
        assert_shows(
            &picture,
            &[
                "server: connections",
                "● live",
                "512 slots of 10ms",
                "tick 1,234",
                "▲ 133",
                "pending, 60s",
                "2,020, 17 queued",
                "scheduled       1,000/s         20,007",
                "expired           100/s          2,000",
                "cancelled         900/s         18,000",
                "rejected            0/s              0",
                "busy 12.5 % of the time",
                "100 turns/s, 0 wake-ups/s",
                "longest turn 1.53ms",
                "maximum 15ms",
                "median ≤ 1.25ms, p99 ≤ 10ms",
            ],
        );
        // The circle, and the labels of its quarters.
        assert_shows(&picture, &["128", "256", "384"]);
        assert!(
            picture
                .chars()
                .any(|char| ('\u{2801}'..='\u{28ff}').contains(&char)),
            "{picture}"
        );
    }
}

#[test]
fn every_level_has_a_row() {
    for (width, height) in [(80, 24), (120, 40), (50, 40)] {
        let picture = draw(&hierarchical(), width, height);
        assert_shows(
            &picture,
            &[
                "3 levels",
                "in slots of 10ms",
                "in slots of 640ms",
                "in slots of 41s",
                "2,016",
                "▲ 33",
            ],
        );
        assert_eq!(picture.matches("▲ 33").count(), 3);
    }
}

#[test]
fn narrow_terminal_shows_the_most_important_values() {
    assert_shows(
        &draw(&hashed(), 40, 30),
        &["slots of 10ms", "▲ 133", "2,020", "scheduled"],
    );
    assert_shows(&draw(&hashed(), 30, 10), &["▲ 133", "2,020"]);
}

#[test]
fn hand_is_below_its_slot() {
    // 58 columns and a frame: 7 per slot on a level of 8 slots, and several slots per column on a
    // level of 64.
    for (size, present, hand) in [
        (8, 0, 1),
        (8, 5, 36),
        (8, 7, 50),
        (64, 0, 1),
        (64, 20, 20),
        (64, 63, 58),
    ] {
        let mut slots = vec![0; size];
        slots[present] = 1;
        let picture = draw(&after_20_s(wheel(vec![level(1, slots, present)])), 60, 12);
        let column = |of| {
            let line = picture
                .lines()
                .find(|line| line.contains(of))
                .expect("the line exists");
            line.chars().position(|char| char == of)
        };
        assert_eq!(column('█'), Some(hand), "{picture}");
        assert_eq!(column('▲'), Some(hand), "{picture}");
    }
}

/// The slot that the hand reaches next is prominent, whether it is the current slot or the one
/// after it.
#[test]
fn current_slot_of_a_higher_level_is_the_next() {
    for (ticks, colors) in [(1, [Color::Blue, Color::Yellow]), (64, [Color::Yellow; 2])] {
        let mut slots = vec![0; 16];
        slots[8..10].fill(9);
        let one = wheel(vec![level(ticks, slots, 8)]);
        let mut buf = Buffer::empty(Rect::new(0, 0, 60, 12));
        draw::all(&after_20_s(one), buf.area, &mut buf);
        let of = |column| {
            (0..12)
                .map(|row| &buf[(column, row)])
                .find(|cell| cell.symbol() == "█")
        };
        // 3 columns per slot.
        let seen = [8, 9].map(|slot| of(1 + slot * 3).expect("a bar").fg);
        assert_eq!(seen, colors, "{ticks}");
    }
}

#[test]
fn only_existing_problems_are_shown() {
    assert!(!draw(&hashed(), 100, 32).contains("slow tasks"));
    let mut state = state();
    let troubled = Snapshot {
        slow: 3,
        panicked: 2,
        long_turns: 1,
        dropped: 4,
        ..snapshot(1, None)
    };
    receive(&mut state, 1, vec![troubled]);
    assert_shows(
        &draw(&state, 100, 24),
        &["long turns 1, slow tasks 3, panics 2, dropped 4"],
    );
}

#[test]
fn only_existing_periodic_runs_are_shown() {
    assert!(!draw(&hashed(), 80, 24).contains("periodic"));
    let mut state = state();
    for seconds in 1..=3 {
        let periodic = Snapshot {
            periodic_runs: 1_000 * seconds,
            ..snapshot(seconds, None)
        };
        receive(&mut state, seconds, vec![periodic]);
    }
    assert_shows(
        &draw(&state, 80, 24),
        &[
            "expired           100/s            300",
            "periodic        1,000/s          3,000",
            "rejected            0/s              0",
            "median ≤",
        ],
    );
}

#[test]
fn times_have_three_digits() {
    for (nanos, text) in [
        (0, "0"),
        (1, "1ns"),
        (999, "999ns"),
        (1_530, "1.53µs"),
        (625_000, "625µs"),
        (999_400, "999µs"),
        (999_600, "1ms"),
        (10_000_000, "10ms"),
        (15_720_000, "15.7ms"),
        (99_960_000, "100ms"),
        (2_560_000_000, "2.56s"),
        (40_960_000_000, "41s"),
        (2_621_440_000_000, "43.7min"),
        (86_400_000_000_000, "1d"),
    ] {
        assert_eq!(style::span(Duration::from_nanos(nanos)), text);
    }
    assert_eq!(style::span(Duration::MAX), "584542046091y");
}

#[test]
fn invalid_frames_are_rejected() {
    let frame = |timer| Frame {
        program: "p".into(),
        age: Duration::ZERO,
        timers: vec![timer],
    };
    let of_level = |level| frame(snapshot(1, wheel(vec![level])));
    assert!(is_valid(&of_level(level(1, vec![9; 8], 3))));
    let (most, few) = (1 << 48, level(1, vec![0; 8], 3));
    let late = |count| vec![(None, count)];
    for bad in [
        of_level(Level {
            present: 8,
            ..few.clone()
        }),
        of_level(Level {
            size: 0,
            present: 0,
            ..level(1, vec![], 0)
        }),
        of_level(Level {
            size: most,
            ..few.clone()
        }),
        of_level(Level {
            size: 7,
            ..few.clone()
        }),
        of_level(level(1, vec![0; MAX_SENT_SLOTS + 1], 3)),
        of_level(level(1, vec![most], 0)),
        frame(snapshot(1, wheel(vec![few; 65]))),
        Frame {
            timers: vec![snapshot(1, None); MAX_TIMERS + 1],
            ..frame(snapshot(1, None))
        },
        frame(Snapshot {
            pending: 1 << 48,
            ..snapshot(1, None)
        }),
        frame(Snapshot {
            tick: Duration::MAX,
            ..snapshot(1, None)
        }),
        frame(Snapshot {
            lateness: late(1 << 48),
            ..snapshot(1, None)
        }),
        frame(Snapshot {
            lateness: late(1).repeat(65),
            ..snapshot(1, None)
        }),
    ] {
        assert!(!is_valid(&bad), "{bad:?}");
    }
}
