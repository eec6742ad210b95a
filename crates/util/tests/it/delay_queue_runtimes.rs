//! A queue whose consumers are tasks of tokio, with one thread and with several, and of smol. These
//! tests use real time, so lower bounds are strict and upper bounds generous.

use crate::common;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use common::{ends, ms};
use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::delay_queue::DelayQueue;

/// The number of values.
const MANY: u64 = if cfg!(miri) { 20 } else { 5_000 };

fn timer() -> HashedWheelTimer {
    HashedWheelTimer::builder().tick(ms(1)).build().unwrap()
}

/// A runtime without its own timer.
fn tokio(threads: usize) -> tokio::runtime::Runtime {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).build().unwrap()
}

/// Producers on threads, and consumers that are tasks of the runtime. Returns how many values were
/// received.
async fn receive_all<F: Future<Output = usize>>(
    timer: HashedWheelTimer,
    spawn: impl Fn(Pin<Box<dyn Future<Output = usize> + Send>>) -> F,
) -> usize {
    const CONSUMERS: usize = 3;

    let queue = DelayQueue::new(&timer);
    let producers: Vec<_> = (0..2)
        .map(|producer| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                for number in (producer..MANY).step_by(2) {
                    queue.insert(number, ms(number % 50)).unwrap();
                }
            })
        })
        .collect();
    let received = Arc::new(AtomicUsize::new(0));
    let consumers = [(); CONSUMERS].map(|()| {
        let (queue, received, timer) = (queue.clone(), Arc::clone(&received), timer.clone());
        spawn(Box::pin(async move {
            let mut own = 0;
            while let Ok(expired) = queue.expired().await {
                assert!(expired.deadline() <= Instant::now(), "early");
                own += 1;
                if received.fetch_add(1, SeqCst) + 1 == MANY as usize {
                    // Ends the waits of the other consumers.
                    timer.stop();
                }
            }
            own
        }))
    });
    let mut sum = 0;
    for consumer in consumers {
        sum += consumer.await;
    }
    producers
        .into_iter()
        .for_each(|producer| producer.join().unwrap());
    assert!(queue.is_empty());
    sum
}

#[test]
#[cfg_attr(miri, ignore = "smol uses system calls that Miri does not know")]
fn tasks_receive_values_from_a_queue_on_any_runtime() {
    for threads in [1, 4] {
        let received = ends(move || {
            tokio(threads).block_on(receive_all(timer(), |task| async {
                tokio::spawn(task).await.unwrap()
            }))
        });
        assert_eq!(received, MANY as usize);
    }
    assert_eq!(
        ends(|| smol::block_on(receive_all(timer(), smol::spawn))),
        MANY as usize
    );
}
