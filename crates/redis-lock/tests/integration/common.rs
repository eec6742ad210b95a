//! Common to the tests: a server of their own, and a proxy before it.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::env;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_trial::redis_server::{RedisServer, connect};
use hashed_wheel_trial::testing;
use redis::{Client, Commands, Connection};
use redis_lock::{Guard, Lock, LockClient, LockError, LockOptions};
use tokio::runtime::{Builder, Runtime};

/// The additional time that a busy machine gets for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A variable with the milliseconds that replace [`PATIENCE`] in the process of a mutant, where
/// most tests wait for what never happens.
pub(crate) const SHORTER: &str = "REDIS_LOCK_PATIENCE_MS";

/// Returns how long a test waits for an expected event.
pub(crate) fn patience() -> Duration {
    env::var(SHORTER).map_or(PATIENCE, |millis| {
        Duration::from_millis(millis.parse().unwrap())
    })
}

/// Whether this is a copy of the test in the trial, without a mutant: each test of the crate is
/// run once.
pub(crate) fn is_run_elsewhere() -> bool {
    module_path!().starts_with("mutants::") && env::var_os("MUTANT").is_none()
}

/// The lease of tests that wait for renewals or for its end. A sixth of it is the time of a call,
/// which is long enough for a busy machine.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// The end of the names of readers in Redis.
pub(crate) const READ: &str = "4294967295";

/// A server of its own for each test, and a client.
pub(crate) struct Setup {
    pub(crate) server: RedisServer,
    pub(crate) redis: Connection,
    pub(crate) timer: HashedWheelTimer,
    pub(crate) locks: LockClient,
}

impl Setup {
    /// Returns `None` if Redis is not installed, and in the tests of the trial unless they are run
    /// for a mutant: each test of the crate is run once.
    pub(crate) fn new(test: &str) -> Option<Self> {
        Self::with(test, &[])
    }

    /// The same with additional arguments for the server.
    pub(crate) fn with(test: &str, arguments: &[&str]) -> Option<Self> {
        if is_run_elsewhere() {
            return None;
        }
        let server = testing::server_or_skip(RedisServer::start_with(
            test,
            arguments.iter().map(|&argument| argument.into()).collect(),
        ))?;
        let timer = HashedWheelTimer::new(Duration::from_millis(5), 512);
        let locks = client(&server, &timer);
        Some(Self {
            redis: connect(&server.url()).unwrap(),
            timer,
            locks,
            server,
        })
    }

    /// Returns a client whose connections the proxy forwards.
    pub(crate) fn through_proxy(&self) -> (Proxy, LockClient) {
        let proxy = Proxy::new(&self.server);
        let locks = client_of(&proxy.url, &self.timer);
        (proxy, locks)
    }

    pub(crate) fn holder(&mut self, name: &str) -> Option<String> {
        holder(&mut self.redis, name)
    }

    pub(crate) fn queue_len(&mut self, name: &str) -> usize {
        self.redis.zcard(format!("{{lock:{name}}}:queue")).unwrap()
    }

    pub(crate) fn last_token(&mut self, key: &str) -> u64 {
        self.redis.hget(format!("{key}:tokens"), "").unwrap()
    }

    /// Returns how many hold what has this key.
    pub(crate) fn held(&mut self, key: &str) -> usize {
        self.redis.zcard(key).unwrap()
    }

    pub(crate) fn waiting(&mut self, key: &str) -> usize {
        self.redis.zcard(format!("{key}:queue")).unwrap()
    }

    /// Returns the time of Redis in milliseconds.
    pub(crate) fn clock(&mut self) -> u64 {
        let (seconds, microseconds): (u64, u64) =
            redis::cmd("TIME").query(&mut self.redis).unwrap();
        seconds * 1_000 + microseconds / 1_000
    }

