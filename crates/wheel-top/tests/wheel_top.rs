//! `wheel-top` and a service that shows its timers, run as a user would.
#![cfg(feature = "cli")]

use std::env;
#[cfg(target_os = "linux")]
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Timeout};
use hashed_wheel_trial::process::{self, Process};
use hashed_wheel_trial::testing::{self, RunResult};
use wheel_top::Show;

const PROGRAM: &str = env!("CARGO_BIN_EXE_wheel-top");

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The time limit for expected events, on a machine that may be busy.
const TIMEOUT: Duration = Duration::from_secs(30);

fn run(options: &str) -> RunResult {
    testing::run(PROGRAM, options)
}

/// The command that starts the example `service` on an address.
fn service_on(address: &str) -> Command {
    // `target/debug/deps/wheel_top-…` beside `target/debug/examples/…`.
    let test = env::current_exe().unwrap();
    let built = test.parent().unwrap().with_file_name("examples");
    let program = built
        .join("service")
        .with_extension(env::consts::EXE_EXTENSION);
    assert!(
        program.exists(),
        "run `cargo build -p wheel-top --examples` first"
    );
    let mut command = Command::new(program);
    command.env("WHEEL_TOP", address).stdin(Stdio::null());
    command
}

/// The example `service`, which runs until its input ends.
struct Service {
    process: Process,
    output: BufReader<ChildStdout>,
    /// As the service prints it.
    address: String,
}

impl Service {
    fn start(address: &str) -> Self {
        let mut command = service_on(address);
        let mut process =
            Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        let address = first
            .trim()
            .strip_prefix("To watch the timers: wheel-top ")
            .expect(&first);
        Self {
            process,
            output,
            address: address.to_owned(),
        }
    }

    /// Ends the service and returns the rest of its output.
    fn end(mut self) -> String {
        drop(self.process.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.process.wait().unwrap().success(), "{rest}");
        rest
    }
}

// --- a service -----------------------------------------------------------------------------------

#[test]
fn example_can_be_watched() {
    let service = Service::start("127.0.0.1:0");
    for (name, parts) in [
        (
            "connections",
            ["service: connections (1 of 2", "512 slots of 100ms"],
        ),
        ("requests", ["service: requests (2 of 2", " of 64 slots"]),
    ] {
        let options = format!("{} --once --size 80x24 --timer {name}", service.address);
        let RunResult {
            status,
            text: picture,
        } = run(&options);
        assert_eq!(status, Some(0), "{picture}");
        for part in parts
            .into_iter()
            .chain(["● live", "▲", "pending", "scheduled"])
        {
            assert!(picture.contains(part), "no {part:?} in\n{picture}");
        }
        assert_eq!(picture.lines().count(), 24);
    }
    // The service continues as without a viewer.
    let rest = service.end();
    assert!(rest.contains("connections were open"), "{rest}");
}

#[test]
fn service_with_a_bad_address_says_what_is_allowed() {
    let taken = TcpListener::bind(ANY).unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let cannot = format!("cannot listen on {taken}: ");
    for (address, parts) in [
        (
            &*taken,
            [
                &*cannot,
                "set WHEEL_TOP to another address, such as 127.0.0.1:0",
            ],
        ),
        (
            "here",
            ["WHEEL_TOP is \\\"here\\\"", "such as 127.0.0.1:7070"],
        ),
        ("0.0.0.0:7070", ["0.0.0.0:7070", "of this machine only"]),
    ] {
        let RunResult { status, text } = testing::run_command(&mut service_on(address));
        assert_eq!(status, Some(1), "{text}");
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{address}: {text}"
        );
    }
}

