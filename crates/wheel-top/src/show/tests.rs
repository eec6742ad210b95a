use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, HashedWheelTimer};

use super::{DEFAULT_ADDRESS, MAX_VIEWERS, OsStr, PATIENCE, Show, Viewer, address_of_process, io};
use crate::frame::{Frame, MAX_TIMERS};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The time limit for expected events, on a machine that may be busy.
const TIMEOUT: Duration = Duration::from_secs(30);

fn wait_until(mut holds: impl FnMut() -> bool, what: &str) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn next_frame(lines: &mut BufReader<TcpStream>) -> Frame {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

fn look(show: &Show) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(show.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    BufReader::new(stream)
}

fn names(viewer: &mut BufReader<TcpStream>) -> Vec<String> {
    next_frame(viewer)
        .timers
        .into_iter()
        .map(|timer| timer.name)
        .collect()
}

#[test]
fn every_viewer_sees_all_timers() {
    let show = Show::at(ANY).unwrap();
    let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    (0..5).for_each(|_| {
        drop(
            timer
                .new_timeout(|_| (), Duration::from_secs(3_600))
                .unwrap(),
        );
    });
    timer
        .new_timeout(|_| (), Duration::from_secs(3_600))
        .unwrap()
        .cancel();
    // The worker inserts the timeouts at the turn that runs this one.
    timer.new_timeout(|_| (), Duration::ZERO).unwrap();
    wait_until(|| timer.stats().expired == 1, "the timeout has not expired");
    show.watch("one", &timer);
    let hierarchical = HashedWheelTimer::builder()
        .hierarchical(true)
        .build()
        .unwrap();
    show.watch("other", &hierarchical);

    for mut viewer in [look(&show), look(&show)] {
        let frame = next_frame(&mut viewer);
        assert!(frame.program.starts_with("wheel_top"), "{}", frame.program);
        let [one, other] = &frame.timers[..] else {
            panic!("{frame:?}")
        };
        assert_eq!((&*one.name, &*other.name), ("one", "other"));
        assert_eq!(
            (
                one.pending,
                one.scheduled,
                one.cancelled,
                one.ticks_per_wheel
            ),
            (5, 7, 1, 512)
        );
        let slots = &one.wheel.as_ref().unwrap().levels[0].slots;
        assert_eq!(slots.iter().sum::<usize>(), 5);
        assert_eq!(
            other.wheel.as_ref().map(|wheel| wheel.levels.len()),
            Some(0)
        );
        assert!(next_frame(&mut viewer).age > frame.age);
    }
    timer.stop();
}

#[test]
fn timers_of_the_same_name_have_different_numbers() {
    let show = Show::at(ANY).unwrap();
    let timers = [0; 2].map(|_| HashedWheelTimer::default());
    timers.iter().for_each(|timer| show.watch("it", timer));
    let mut viewer = look(&show);
    let mut numbers = || {
        let timers = next_frame(&mut viewer).timers.into_iter();
        timers.map(|timer| timer.number).collect::<Vec<_>>()
    };
    let both = numbers();
    assert_ne!(both[0], both[1]);
    let [first, _second] = timers;
    drop(first);
    wait_until(
        || numbers() == both[1..],
        "the timer is still in the view, or the other one has another number",
    );
}

#[test]
fn number_of_shown_timers_is_limited() {
    let show = Show::at(ANY).unwrap();
    let (first, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
    show.watch("0", &first);
    let timer = HashedWheelTimer::default();
    (1..=MAX_TIMERS).for_each(|number| show.watch(&number.to_string(), &timer));
    let mut viewer = look(&show);
    let expected = |from: usize| (from..from + MAX_TIMERS).map(|number| number.to_string());
    assert!(names(&mut viewer).into_iter().eq(expected(0)));
    drop(first);
    wait_until(
        || names(&mut viewer).into_iter().eq(expected(1)),
        "the next timer is not in the view",
    );
}

/// The clock lives as long as any part of its timer.
struct Now {
    origin: Instant,
    _life: Arc<()>,
}

impl Clock for Now {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

fn timer_with_life() -> (HashedWheelTimer, Arc<()>) {
    let life = Arc::new(());
    let clock = Now {
        origin: Instant::now(),
        _life: Arc::clone(&life),
    };
    let timer = HashedWheelTimer::builder().clock(clock).build().unwrap();
    drop(
        timer
            .new_timeout(|_| (), Duration::from_secs(3_600))
            .unwrap(),
    );
    (timer, life)
}

#[test]
fn watching_keeps_no_timer() {
    let show = Show::at(ANY).unwrap();
    let (timer, life) = timer_with_life();
    show.watch("unseen", &timer);
    // While no program watches, nothing refers to the timer, so this drop ends it.
    drop(timer);
    assert_eq!(Arc::strong_count(&life), 1, "the timer still exists");

    let (timer, life) = timer_with_life();
    show.watch("seen", &timer);
    let mut viewer = look(&show);
    assert_eq!(names(&mut viewer), ["seen"]);
    drop(timer);
    // A look may have been in progress.
    wait_until(|| Arc::strong_count(&life) == 1, "the timer still exists");
    wait_until(
        || names(&mut viewer).is_empty(),
        "the timer is still in the view",
    );
}

#[test]
fn stopped_timer_stays_while_it_has_a_handle() {
    let show = Show::at(ANY).unwrap();
    let (timer, _life) = timer_with_life();
    show.watch("it", &timer);
    assert_eq!(timer.stop().len(), 1);
    let seen = next_frame(&mut look(&show)).timers.remove(0);
    assert!(seen.is_stopped && seen.wheel.is_none(), "{seen:?}");
    assert_eq!((seen.pending, seen.cancelled), (0, 1));
}

/// Otherwise a service that makes timers again and again would run out of memory.
#[test]
fn ended_timers_are_forgotten_without_a_viewer() {
    let show = Show::at(ANY).unwrap();
    let kept = HashedWheelTimer::default();
    show.watch("kept", &kept);
    for _ in 0..100 {
        let (timer, _driver) = HashedWheelTimer::builder().build_driven().unwrap();
        show.watch("ended", &timer);
        let known = show.timers().len();
        assert!(known <= 3, "{known} timers are known");
    }
}

#[test]
fn panicking_clock_ends_only_the_view_of_its_timer() {
    struct Bad(Arc<AtomicBool>);

    impl Clock for Bad {
        fn now(&self) -> Duration {
            assert!(!self.0.load(Ordering::Relaxed), "a bad clock");
            Duration::ZERO
        }
    }

    let show = Show::at(ANY).unwrap();
    let timer = HashedWheelTimer::default();
    show.watch("good", &timer);
    // A driven timer has no thread that the clock could end.
    let is_bad = Arc::<AtomicBool>::default();
    let clock = Bad(Arc::clone(&is_bad));
    let (bad, _driver) = HashedWheelTimer::builder()
        .clock(clock)
        .build_driven()
        .unwrap();
    show.watch("bad", &bad);
    assert_eq!(names(&mut look(&show)), ["good", "bad"]);
    is_bad.store(true, Ordering::Relaxed);
    wait_until(
        || names(&mut look(&show)) == ["good"],
        "the timer is still in the view",
    );
    is_bad.store(false, Ordering::Relaxed);
    show.watch("next", &timer);
    assert_eq!(names(&mut look(&show)), ["good", "next"]);
}

#[test]
fn large_wheel_is_not_read() {
    for (bits, is_looked_at) in [(16, true), (17, false)] {
        let show = Show::at(ANY).unwrap();
        let timer = HashedWheelTimer::builder()
            .ticks_per_wheel(1 << bits)
            .build()
            .unwrap();
        show.watch("it", &timer);
        let seen = next_frame(&mut look(&show)).timers.pop().unwrap();
        assert_eq!(
            (seen.wheel.is_some(), seen.has_too_many_slots()),
            (is_looked_at, !is_looked_at)
        );
    }
}

#[test]
fn stalled_or_closed_viewer_does_not_affect_others() {
    let show = Show::at(ANY).unwrap();
    let timer = HashedWheelTimer::default();
    // A long name, so that the buffers of the stalled viewer are full soon.
    show.watch(&"long".repeat(1 << 18), &timer);
    let mut stalled = look(&show);
    drop(look(&show));
    let mut viewer = look(&show);
    // More than the buffers have space for, in less than the time limit of a stalled viewer.
    let ages: Vec<_> = (0..20).map(|_| next_frame(&mut viewer).age).collect();
    assert!(ages.is_sorted());
    // The viewer has missed some frames but received no partial line, and continues to receive.
    let last = *ages.last().unwrap();
    let ages: Vec<_> = (0..20).map(|_| next_frame(&mut stalled).age).collect();
    assert!(
        ages.is_sorted() && *ages.last().unwrap() > last,
        "{ages:?}, {last:?}"
    );
}

/// Otherwise viewers that are stopped would hold all places.
#[test]
fn viewer_that_receives_nothing_is_disconnected() {
    let listener = TcpListener::bind(ANY).unwrap();
    let _stalled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut viewer = Viewer::new(listener.accept().unwrap().0).unwrap();
    let (line, began) = (vec![b'a'; 1 << 20], Instant::now());
    // After a while, the buffers are full.
    for _ in 0..50 {
        viewer.send(&line, began).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
    let almost = began + PATIENCE - Duration::from_millis(1);
    viewer.send(&line, almost).unwrap();
    assert!(viewer.send(&line, began + PATIENCE).is_err());
}

#[test]
fn number_of_viewers_is_limited() {
    let show = Show::at(ANY).unwrap();
    let mut viewers: Vec<_> = (0..MAX_VIEWERS).map(|_| look(&show)).collect();
    viewers
        .iter_mut()
        .for_each(|viewer| drop(next_frame(viewer)));
    assert!(
        look(&show).fill_buf().is_ok_and(<[u8]>::is_empty),
        "one more is not closed"
    );
    viewers.pop();
    // The place of a viewer that has left is free after the next frame.
    let is_served = || look(&show).fill_buf().is_ok_and(|bytes| !bytes.is_empty());
    wait_until(is_served, "the place is not free");
}

#[test]
fn address_is_checked() {
    assert_eq!(address_of_process(None).unwrap(), DEFAULT_ADDRESS);
    for good in ["127.0.0.1:0", "127.9.9.9:7071", "[::1]:80"] {
        assert_eq!(
            address_of_process(Some(OsStr::new(good))).unwrap(),
            good.parse().unwrap()
        );
    }
    for bad in [
        "",
        "7070",
        "localhost:7070",
        "0.0.0.0:7070",
        "192.0.2.1:7070",
        "[::]:7070",
        "127.0.0.1",
    ] {
        let error = address_of_process(Some(OsStr::new(bad))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{bad}");
        let text = error.to_string();
        for part in [
            "WHEEL_TOP",
            &format!("{bad:?}"),
            "of this machine only",
            "127.0.0.1:7070",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