    /// Adds a holder whose process has died. Its lease ends after this time.
    pub(crate) fn add_dead_holder(&mut self, key: &str, owner: &str, lease: Duration) {
        let end = self.clock() + lease.as_millis() as u64;
        let () = self.redis.zadd(key, owner, end).unwrap();
    }

    /// Makes a caller wait whose process has died, before all that are alive.
    pub(crate) fn add_dead_caller(&mut self, key: &str, owner: &str) {
        let arrival = self.waiting(key) as u64 + 1;
        self.add_dead_caller_at(arrival, key, owner);
    }

    /// The same with this time of arrival, in microseconds since 1970.
    pub(crate) fn add_dead_caller_at(&mut self, arrival: u64, key: &str, owner: &str) {
        let () = redis::pipe()
            .zadd(format!("{key}:queue"), owner, arrival)
            .hset(format!("{key}:seen"), owner, 1_u64 << 52)
            .query(&mut self.redis)
            .unwrap();
    }

    pub(crate) async fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !condition(self) {
            assert!(
                begin.elapsed() < patience(),
                "not within {:?}: {what}",
                patience()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub(crate) fn holder(redis: &mut Connection, name: &str) -> Option<String> {
    let holders: Vec<String> = redis.zrange(format!("{{lock:{name}}}"), 0, 0).unwrap();
    holders.into_iter().next()
}

/// The owner that has a lock after [`take_away`].
pub(crate) const ANOTHER: &str = "another client:0/w";

/// Gives a lock to another owner, without an end.
pub(crate) fn take_away(redis: &mut Connection, name: &str) {
    let key = format!("{{lock:{name}}}");
    let () = redis::pipe()
        .atomic()
        .del(&key)
        .zadd(&key, ANOTHER, 1e15)
        .query(redis)
        .unwrap();
}

pub(crate) fn client(server: &RedisServer, timer: &HashedWheelTimer) -> LockClient {
    client_of(&server.url(), timer)
}

fn client_of(url: &str, timer: &HashedWheelTimer) -> LockClient {
    LockClient::builder(Client::open(url).unwrap())
        .timer(timer)
        .build()
        .unwrap()
}

pub(crate) fn options() -> LockOptions {
    // Without the messages, a waiting caller would exceed the patience.
    LockOptions::new().lease(LEASE * 5).poll(PATIENCE * 3)
}

/// So long that no test sees its end, and that no renewal is due.
pub(crate) fn long() -> LockOptions {
    options().lease(PATIENCE * 3)
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(patience(), future)
        .await
        .expect("it ends in time")
}

/// Takes a lock whose lease is so short that a busy machine may not answer within a sixth of it.
pub(crate) async fn take(lock: &mut Lock) -> Guard {
    let begin = Instant::now();
    loop {
        match lock.lock().await {
            Err(LockError::Redis(_) | LockError::Lost(_)) if begin.elapsed() < patience() => {}
            taken => return taken.unwrap(),
        }
    }
}

/// How long a slow connection takes. It is more than a sixth of [`LEASE`], and less than a
/// connection may take.
pub(crate) const SLOW: Duration = Duration::from_millis(1_500);

/// How a proxy treats the answers of the server.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Answers {
    Forward,
    /// They are lost, and the connection stays open.
    Swallow,
    /// The next one is lost, because its connection is cut. After that, answers are forwarded.
    Cut,
    /// Those of new connections are lost.
    SwallowNew,
    /// The first one of each new connection comes after [`SLOW`].
    DelayNew,
    /// They say that the server has version 5, if they say its version.
    Old,
}

/// Forwards connections to a server.
pub(crate) struct Proxy {
    pub(crate) url: String,
    target: Arc<Mutex<String>>,
    answers: Arc<AtomicU8>,
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    /// Its threads end with the connections and with the process.
    pub(crate) fn new(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let target = Arc::new(Mutex::new(address(server)));
        let answers = Arc::new(AtomicU8::new(Answers::Forward as u8));
        let connections = Arc::new(AtomicUsize::new(0));
        let (to, shared, count) = (
            Arc::clone(&target),
            Arc::clone(&answers),
            Arc::clone(&connections),
        );
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                count.fetch_add(1, SeqCst);
                let Ok(server) = TcpStream::connect(&*to.lock().unwrap()) else {
                    continue;
                };
                forward_both(&client, &server, &shared);
            }
        });
        Self {
            url,
            target,
            answers,
            connections,
        }
    }

    /// Forwards new connections to this server.
    pub(crate) fn connect_to(&self, server: &RedisServer) {
        *self.target.lock().unwrap() = address(server);
    }

    pub(crate) fn set(&self, answers: Answers) {
        self.answers.store(answers as u8, SeqCst);
    }

    /// Returns how many connections clients have opened.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Returns whether a connection was cut since [`Answers::Cut`] was set.
    pub(crate) fn has_cut(&self) -> bool {
        self.answers.load(SeqCst) != Answers::Cut as u8
    }
}

