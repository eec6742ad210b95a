//! Timeouts of a device without an operating system: one wheel, turned by the main loop. Uses only
//! `core` and `alloc`, apart from the lines that play the device.
//!
//! ```text
//! 500ms: Blink { is_on: false }
//! 1s: Blink { is_on: true }
//! 1.5s: Blink { is_on: false }
//! 2s: Blink { is_on: true }
//! 2.3s: LinkIsLost
//! ```
#![no_std]

// Plays the device: prints, and has a `main`.
extern crate std;

use core::time::Duration;

use timing_wheels::{HierarchicalWheel, Key, Ticks};

#[derive(Debug)]
enum Event {
    Blink { is_on: bool },
    LinkIsLost,
}

struct Device {
    ticks: Ticks,
    wheel: HierarchicalWheel<Event>,
    link: Key,
}

impl Device {
    /// A frame has arrived: the link is lost two seconds from now.
    fn on_frame(&mut self, now: Duration) {
        let lost = self.ticks.at_or_after(now + Duration::from_secs(2));
        self.wheel.reset(self.link, lost);
    }

    /// Handles what is due. Returns the time until which the processor may sleep.
    fn turn(&mut self, now: Duration) -> Option<Duration> {
        while let Some((key, deadline, event)) = self.wheel.peek_expired(self.ticks.at(now)) {
            std::println!("{now:?}: {event:?}");
            if let Event::Blink { is_on } = event {
                *is_on = !*is_on;
                self.wheel.reset(key, deadline + 500); // the next one, under the same key
            } else {
                self.wheel.remove(key);
            }
        }
        let next = self.wheel.next_deadline()?;
        Some(self.ticks.start(next))
    }
}

fn main() {
    let (ticks, mut now) = (Ticks::new(Duration::from_millis(1)), Duration::ZERO);
    let mut wheel = HierarchicalWheel::new(64);
    wheel.insert(500, Event::Blink { is_on: false });
    let link = wheel.insert(2_000, Event::LinkIsLost);
    let mut device = Device { ticks, wheel, link };
    device.on_frame(Duration::from_millis(300));
    while device.wheel.get(device.link).is_some() {
        now = device.turn(now).expect("the lamp blinks forever");
    }
    assert_eq!(now.as_millis(), 2_500); // the turn at 2.3 s returned the time of the next blink
}
