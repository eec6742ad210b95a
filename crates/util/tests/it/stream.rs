//! Streams of intervals.
#![cfg(feature = "stream")]

use crate::common;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use common::{AsyncTask, Driven, TICK, ends, ms};
use futures_core::{FusedStream, Stream};
use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::IntervalStream;

fn timer() -> HashedWheelTimer {
    HashedWheelTimer::builder().tick(ms(1)).build().unwrap()
}

#[test]
fn an_interval_is_a_stream_that_ends_with_the_timer() {
    let (mut t, task) = (Driven::new(), AsyncTask::new());
    let next = |interval: &mut IntervalStream| {
        Pin::new(interval).poll_next(&mut Context::from_waker(&Waker::from(Arc::clone(&task))))
    };
    let (mut interval, mut zero) = (
        IntervalStream::new(t.timer.interval_at(t.timer.now() + TICK, TICK)),
        IntervalStream::new(t.timer.interval(Duration::ZERO)),
    );
    for _ in 0..3 {
        assert!(next(&mut interval).is_pending());
        assert_eq!(t.pass(TICK), 1);
        assert!(matches!(next(&mut interval), Poll::Ready(Some(Ok(_)))));
    }
    assert!(next(&mut interval).is_pending());
    t.timer.stop();
    assert!(!interval.is_terminated());
    assert!(matches!(
        next(&mut interval),
        Poll::Ready(Some(Err(NewTimeoutError::Stopped)))
    ));
    assert!(matches!(
        next(&mut zero),
        Poll::Ready(Some(Err(NewTimeoutError::ZeroPeriod)))
    ));
    for mut over in [interval, zero] {
        assert!(over.is_terminated() && matches!(next(&mut over), Poll::Ready(None)));
    }
}

#[test]
#[cfg_attr(miri, ignore = "smol uses system calls that Miri does not know")]
fn an_interval_works_with_stream_combinators() {
    use smol::stream::StreamExt;

    ends(|| {
        let timer = timer();
        let stopper = timer.clone();
        let begin = Instant::now();
        let ticks = smol::block_on(async {
            let five = IntervalStream::new(timer.interval(ms(2)))
                .take(5)
                .collect::<Vec<_>>()
                .await;
            assert!(five.len() == 5 && five.iter().all(Result::is_ok) && begin.elapsed() >= ms(8));
            timer
                .new_timeout(
                    move |_| drop(std::thread::spawn(move || stopper.stop())),
                    ms(20),
                )
                .unwrap();
            IntervalStream::new(timer.interval(ms(2)))
                .collect::<Vec<_>>()
                .await
        });
        let (end, before) = ticks.split_last().unwrap();
        assert!(matches!(end, Err(NewTimeoutError::Stopped)) && before.iter().all(Result::is_ok));
    });
}
