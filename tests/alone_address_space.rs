//! A timer in a process that may use little address space. The limit holds for the whole process,
//! so each test runs in a child process.
#![cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]

use std::process::Command;
use std::time::Duration;
use std::{env, thread};

use hashed_wheel::wheel::{HashedWheel, HierarchicalWheel, MAX_TICKS_PER_WHEEL, SizeError};
use hashed_wheel::{BuildError, Builder, HashedWheelTimer, ManualClock, Unavailable};

/// Runs `test` in a child process with 2.5 GB of address space. `name` is that of the calling test.
fn with_little_address_space(name: &str, test: fn()) {
    const IS_CHILD: &str = "HASHED_WHEEL_IS_CHILD";

    if env::var_os(IS_CHILD).is_some() {
        return test();
    }
    let child = Command::new("sh")
        .args([
            "-c",
            "ulimit -v 2500000 && exec \"$0\" --exact \"$1\" --nocapture",
        ])
        .arg(env::current_exe().unwrap())
        .arg(name)
        .env(IS_CHILD, "")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout).into_owned()
        + &String::from_utf8_lossy(&child.stderr);
    assert!(
        child.status.success() && output.contains("1 passed"),
        "{}: {output}",
        child.status
    );
}

fn both() -> [fn() -> Builder; 2] {
    [HashedWheelTimer::builder, || {
        HashedWheelTimer::builder().hierarchical(true)
    }]
}

#[test]
fn a_wheel_for_which_there_is_no_memory_is_an_error() {
    with_little_address_space("a_wheel_for_which_there_is_no_memory_is_an_error", || {
        for builder in both() {
            let built = builder().ticks_per_wheel(MAX_TICKS_PER_WHEEL).build();
            let error = built.map(|_| ()).unwrap_err();
            let BuildError::NoMemory { bytes } = error else {
                panic!("{error:?}")
            };
            assert!(bytes >= 4 << 30, "{error}");
            // What no machine accepts comes first.
            let largest = builder().ticks_per_wheel(MAX_TICKS_PER_WHEEL);
            let error = largest.tick(Duration::MAX).build().map(|_| ()).unwrap_err();
            let max = Duration::from_nanos(((1 << 62) - 3) / MAX_TICKS_PER_WHEEL as u64);
            assert_eq!(error, BuildError::TickTooLong { max });
            // The next smaller one that fits.
            let timer = builder()
                .ticks_per_wheel(MAX_TICKS_PER_WHEEL / 8)
                .build()
                .unwrap();
            timer.new_timeout(|_| (), Duration::from_secs(5)).unwrap();
        }
    });
}

/// The levels of a hierarchical wheel are made when an entry needs them.
#[test]
fn a_timeout_in_the_highest_level_finds_memory() {
    with_little_address_space("a_timeout_in_the_highest_level_finds_memory", || {
        for builder in both() {
            let clock = ManualClock::new();
            let builder = builder()
                .tick(Duration::from_micros(1))
                .clock(clock.clone());
            let (timer, mut driver) = builder.ticks_per_wheel(1 << 28).build_driven().unwrap();
            let delays = [1, 1 << 28, 1 << 44, 1 << 51].map(Duration::from_micros);
            let timeouts = delays.map(|delay| timer.new_timeout(|_| (), delay).unwrap());
            for (delay, timeout) in delays.iter().zip(&timeouts) {
                clock.advance(*delay - clock_time(&clock));
                driver.turn();
                assert!(timeout.is_expired());
            }
            // Eight bytes per slot are 2 GiB.
            assert!(timer.occupancy() == Err(Unavailable::NoMemory));
        }
    });
}

/// The wheels without a timer. The address space suffices once for 2^28 slots, not twice.
#[test]
fn a_public_wheel_for_which_there_is_no_memory_is_an_error() {
    macro_rules! check {
        ($Wheel:ident) => {
            let error = $Wheel::<u8>::try_new(MAX_TICKS_PER_WHEEL).unwrap_err();
            let SizeError::NoMemory { bytes } = error else {
                panic!("{error:?}")
            };
            assert_eq!(bytes, 4 * MAX_TICKS_PER_WHEEL, "an array of all slots");
            let error = $Wheel::<u8>::try_with_capacity(64, 1 << 30).unwrap_err();
            let is_of_the_entries =
                matches!(error, SizeError::NoMemory { bytes } if bytes >= 16 << 30);
            assert!(is_of_the_entries, "{error:?}");

            let mut wheel = $Wheel::try_new(1 << 28).unwrap();
            for _ in 0..2 {
                let now = wheel.tick();
                let delays = [1, 1 << 20, 1 << 28, 1 << 44, 1 << 60];
                for delay in delays {
                    wheel.insert(now + delay, delay);
                }
                assert_eq!(wheel.pop_expired(now + 1).map(|(.., delay)| delay), Some(1));
                wheel.shrink_to_fit();
                assert_eq!(wheel.next_deadline(), Some(now + (1 << 20)));
                wheel.clear();
                assert_eq!(wheel.next_deadline(), None);
            }
            wheel.insert(1 << 60, 9);
            assert_eq!(wheel.pop_expired((1 << 60) - 1), None);
            assert!(wheel.pop_expired(1 << 60).is_some_and(|(.., delay)| delay == 9));
        };
    }
    with_little_address_space(
        "a_public_wheel_for_which_there_is_no_memory_is_an_error",
        || {
            check! { HashedWheel }
            check! { HierarchicalWheel }
        },
    );
}

fn clock_time(clock: &ManualClock) -> Duration {
    use hashed_wheel::Clock;
    clock.now()
}

/// A thread whose stack is too large for the address space is an error of `new_timeout`.
#[test]
fn a_stack_for_which_there_is_no_memory_is_an_error() {
    with_little_address_space("a_stack_for_which_there_is_no_memory_is_an_error", || {
        for size in [4 << 30, usize::MAX] {
            let timer = HashedWheelTimer::builder()
                .thread_stack_size(size)
                .build()
                .unwrap();
            let error = timer.new_timeout(|_| (), Duration::ZERO).unwrap_err();
            assert!(
                matches!(error, hashed_wheel::NewTimeoutError::Spawn { .. }),
                "{error:?}"
            );
        }
        assert!(
            thread::Builder::new().spawn(|| ()).is_ok(),
            "an ordinary thread can be started"
        );
    });
}
