//! `--maps`: the map whose entries expire beside maps and caches, one after the other in each
//! repetition. A million random keys, and 1, 2, 4, ... threads, each with its own part of them.

use std::error::Error;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use std::{env, thread};

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::ExpiringMap;

use crate::process;
use crate::random::Random;

const COUNT: usize = 1_000_000;

const REPETITIONS: usize = 5;

const LONG: Duration = Duration::from_secs(3_600);

/// A map with room for all keys. Its entries live for an hour, if it has times.
trait Map: Sync {
    fn new() -> Self;
    fn insert(&self, key: u64);
    fn get(&self, key: u64) -> Option<u64>;
    /// Gives the entry its time again: a map without times changes the value instead.
    fn touch(&self, key: u64) -> bool;
}

impl Map for ExpiringMap<u64, u64> {
    fn new() -> Self {
        Self::new(&HashedWheelTimer::default())
    }

    fn insert(&self, key: u64) {
        let inserted = self.insert(key, key, LONG);
        inserted.expect("the timer is neither stopped nor full");
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key)
    }

    fn touch(&self, key: u64) -> bool {
        self.touch(&key, LONG)
    }
}

impl Map for moka::sync::Cache<u64, u64> {
    fn new() -> Self {
        let builder = Self::builder().max_capacity(2 * COUNT as u64);
        builder.time_to_idle(LONG).build()
    }

    fn insert(&self, key: u64) {
        self.insert(key, key);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key)
    }

    /// Each `get` moves the time.
    fn touch(&self, key: u64) -> bool {
        self.get(&key).is_some()
    }
}

impl Map for quick_cache::sync::Cache<u64, u64> {
    fn new() -> Self {
        Self::new(2 * COUNT)
    }

    fn insert(&self, key: u64) {
        self.insert(key, key);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key)
    }

    fn touch(&self, key: u64) -> bool {
        self.get(&key).is_some()
    }
}

impl Map for dashmap::DashMap<u64, u64> {
    fn new() -> Self {
        Self::new()
    }

    fn insert(&self, key: u64) {
        self.insert(key, key);
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key).map(|value| *value)
    }

    fn touch(&self, key: u64) -> bool {
        self.get_mut(&key).map(|mut value| *value += 1).is_some()
    }
}

/// Nanoseconds of each operation per call: of a thread, so that less than with one thread means
/// that the threads disturb each other.
type Times = [f64; 4];

const OPERATIONS: [&str; 4] = ["insert", "get", "touch", "replace"];

/// Returns the nanoseconds per call.
fn timed<M: Map>(map: &M, keys: &[u64], threads: usize, call: impl Fn(&M, u64) + Sync) -> f64 {
    let (begin, call) = (&Barrier::new(threads), &call);
    let run = move |part: &[u64]| {
        begin.wait();
        let begin = Instant::now();
        part.iter().for_each(|key| call(map, *key));
        begin.elapsed().as_nanos() as f64 / part.len() as f64
    };
    let parts = keys.chunks(keys.len().div_ceil(threads));
    let times: Vec<f64> = thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || run(part))).collect();
        let times = threads.into_iter().map(|thread| thread.join());
        times.map(|time| time.expect("it does not panic")).collect()
    });
    times.iter().sum::<f64>() / times.len() as f64
}

fn measure<M: Map>(threads: usize, seed: u64, count: usize) -> Times {
    let (map, mut keys) = (M::new(), keys(count));
    let mut random = Random::new(seed);
    random.shuffle(&mut keys);
    let insert = timed(&map, &keys, threads, M::insert);
    random.shuffle(&mut keys);
    let get = timed(&map, &keys, threads, |map, key| {
        assert!(map.get(key).is_some(), "{key} is there");
    });
    random.shuffle(&mut keys);
    let touch = timed(&map, &keys, threads, |map, key| assert!(map.touch(key)));
    random.shuffle(&mut keys);
    let replace = timed(&map, &keys, threads, M::insert);
    [insert, get, touch, replace]
}

/// Distinct keys without an order.
fn keys(count: usize) -> Vec<u64> {
    let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..count as u64).map(key).collect()
}

/// How much the resident memory of this process grows per entry.
fn memory<M: Map>() -> Result<f64, String> {
    let (map, keys) = (M::new(), keys(COUNT));
    let before = process::resident()?;
    keys.iter().for_each(|key| map.insert(*key));
    process::wait_until_idle(Duration::from_secs(2));
    let grown = process::resident()?.saturating_sub(before);
    assert!(map.get(keys[0]).is_some());
    Ok(grown as f64 / COUNT as f64)
}

type Peer = (
    &'static str,
    fn(usize, u64, usize) -> Times,
    fn() -> Result<f64, String>,
);

const PEERS: [Peer; 4] = [
    (
        "hashed-wheel-util",
        measure::<ExpiringMap<u64, u64>>,
        memory::<ExpiringMap<u64, u64>>,
    ),
    (
        "moka",
        measure::<moka::sync::Cache<u64, u64>>,
        memory::<moka::sync::Cache<u64, u64>>,
    ),
    (
        "quick_cache",
        measure::<quick_cache::sync::Cache<u64, u64>>,
        memory::<quick_cache::sync::Cache<u64, u64>>,
    ),
    (
        "dashmap",
        measure::<dashmap::DashMap<u64, u64>>,
        memory::<dashmap::DashMap<u64, u64>>,
    ),
];

/// `--map-memory NAME`, in a process of its own.
pub(crate) fn print_memory(name: &str) -> Result<(), Box<dyn Error>> {
    let peer = PEERS.iter().find(|(other, ..)| *other == name);
    let (.., memory) = peer.ok_or_else(|| format!("unknown map {name}"))?;
    println!("{:.0}", memory()?);
    Ok(())
}

/// Prints the tables: the medians, and in parentheses the throughput as a share of dashmap's, the
/// median of the repetitions' ratios.
pub(crate) fn print(is_test: bool) -> Result<(), Box<dyn Error>> {
    let cores = thread::available_parallelism()?.get();
    let (count, repetitions) = if is_test {
        (1_000, 1)
    } else {
        (COUNT, REPETITIONS)
    };
    let powers = (0..).map(|power| 1 << power);
    for threads in powers.take_while(|threads| *threads <= cores) {
        let mut all: Vec<Vec<Times>> = vec![Vec::new(); PEERS.len()];
        for seed in 0..repetitions as u64 {
            for (times, (_, measure, _)) in all.iter_mut().zip(PEERS) {
                times.push(measure(threads, seed, count));
            }
        }
        println!("{threads} threads, ns per call of each (throughput x dashmap)");
        for (times, (name, ..)) in all.iter().zip(PEERS) {
            print!("{name:18}");
            for (at, operation) in OPERATIONS.iter().enumerate() {
                let median = |values: &mut dyn Iterator<Item = f64>| {
                    let mut values: Vec<_> = values.collect();
                    values.sort_unstable_by(f64::total_cmp);
                    values[values.len() / 2]
                };
                let own = median(&mut times.iter().map(|times| times[at]));
                let pairs = times.iter().zip(&all[PEERS.len() - 1]);
                let share = median(&mut pairs.map(|(own, dashmap)| dashmap[at] / own[at]));
                print!("{operation} {own:6.0} ({share:4.2})   ");
            }
            println!();
        }
    }
    for (name, ..) in PEERS.iter().filter(|_| !is_test) {
        let mut command = Command::new(env::current_exe()?);
        let output = command.args(["--map-memory", name]).output()?;
        let bytes = String::from_utf8(output.stdout)?;
        println!("{name:18}{} bytes per entry", bytes.trim());
    }
    Ok(())
}
