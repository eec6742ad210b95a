//! Tests of the view that a program provides, and of `wheel-top`, run as a user would.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, HashedWheelTimer, Timeout};
use hashed_wheel_trial::process::{self, Process};
use hashed_wheel_trial::testing::{self, RunResult};
use wheel_top::{Frame, Show, merge};

const PROGRAM: &str = env!("CARGO_BIN_EXE_wheel-top");

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The time limit for expected events, on a machine that may be busy.
const TIMEOUT: Duration = Duration::from_secs(30);

fn run(options: &str) -> RunResult {
    testing::run(PROGRAM, options)
}

fn wait_until(mut holds: impl FnMut() -> bool, what: &str) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

// --- the view ------------------------------------------------------------------------------------

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

#[test]
fn every_viewer_sees_all_timers() {
    let show = Show::at(ANY).unwrap();
    let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    (0..5).for_each(|_| drop(timer.new_timeout(|_| (), Duration::from_secs(3_600)).unwrap()));
    timer.new_timeout(|_| (), Duration::from_secs(3_600)).unwrap().cancel();
    // The worker inserts the timeouts at the turn that runs this one.
    timer.new_timeout(|_| (), Duration::ZERO).unwrap();
    wait_until(|| timer.stats().expired == 1, "the timeout has not expired");
    show.watch("one", &timer);
    let hierarchical = HashedWheelTimer::builder().hierarchical(true).build().unwrap();
    show.watch("other", &hierarchical);

    for mut viewer in [look(&show), look(&show)] {
        let frame = next_frame(&mut viewer);
        assert!(frame.program.starts_with("wheel_top"), "{}", frame.program);
        let [one, other] = &frame.timers[..] else { panic!("{frame:?}") };
        assert_eq!((&*one.name, &*other.name), ("one", "other"));
        assert_eq!((one.pending, one.scheduled, one.cancelled, one.ticks_per_wheel), (5, 7, 1, 512));
        let slots = &one.wheel.as_ref().unwrap().levels[0].slots;
        assert_eq!(slots.iter().sum::<usize>(), 5);
        assert_eq!(other.wheel.as_ref().map(|wheel| wheel.levels.len()), Some(0));
        assert!(next_frame(&mut viewer).age > frame.age);
    }
    timer.stop();
}

/// The clock lives as long as any part of its timer.
#[test]
fn stopped_timer_is_released() {
    struct Now {
        origin: Instant,
        _life: Arc<()>,
    }

    impl Clock for Now {
        fn now(&self) -> Duration {
            self.origin.elapsed()
        }
    }

    let (show, life) = (Show::at(ANY).unwrap(), Arc::new(()));
    let clock = Now { origin: Instant::now(), _life: Arc::clone(&life) };
    let timer = HashedWheelTimer::builder().clock(clock).build().unwrap();
    drop(timer.new_timeout(|_| (), Duration::from_secs(3_600)).unwrap());
    show.watch("it", &timer);
    assert_eq!(timer.stop().len(), 1);
    drop(timer);
    // Even without a viewer.
    wait_until(|| Arc::strong_count(&life) == 1, "the timer still exists");

    let timer = next_frame(&mut look(&show)).timers.remove(0);
    assert!(timer.is_stopped && timer.wheel.is_none(), "{timer:?}");
    assert_eq!((timer.pending, timer.cancelled), (0, 1));
    // The next timer takes its place.
    let next = HashedWheelTimer::default();
    show.watch("next", &next);
    let names: Vec<_> = next_frame(&mut look(&show)).timers.into_iter().map(|timer| timer.name).collect();
    assert_eq!(names, ["next"]);
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
    let (bad, _driver) = HashedWheelTimer::builder().clock(clock).build_driven().unwrap();
    show.watch("bad", &bad);
    let names = || {
        let frame = next_frame(&mut look(&show));
        frame.timers.into_iter().map(|timer| timer.name).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["good", "bad"]);
    is_bad.store(true, Ordering::Relaxed);
    assert_eq!(names(), ["good"]);
    show.watch("next", &timer);
    assert_eq!(names(), ["good", "next"]);
}