fn address(server: &RedisServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

fn forward_both(client: &TcpStream, server: &TcpStream, answers: &Arc<AtomicU8>) {
    let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || forward(from_client, to_server, |_| true));
    let (from_server, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let answers = Arc::clone(answers);
    let is_silent = answers.load(SeqCst) == Answers::SwallowNew as u8;
    let is_slow = answers.load(SeqCst) == Answers::DelayNew as u8;
    thread::spawn(move || {
        if is_slow {
            thread::sleep(SLOW);
        }
        let (ends, begins) = (
            from_server.try_clone().unwrap(),
            to_client.try_clone().unwrap(),
        );
        forward(from_server, to_client, |answer| {
            const CUT: u8 = Answers::Cut as u8;
            if answers
                .compare_exchange(CUT, Answers::Forward as u8, SeqCst, SeqCst)
                .is_ok()
            {
                [&ends, &begins]
                    .into_iter()
                    .for_each(|stream| _ = stream.shutdown(Shutdown::Both));
            }
            if answers.load(SeqCst) == Answers::Old as u8 {
                make_old(answer);
            }
            !is_silent && answers.load(SeqCst) != Answers::Swallow as u8
        });
    });
}

/// Changes the first digit of the version in an answer to `HELLO`: `version\r\n$6\r\n7.0.15`.
fn make_old(answer: &mut [u8]) {
    let name = b"version\r\n$";
    let at = answer.windows(name.len()).position(|part| part == name);
    if let Some(at) = at {
        answer[at + name.len() + 3] = b'5';
    }
}

/// Forwards what `may_pass`, until a connection ends.
fn forward(mut from: TcpStream, mut to: TcpStream, may_pass: impl Fn(&mut [u8]) -> bool) {
    let mut buffer = [0; 4_096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if may_pass(&mut buffer[..length]) && to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Makes a user with the rights that the documentation of the crate lists, and these additional
/// rules. Returns the URL for it.
pub(crate) fn restricted_user(url: &str, user: &str, rules: &str) -> String {
    let documentation = include_str!("../../src/lib.rs");
    assert!(
        rules
            .split(' ')
            .all(|rule| !rule.starts_with('+') || documentation.contains(rule)),
        "{rules}"
    );
    let (_, acl) = documentation
        .split_once("ACL SETUSER locks on >PASSWORD ")
        .expect("the rights are listed");
    let (acl, _) = acl.split_once("//! ```").expect("the list ends");
    let mut command = redis::cmd("ACL");
    command.arg(&["SETUSER", user, "on", ">secret"]);
    command.arg(
        acl.split_whitespace()
            .filter(|&word| word != "//!")
            .collect::<Vec<_>>(),
    );
    command.arg(rules.split_whitespace().collect::<Vec<_>>());
    let () = command.query(&mut connect(url).unwrap()).unwrap();
    url.replace("//", &format!("//{user}:secret@"))
}
