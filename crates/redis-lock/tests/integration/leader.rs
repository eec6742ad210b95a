//! The example of leader election, with two processes.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel_trial::process::Process;
use hashed_wheel_trial::redis_server::RedisServer;
use hashed_wheel_trial::testing;

use super::common::patience;

#[path = "../../examples/leader_election.rs"]
#[allow(dead_code, unreachable_pub)]
mod example;

/// The URL of the server, in the process of a candidate.
const URL: &str = "REDIS_LOCK_LEADER_URL";
const NAME: &str = "REDIS_LOCK_LEADER_NAME";
const LEASE: Duration = Duration::from_millis(1_500);

/// A process that this test starts: it has no other use.
#[tokio::test]
async fn candidate() {
    let (Ok(url), Ok(name)) = (env::var(URL), env::var(NAME)) else {
        return;
    };
    hashed_wheel_trial::when_parent_ends(|| std::process::exit(0));
    example::run(&url, &name, LEASE).await.unwrap();
}

/// Starts a candidate. Returns it with the lines that it prints.
fn start(url: &str, name: &str) -> (Process, Receiver<String>) {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["leader::candidate", "--exact", "--nocapture"])
        .env(URL, url)
        .env(NAME, name);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command).unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        output
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| sender.send(line))
    });
    (process, lines)
}

/// Waits until the candidate leads. Returns its term.
fn until_leads(lines: &Receiver<String>, name: &str) -> u64 {
    let end = Instant::now() + patience();
    loop {
        let line = lines.recv_timeout(end.saturating_duration_since(Instant::now()));
        let line = line.unwrap_or_else(|_| panic!("{name} does not lead within {:?}", patience()));
        // The test harness may have begun the line.
        if let Some((_, term)) = line.split_once(&format!("{name} leads in term ")) {
            return term.parse().unwrap();
        }
    }
}

#[test]
fn another_candidate_leads_after_the_leader_was_killed_or_stopped() {
    let Some(server) = testing::server_or_skip(RedisServer::start("lock-leader")) else {
        return;
    };
    let url = server.url();
    let (mut first, lines_of_first) = start(&url, "the first candidate");
    let term = until_leads(&lines_of_first, "the first candidate");
    let (mut second, lines_of_second) = start(&url, "the second candidate");
    thread::sleep(LEASE / 3);
    assert!(
        !lines_of_second
            .try_iter()
            .any(|line| line.contains("leads in term")),
        "there are two leaders"
    );

    first.kill().unwrap();
    let next = until_leads(&lines_of_second, "the second candidate");
    assert!(next > term, "{next} after {term}");

    // A leader that is stopped for longer than its lease learns that it leads no longer.
    let (_third, lines_of_third) = start(&url, "the third candidate");
    let stopped = second.stop().unwrap();
    let last = until_leads(&lines_of_third, "the third candidate");
    assert!(last > next, "{last} after {next}");
    drop(stopped);
    let begin = Instant::now();
    while !lines_of_second
        .try_iter()
        .any(|line| line.contains("the second candidate leads no longer: "))
    {
        assert!(
            begin.elapsed() < patience(),
            "the former leader does not learn it"
        );
        thread::sleep(Duration::from_millis(10));
    }
}
