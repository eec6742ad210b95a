//! The pauses of `Backoff`.

use crate::common;

use std::time::Duration;

use common::ms;
use hashed_wheel_util::{Backoff, Jitter};

/// The longest of six pauses.
const LONGEST: [u64; 6] = [100, 200, 400, 800, 1_000, 1_000];

fn pauses(jitter: Jitter) -> impl Iterator<Item = (Duration, Duration)> {
    let pauses = Backoff::new(ms(100)).max_pause(ms(1_000)).jitter(jitter);
    pauses.zip(LONGEST.map(ms))
}

#[test]
fn pauses_double_up_to_their_maximum() {
    assert!(pauses(Jitter::None).all(|(pause, longest)| pause == longest));
    assert_eq!(pauses(Jitter::None).count(), LONGEST.len());
    let default = Backoff::new(ms(1)).jitter(Jitter::None);
    assert_eq!(default.take(100).last(), Some(ms(10_000)));
}

/// Of 300 random pauses, all are in one half with a probability of 2 to the power of -300.
#[test]
fn jitter_says_how_random_the_pauses_are() {
    let of = |jitter| (0..50).flat_map(move |_| pauses(jitter));
    assert!(of(Jitter::Equal).all(|(pause, longest)| (longest / 2..=longest).contains(&pause)));
    assert!(of(Jitter::Equal).any(|(pause, longest)| pause > longest * 3 / 4));
    assert!(of(Jitter::Equal).any(|(pause, longest)| pause < longest * 3 / 4));
    assert!(of(Jitter::default()).all(|(pause, longest)| pause <= longest));
    assert!(of(Jitter::default()).any(|(pause, longest)| pause > longest / 2));
    assert!(of(Jitter::default()).any(|(pause, longest)| pause < longest / 2));
}

#[test]
fn pauses_end_before_the_total_is_exceeded() {
    let mut backoff = Backoff::new(ms(100))
        .jitter(Jitter::None)
        .max_total(ms(700));
    assert!(backoff.by_ref().eq([100, 200, 400].map(ms)));
    assert_eq!(backoff.next(), None);
    let none = Backoff::new(ms(100)).jitter(Jitter::None).max_total(ms(99));
    assert_eq!(none.count(), 0);
    for _ in 0..50 {
        let mut random = Backoff::new(ms(100)).max_total(ms(700));
        assert!(random.by_ref().sum::<Duration>() <= ms(700));
        assert_eq!(random.next(), None, "it stays at its end");
    }
}

#[test]
fn longest_pauses_overflow_nothing() {
    for jitter in [Jitter::None, Jitter::Equal, Jitter::Full] {
        let pauses = Backoff::new(Duration::MAX)
            .max_pause(Duration::MAX)
            .jitter(jitter);
        assert!(pauses.take(9).count() > 0);
    }
    let nothing = Backoff::new(Duration::ZERO).take(99);
    assert!(nothing.eq([Duration::ZERO; 99]));
}