#[test]
fn large_wheel_is_not_read() {
    let show = Show::at(ANY).unwrap();
    for (bits, is_looked_at) in [(16, true), (17, false)] {
        let timer = HashedWheelTimer::builder().ticks_per_wheel(1 << bits).build().unwrap();
        show.watch("it", &timer);
        let seen = next_frame(&mut look(&show)).timers.pop().unwrap();
        assert_eq!((seen.wheel.is_some(), seen.has_too_many_slots()), (is_looked_at, !is_looked_at));
        timer.stop();
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
    let ages: Vec<_> = (0..40).map(|_| next_frame(&mut viewer).age).collect();
    assert!(ages.is_sorted());
    // The viewer has missed some frames but received no partial line, and continues to receive.
    let last = *ages.last().unwrap();
    let ages: Vec<_> = (0..40).map(|_| next_frame(&mut stalled).age).collect();
    assert!(ages.is_sorted() && *ages.last().unwrap() > last, "{ages:?}, {last:?}");
}

#[test]
fn adjacent_slots_are_added() {
    assert_eq!(merge(&[1, 2, 3, 4], 10), [1, 2, 3, 4]);
    assert_eq!(merge(&[1, 2, 3, 4], 2), [3, 7]);
    assert_eq!(merge(&[1, 2, 3, 4, 5], 3), [1, 5, 9]);
    assert_eq!(merge(&[1, 2, 3], 1), [6]);
    assert!(merge(&[1, 2, 3], 0).is_empty() && merge(&[], 3).is_empty());
}

// --- wheel-top -----------------------------------------------------------------------------------

#[test]
fn wheel_top_has_its_own_timers() {
    for (options, parts) in [
        ("--once --size 120x40", ["wheel-top: hashed (1 of 2", "512 slots of 10ms"]),
        ("--once --timer hierarchical", ["wheel-top: hierarchical (2 of 2", "levels of 64 slots"]),
    ] {
        let RunResult { status, text: picture } = run(options);
        assert_eq!(status, Some(0), "{picture}");
        assert!(parts.iter().all(|part| picture.contains(part)), "{picture}");
    }
}

#[test]
fn missing_program_is_reported() {
    let address = "127.0.0.1:1";
    let RunResult { status, text } = run(&format!("{address} --once"));
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains(&format!(
            "no program listens on {address}: is it running, and does it call `wheel_top::watch`?"
        )),
        "{text}"
    );
}

#[test]
fn other_program_is_reported() {
    // It cannot be distinguished from a very long frame.
    let endless = b"{\"program\":\"".iter().chain(&[b'a'; 2 << 20]).copied().collect();
    let answers = |words: Vec<u8>, answer| {
        let listener = TcpListener::bind(ANY).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(&words);
                open.push(stream);
            }
        });
        let RunResult { status, text } = run(&format!("{address} --once"));
        assert_eq!(status, Some(1), "{text}");
        assert!(text.contains(answer), "{text}");
    };
    // Concurrently, because each of these takes as long as the time limit for a picture.
    thread::scope(|scope| {
        scope.spawn(|| answers(b"220 mail.example.org\r\n".to_vec(), "does not send timer states"));
        scope.spawn(|| answers(b"\xff\xfe\n".to_vec(), "does not send timer states"));
        scope.spawn(|| answers(endless, "does not send timer states"));
        scope.spawn(|| answers(Vec::new(), "sends nothing"));
    });
}

/// A task that does not return, in a timer with high load.
#[test]
fn stuck_worker_is_reported() {
    let show = Show::at(ANY).unwrap();
    let timer = HashedWheelTimer::default();
    let (begin, begun) = mpsc::channel();
    let (end, until) = mpsc::channel::<()>();
    let stuck = move |_: &Timeout| {
        begin.send(()).unwrap();
        until.recv().unwrap_or(());
    };
    timer.new_timeout(stuck, Duration::ZERO).unwrap();
    begun.recv().unwrap();
    (0..9).for_each(|_| drop(timer.new_timeout(|_| (), Duration::from_secs(3_600)).unwrap()));
    show.watch("stuck", &timer);
    let picture = run(&format!("{} --once", show.address())).text;
    drop(end);
    for part in ["the worker is in a turn", "● in a turn for "] {
        assert!(picture.contains(part), "no {part:?} in\n{picture}");
    }
    assert!(!picture.contains("live") && !picture.contains("never used"), "{picture}");
}