/// The directory in `/proc` of the thread of the view.
#[cfg(target_os = "linux")]
fn view_thread(process: u32) -> PathBuf {
    let began = Instant::now();
    loop {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let is_view = |task: &PathBuf| {
            fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "wheel-top")
        };
        if let Some(task) = tasks.map(|task| task.unwrap().path()).find(is_view) {
            return task;
        }
        // A new thread has the name of its parent until it runs for the first time.
        assert!(
            began.elapsed() < TIMEOUT,
            "no thread has the name of the view"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// The number of times that a thread has slept so far.
#[cfg(target_os = "linux")]
fn sleeps(task: &Path) -> u64 {
    let status = fs::read_to_string(task.join("status")).unwrap();
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// The thread sleeps without an end before the first viewer, and again after the last one.
#[cfg(target_os = "linux")]
#[test]
fn view_does_not_wake_up_while_nobody_watches() {
    /// With a viewer, the thread sleeps ten times as often.
    const QUIET: Duration = Duration::from_secs(1);

    #[track_caller]
    fn wait_for_quiet(view: &Path) {
        let began = Instant::now();
        loop {
            let before = sleeps(view);
            thread::sleep(QUIET);
            if sleeps(view) == before {
                break;
            }
            assert!(began.elapsed() < TIMEOUT, "the thread still wakes up");
        }
    }

    let service = Service::start("127.0.0.1:0");
    let view = view_thread(service.process.id());
    wait_for_quiet(&view);
    let before = sleeps(&view);
    let RunResult { status, text } = run(&format!("{} --once", service.address));
    assert_eq!(status, Some(0), "{text}");
    assert!(
        sleeps(&view) > before,
        "no sleep was counted with a viewer, so this test would see none"
    );
    wait_for_quiet(&view);
    service.end();
}

// --- wheel-top -----------------------------------------------------------------------------------

#[test]
fn wheel_top_has_its_own_timers() {
    for (options, parts) in [
        (
            "--once --size 120x40",
            ["wheel-top: hashed (1 of 2", "512 slots of 10ms"],
        ),
        (
            "--once --timer hierarchical",
            ["wheel-top: hierarchical (2 of 2", "levels of 64 slots"],
        ),
    ] {
        let RunResult {
            status,
            text: picture,
        } = run(options);
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
fn program_without_timers_or_of_another_kind_is_reported() {
    // It cannot be distinguished from a very long frame.
    let endless = b"{\"program\":\""
        .iter()
        .chain(&[b'a'; 5 << 20])
        .copied()
        .collect();
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
        scope.spawn(|| {
            let show = Show::at(ANY).unwrap();
            let RunResult { status, text } = run(&format!("{} --once", show.address()));
            assert_eq!(status, Some(1), "{text}");
            assert!(text.contains("has no timer to show"), "{text}");
        });
        scope.spawn(|| {
            answers(
                b"220 mail.example.org\r\n".to_vec(),
                "does not send timer states",
            );
        });
        scope.spawn(|| answers(b"\xff\xfe\n".to_vec(), "does not send timer states"));
        scope.spawn(|| answers(endless, "sends too much: above 4 MiB at a time"));
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
    (0..9).for_each(|_| {
        drop(
            timer
                .new_timeout(|_| (), Duration::from_secs(3_600))
                .unwrap(),
        );
    });
    show.watch("stuck", &timer);
    let picture = run(&format!("{} --once", show.address())).text;
    drop(end);
    for part in ["the worker is in a turn", "● in a turn for "] {
        assert!(picture.contains(part), "no {part:?} in\n{picture}");
    }
    assert!(
        !picture.contains("live") && !picture.contains("never used"),
        "{picture}"
    );
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
    command
        .arg("--once")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Process::start(&mut command).unwrap();
    drop(child.stdout.take());
    let mut text = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), &*text), (Some(0), ""));
}

#[test]
fn closed_pipe_for_messages_does_not_change_the_status() {
    let mut command = Command::new(PROGRAM);
    command
        .args(["127.0.0.1:1", "--once"])
        .stderr(Stdio::piped());
    let mut child = Process::start(&mut command).unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn missing_terminal_is_reported() {
    let RunResult { status, text } = run("127.0.0.1:1");
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("no terminal") && text.contains("--once"),
        "{text}"
    );
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
        let command =
            format!("stty rows 24 cols 80 && echo process $$ && exec '{PROGRAM}' {options}");
        let mut script = Command::new("script");
        script
            .args(["-qefc", &command, "/dev/null"])
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh");
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
        Some(Self {
            script,
            bytes,
            seen: String::new(),
        })
    }

    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        let began = Instant::now();
        while !self.seen.contains(text) {
            let bytes = self
                .bytes
                .recv_timeout(TIMEOUT.saturating_sub(began.elapsed()));
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
        let Some(mut terminal) = Terminal::with("") else {
            return;
        };
        terminal.wait_for("live");
        assert_eq!(terminal.quit(key), Some(0), "{key:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn signals_quit() {
    for signal in ["TERM", "HUP", "INT", "QUIT"] {
        let Some(mut terminal) = Terminal::with("") else {
            return;
        };
        terminal.wait_for("live");
        process::signal(terminal.process(), signal).unwrap();
        assert_eq!(terminal.restored(), Some(0), "{signal}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn wheel_top_ends_with_its_terminal() {
    let listener = TcpListener::bind(ANY).unwrap();
    let Some(mut terminal) = Terminal::with(&listener.local_addr().unwrap().to_string()) else {
        return;
    };
    terminal.wait_for("\x1b[?1049h");
    let (mut stream, _) = listener.accept().unwrap();
    drop(terminal);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    // If it were still running, it would connect again.
    thread::sleep(Duration::from_secs(2));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[cfg(target_os = "linux")]
#[test]
fn start_and_end_of_a_service_are_shown() {
    // On this address, no other test takes the port before the program does.
    let address = TcpListener::bind("127.0.0.2:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let Some(mut terminal) = Terminal::with(&address) else {
        return;
    };
    terminal.wait_for("\x1b[?1049h");
    terminal.wait_for("listens");
    let service = Service::start(&address);
    // (Text that is already on the screen is not written again, so the test waits for single
    // words.)
    terminal.wait_for("live");
    terminal.wait_for("connections");
    service.end();
    terminal.wait_for("ended");
    assert_eq!(terminal.quit(b"q"), Some(0));
}
