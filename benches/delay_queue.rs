//! The two `DelayQueue`s of this repository beside that of tokio-util: the one of timing-wheels,
//! which has one owner as tokio-util's has, and that of hashed-wheel-util, which is shared.
//!
//! `cargo bench -p hashed-wheel-benches --bench delay_queue` prints a table in about a minute. Each
//! figure is the nanoseconds per value, on one thread. All clocks are turned by hand. The queues
//! take turns, and a figure is the least of all rounds, so a busy machine matters less.

use std::hint::black_box;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{env, iter};

use hashed_wheel::{Driver, HashedWheelTimer, ManualClock};
use hashed_wheel_benches::random;
use hashed_wheel_util::delay_queue;
use tokio::runtime::{Builder, Runtime};
use tokio::time;

/// Numbers of values, each with the number of queues in a round.
const COUNTS: [(usize, usize); 2] = [(1_000, 20), (100_000, 1)];

const ROUNDS: usize = 60;

/// The longest delay.
const HOUR: Duration = Duration::from_secs(3_600);

const OPERATIONS: [&str; 4] = ["insert", "reset", "remove", "expire"];

trait Queue {
    type Key: Copy;

    fn insert(&mut self, value: u64, delay: Duration) -> Self::Key;
    fn reset(&mut self, key: Self::Key, delay: Duration);
    fn remove(&mut self, key: Self::Key);
    /// Removes a value that is due. Returns whether there was one.
    fn expire(&mut self, context: &mut Context<'_>) -> bool;
    /// Lets an hour pass.
    fn pass_an_hour(&mut self);
}

/// The runtime of the queues with one owner. Its clock stands still.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
});

/// Implements [`Queue`] for a queue of one owner. Both have the same methods.
macro_rules! one_owner {
    ($Queue:ty, $Key:ty) => {
        impl Queue for $Queue {
            type Key = $Key;

            fn insert(&mut self, value: u64, delay: Duration) -> $Key {
                self.insert(value, delay)
            }

            fn reset(&mut self, key: $Key, delay: Duration) {
                self.reset(&key, delay);
            }

            fn remove(&mut self, key: $Key) {
                black_box(self.remove(&key));
            }

            fn expire(&mut self, context: &mut Context<'_>) -> bool {
                matches!(black_box(self.poll_expired(context)), Poll::Ready(Some(_)))
            }

            fn pass_an_hour(&mut self) {
                RUNTIME.block_on(time::advance(HOUR));
            }
        }
    };
}

type TokioUtil = tokio_util::time::DelayQueue<u64>;
type OneOwner = timing_wheels::DelayQueue<u64, Pin<Box<time::Sleep>>>;

one_owner!(TokioUtil, tokio_util::time::delay_queue::Key);
one_owner!(OneOwner, timing_wheels::Key);

struct Shared {
    queue: delay_queue::DelayQueue<u64>,
    clock: ManualClock,
    driver: Driver,
}

impl Shared {
    fn new() -> Self {
        let clock = ManualClock::new();
        let (timer, driver) = HashedWheelTimer::builder()
            .clock(clock.clone())
            .build_driven()
            .unwrap();
        let queue = delay_queue::DelayQueue::new(&timer);
        Self {
            queue,
            clock,
            driver,
        }
    }
}

impl Queue for Shared {
    type Key = delay_queue::Key;

    fn insert(&mut self, value: u64, delay: Duration) -> Self::Key {
        self.queue.insert(value, delay).unwrap()
    }

    fn reset(&mut self, key: Self::Key, delay: Duration) {
        assert!(self.queue.reset(key, delay));
    }

    fn remove(&mut self, key: Self::Key) {
        black_box(self.queue.remove(key));
    }

    fn expire(&mut self, _: &mut Context<'_>) -> bool {
        black_box(self.queue.try_recv()).is_some()
    }

    fn pass_an_hour(&mut self) {
        self.clock.advance(HOUR);
        self.driver.turn();
    }
}

/// The nanoseconds per value of each operation.
type Costs = [f64; OPERATIONS.len()];

/// Measures all operations on queues of `count` values.
fn measure<Q: Queue>(new: impl Fn() -> Q, count: usize, queues: usize) -> Costs {
    let (mut random, mut total) = (random(), [Duration::ZERO; OPERATIONS.len()]);
    let mut keys = Vec::with_capacity(count);
    for _ in 0..queues {
        let mut delays = || -> Vec<_> {
            let delay = || Duration::from_millis(random.u64(600_000..3_600_000));
            iter::repeat_with(delay).take(count).collect()
        };
        let (first, second, third) = (delays(), delays(), delays());
        let (mut queue, mut context) = (new(), Context::from_waker(Waker::noop()));
        // So that a wheel is not at the beginning of its time.
        queue.insert(0, Duration::ZERO);
        queue.pass_an_hour();
        assert!(queue.expire(&mut context));
        let mut time = |operation: usize, begin: Instant| total[operation] += begin.elapsed();

        keys.clear();
        let begin = Instant::now();
        keys.extend(first.into_iter().map(|delay| queue.insert(0, delay)));
        time(0, begin);

        random.shuffle(&mut keys);
        let begin = Instant::now();
        for (&key, delay) in keys.iter().zip(second) {
            queue.reset(key, delay);
        }
        time(1, begin);

        random.shuffle(&mut keys);
        let begin = Instant::now();
        keys.iter().for_each(|&key| queue.remove(key));
        time(2, begin);

        third
            .into_iter()
            .for_each(|delay| _ = queue.insert(0, delay));
        queue.pass_an_hour();
        let (mut expired, begin) = (0, Instant::now());
        while queue.expire(&mut context) {
            expired += 1;
        }
        time(3, begin);
        assert_eq!(expired, count);
    }
    total.map(|time| time.as_nanos() as f64 / (count * queues) as f64)
}

fn main() {
    let is_test = env::args().any(|argument| argument == "--test");
    // `cargo bench` passes the same filter to all benchmarks: this one selects other benchmarks.
    let selects_others =
        |argument: String| !argument.starts_with('-') && !"delay_queue".contains(&argument);
    if env::args().skip(1).any(selects_others) {
        return;
    }
    let _entered = RUNTIME.enter();
    let sleep = || Box::pin(time::sleep(Duration::ZERO));
    let one_owner = || OneOwner::new(sleep(), Duration::from_millis(1));
    println!("| values | operation | tokio-util | timing-wheels | | hashed-wheel-util | |");
    println!("|--:|---|--:|--:|--:|--:|--:|");
    for (count, queues) in if is_test { [(10, 1); 2] } else { COUNTS } {
        let mut least = [[f64::MAX; OPERATIONS.len()]; 3];
        for _ in 0..if is_test { 1 } else { ROUNDS } {
            let costs = [
                measure(TokioUtil::new, count, queues),
                measure(one_owner, count, queues),
                measure(Shared::new, count, queues),
            ];
            for (least, cost) in least.iter_mut().flatten().zip(costs.into_iter().flatten()) {
                *least = least.min(cost);
            }
        }
        for (index, operation) in OPERATIONS.into_iter().enumerate() {
            let [theirs, one_owner, shared] = least.map(|costs| costs[index]);
            println!(
                "| {count} | {operation} | {theirs:.0} ns | {one_owner:.0} ns | × {:.2} | {shared:.0} ns | × {:.2} |",
                one_owner / theirs,
                shared / theirs
            );
        }
    }
}