#[test]
fn unknown_timer_is_reported() {
    let RunResult { status, text } = run("--once --timer nope");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("there is no timer named \"nope\""), "{text}");
}

/// Like `| head -1`.
#[test]
fn closed_pipe_is_no_error() {
    let mut command = Command::new(PROGRAM);
    command.arg("--once").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Process::start(&mut command).unwrap();
    drop(child.stdout.take());
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((child.wait().unwrap().code(), &*text), (Some(0), ""));
}

#[test]
fn missing_terminal_is_reported() {
    let RunResult { status, text } = run("127.0.0.1:1");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("no terminal") && text.contains("--once"), "{text}");
}

#[test]
fn bad_options_are_rejected_with_status_2() {
    for (options, reason) in [
        ("nowhere", "'[ADDRESS]'"),
        ("--once --size 0x1", "from 1 to 1000"),
        ("--once --size 80", "100x32"),
        ("--size 80x24", "--once"),
    ] {
        let RunResult { status, text } = run(options);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{options}: {text}");
    }
}

// --- in a terminal -------------------------------------------------------------------------------

/// `wheel-top` in its own terminal, which util-linux's `script` creates.
#[cfg(target_os = "linux")]
struct Terminal {
    script: Process,
    bytes: Receiver<Vec<u8>>,
    seen: String,
}

#[cfg(target_os = "linux")]
impl Terminal {
    /// Returns `None` if there is no `script`.
    fn with(options: &str) -> Option<Self> {
        let command = format!("stty rows 24 cols 80 && echo process $$ && exec '{PROGRAM}' {options}");
        let mut script = Command::new("script");
        script.args(["-qefc", &command, "/dev/null"]).env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
        let script = Process::start(script.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let Ok(mut script) = script else {
            println!("SKIPPED: `script` of util-linux is not installed, so this is not tested");
            return None;
        };
        let mut output = script.stdout.take().unwrap();
        let (send, bytes) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4_096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                if send.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Some(Self { script, bytes, seen: String::new() })
    }

    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        let began = Instant::now();
        while !self.seen.contains(text) {
            let bytes = self.bytes.recv_timeout(TIMEOUT.saturating_sub(began.elapsed()));
            let bytes = bytes.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.seen));
            self.seen += &String::from_utf8_lossy(&bytes);
        }
    }

    /// Returns the process id of `wheel-top`.
    fn process(&self) -> u32 {
        let (_, rest) = self.seen.split_once("process ").unwrap();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Presses a key and then waits like `restored`.
    #[track_caller]
    fn quit(mut self, key: &[u8]) -> Option<i32> {
        self.script.stdin.as_mut().unwrap().write_all(key).unwrap();
        self.restored()
    }

    /// Waits until the terminal is restored and returns the exit status.
    #[track_caller]
    fn restored(mut self) -> Option<i32> {
        // The previous screen and its cursor.
        self.wait_for("\x1b[?1049l");
        self.wait_for("\x1b[?25h");
        self.script.wait().unwrap().code()
    }
}

#[cfg(target_os = "linux")]
#[test]
fn q_escape_and_ctrl_c_quit() {
    for key in [&b"q"[..], b"\x1b", b"\x03"] {
        let Some(mut terminal) = Terminal::with("") else { return };
        terminal.wait_for("live");
        assert_eq!(terminal.quit(key), Some(0), "{key:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn signals_quit() {
    for signal in ["TERM", "HUP", "INT", "QUIT"] {
        let Some(mut terminal) = Terminal::with("") else { return };
        terminal.wait_for("live");
        process::signal(terminal.process(), signal).unwrap();
        assert_eq!(terminal.restored(), Some(0), "{signal}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn wheel_top_ends_with_its_terminal() {
    let listener = TcpListener::bind(ANY).unwrap();
    let Some(mut terminal) = Terminal::with(&listener.local_addr().unwrap().to_string()) else { return };
    terminal.wait_for("\x1b[?1049h");
    let (mut stream, _) = listener.accept().unwrap();
    drop(terminal);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}
