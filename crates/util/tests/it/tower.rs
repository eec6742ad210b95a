//! The timeout layer for tower, on the manual clock.
#![cfg(feature = "tower")]

use crate::common;

use std::future::{Ready, pending, ready};
use std::iter::Take;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use common::{Driven, TICK};
use hashed_wheel::{HashedWheelTimer, Sleep, TimeoutError};
use hashed_wheel_util::tower::{BoxError, Timeout, TimeoutLayer};
use hashed_wheel_util::{Backoff, Jitter};
use tower::retry::{Policy, Retry};
use tower::{Layer, Service, ServiceExt, service_fn};

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs the future to its end, and advances the clock to each turn that the timer needs.
fn block_on<F: Future>(t: &mut Driven, future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll(future.as_mut()) {
            return output;
        }
        let wait = t
            .driver
            .next_turn()
            .expect("the future waits for the timer");
        t.pass(wait);
    }
}

/// Is ready after it was asked twice, and answers at once.
struct Slow(usize);

impl Service<u32> for Slow {
    type Response = u32;
    type Error = &'static str;
    type Future = Ready<Result<u32, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        self.0 += 1;
        match self.0 {
            1 => Poll::Pending,
            2 => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err("closed")),
        }
    }

    fn call(&mut self, request: u32) -> Self::Future {
        ready(if request == 0 {
            Err("zero")
        } else {
            Ok(request + 1)
        })
    }
}

#[test]
fn readiness_answers_and_errors_are_passed_through() {
    let t = Driven::new();
    let mut service = TimeoutLayer::new(&t.timer, TICK).layer(Slow(0));
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_pending());
    assert!(service.poll_ready(&mut context).is_ready());
    assert!(matches!(poll(pin!(service.call(7))), Poll::Ready(Ok(8))));
    let Poll::Ready(Err(error)) = poll(pin!(service.call(0))) else {
        panic!("no error")
    };
    assert_eq!(error.to_string(), "zero");
    assert!(
        matches!(service.poll_ready(&mut context), Poll::Ready(Err(error)) if error.to_string() == "closed")
    );
    assert_eq!(t.timer.stats().scheduled, 0, "nothing had to wait");
    assert_eq!(
        (
            service.get_ref().0,
            service.get_mut().0,
            service.into_inner().0
        ),
        (3, 3, 3)
    );
}

#[test]
fn request_without_an_answer_fails_with_elapsed() {
    let mut t = Driven::new();
    let silent = service_fn(|()| pending::<Result<(), BoxError>>());
    let mut service = Timeout::new(silent, &t.timer, TICK * 3);
    // The time begins with the call.
    let mut response = pin!(service.call(()));
    t.pass(TICK);
    assert!(poll(response.as_mut()).is_pending());
    t.pass(TICK);
    assert!(poll(response.as_mut()).is_pending());
    t.pass(TICK);
    let Poll::Ready(Err(error)) = poll(response) else {
        panic!("no error")
    };
    assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)));
    assert_eq!(t.timer.pending_timeouts(), 0);
}

#[test]
fn stopped_timer_is_an_error() {
    let t = Driven::new();
    t.timer.stop();
    let silent = service_fn(|()| pending::<Result<(), BoxError>>());
    let Poll::Ready(Err(error)) = poll(pin!(Timeout::new(silent, &t.timer, TICK).call(()))) else {
        panic!("no error")
    };
    assert!(matches!(error.downcast_ref(), Some(TimeoutError::Timer(_))));
}

/// Retries after a pause on this timer.
#[derive(Clone)]
struct AfterPause(HashedWheelTimer, Take<Backoff>);

/// tower's pauses have no result. If the timer is stopped, the next attempt fails.
struct Pause(Sleep);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(drop)
    }
}

impl Policy<u32, u32, BoxError> for AfterPause {
    type Future = Pause;

    fn retry(&mut self, _: &mut u32, result: &mut Result<u32, BoxError>) -> Option<Pause> {
        let pause = self.1.next().filter(|_| result.is_err())?;
        Some(Pause(self.0.sleep(pause)))
    }

    fn clone_request(&mut self, request: &u32) -> Option<u32> {
        Some(*request)
    }
}

/// Inside of tower's `Retry` the layer limits each attempt, outside of it the whole call.
#[test]
fn layer_works_inside_and_outside_of_a_retry_of_tower() {
    let mut t = Driven::new();
    let attempts = Arc::new(AtomicUsize::new(0));
    let (counter, timer) = (Arc::clone(&attempts), t.timer.clone());
    // The third attempt is answered at once, those before it never.
    let service = service_fn(move |request: u32| {
        let is_answered = counter.fetch_add(1, SeqCst) == 2;
        async move {
            if is_answered {
                Ok::<_, BoxError>(request)
            } else {
                pending().await
            }
        }
    });
    let pauses = Backoff::new(TICK * 5).max_pause(TICK * 5);
    let pauses = pauses.jitter(Jitter::None);
    let with_retry = |retries| {
        Retry::new(
            AfterPause(timer.clone(), pauses.clone().take(retries)),
            Timeout::new(service.clone(), &timer, TICK * 10),
        )
    };
    let begin = t.timer.now();
    let answer = block_on(&mut t, with_retry(2).oneshot(7));
    assert_eq!((answer.unwrap(), attempts.load(SeqCst)), (7, 3));
    assert_eq!(t.timer.now() - begin, TICK * 30);

    attempts.store(3, SeqCst);
    let begin = t.timer.now();
    let call = Timeout::new(with_retry(100), &t.timer, TICK * 40).oneshot(7);
    let error = block_on(&mut t, call).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)));
    assert_eq!(
        (attempts.load(SeqCst), t.timer.now() - begin),
        (6, TICK * 40)
    );
    assert_eq!(t.timer.pending_timeouts(), 0);
}

#[cfg(feature = "http")]
mod deadlines {
    use std::time::{Duration, Instant};

    use hashed_wheel_util::tower::{Deadline, DeadlineLayer};
    use http::Request;

    use super::*;

    /// A request as a service sees it: its deadline, from now, and its header.
    type Seen = (Option<Duration>, Option<String>);

    /// Calls a service behind the layer, which answers at once with what it has seen.
    fn seen(t: &Driven, layer: &DeadlineLayer, request: Request<()>) -> Result<Seen, BoxError> {
        let now = t.timer.now();
        let mut service = layer.layer(service_fn(move |request: Request<()>| {
            let deadline = request
                .extensions()
                .get::<Deadline>()
                .map(|deadline| deadline.0 - now);
            let header = request.headers().get("grpc-timeout");
            ready(Ok::<_, BoxError>((
                deadline,
                header.map(|value| value.to_str().unwrap().to_owned()),
            )))
        }));
        let Poll::Ready(end) = poll(pin!(service.call(request))) else {
            panic!("it need not wait")
        };
        end
    }

    fn request(header: Option<&str>, extension: Option<Instant>) -> Request<()> {
        let mut request = Request::new(());
        if let Some(value) = header {
            request
                .headers_mut()
                .insert("grpc-timeout", value.parse().unwrap());
        }
        if let Some(at) = extension {
            request.extensions_mut().insert(Deadline(at));
        }
        request
    }

    #[test]
    fn earliest_of_layer_header_and_extension_is_the_deadline() {
        let t = Driven::new();
        let at = |tick| Some(t.timer.now() + TICK * tick);
        let layer = DeadlineLayer::new(&t.timer, TICK * 5);
        let cases = [
            (None, None, 5),
            (Some("40m"), None, 4),
            (Some("60m"), None, 5),
            (None, at(3), 3),
            (None, at(6), 5),
            (Some("40m"), at(3), 3),
            (Some("20m"), at(3), 2),
            (Some("20s"), None, 5),
            (Some("123456789n"), at(6), 5),
        ];
        for (header, extension, ticks) in cases {
            let (deadline, seen) = seen(&t, &layer, request(header, extension)).unwrap();
            assert_eq!(deadline, Some(TICK * ticks), "{header:?} {extension:?}");
            assert_eq!(seen.as_deref(), header, "the header stays");
        }
        assert_eq!(t.timer.stats().scheduled, 0, "nothing had to wait");
    }

    #[test]
    fn least_of_several_headers_counts() {
        let t = Driven::new();
        let layer = DeadlineLayer::new(&t.timer, TICK * 5).write_header(true);
        for values in [
            ["40m", "20m"],
            ["20m", "40m"],
            ["none", "20m"],
            ["20m", "none"],
        ] {
            let mut request = Request::new(());
            for value in values {
                request
                    .headers_mut()
                    .append("grpc-timeout", value.parse().unwrap());
            }
            let (deadline, header) = seen(&t, &layer, request).unwrap();
            assert_eq!(
                (deadline, header.as_deref()),
                (Some(TICK * 2), Some("20000000n")),
                "{values:?}"
            );
        }
    }

    /// grpc-go takes it as a deadline that has passed, too.
    #[test]
    fn header_of_zero_is_a_deadline_that_has_passed() {
        let t = Driven::new();
        let layer = DeadlineLayer::new(&t.timer, TICK * 5);
        for zero in ["0n", "0H", "00000000m"] {
            assert!(
                seen(&t, &layer, request(Some(zero), None)).is_err(),
                "{zero}"
            );
        }
    }

    #[test]
    fn time_that_is_left_is_written_into_the_header() {
        let t = Driven::new();
        let layer = DeadlineLayer::new(&t.timer, TICK * 5).write_header(true);
        let written = |header| seen(&t, &layer, request(header, None)).unwrap().1;
        assert_eq!(written(None).as_deref(), Some("50000000n"));
        assert_eq!(written(Some("1H")).as_deref(), Some("50000000n"));
        assert_eq!(written(Some("7u")).as_deref(), Some("7000n"));
        let layer = DeadlineLayer::new(&t.timer, Duration::MAX).write_header(true);
        assert_eq!(
            seen(&t, &layer, request(None, None)).unwrap(),
            (None, None),
            "there is no deadline"
        );
        let of_header = seen(&t, &layer, request(Some("2M"), None)).unwrap();
        assert_eq!(
            of_header,
            (Some(Duration::from_secs(120)), Some("120000m".to_owned()))
        );
    }

    #[test]
    fn request_without_an_answer_fails_at_its_deadline() {
        let mut t = Driven::new();
        let silent = service_fn(|_: Request<()>| pending::<Result<(), BoxError>>());
        let mut service = DeadlineLayer::new(&t.timer, TICK * 5).layer(silent);
        let mut response = pin!(service.call(request(Some("20m"), None)));
        t.pass(TICK);
        assert!(poll(response.as_mut()).is_pending());
        t.pass(TICK);
        let Poll::Ready(Err(error)) = poll(response) else {
            panic!("no error")
        };
        assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)));
        // Without any deadline it waits.
        let mut service = DeadlineLayer::new(&t.timer, Duration::MAX).layer(silent);
        let mut response = pin!(service.call(request(None, None)));
        assert!(poll(response.as_mut()).is_pending());
        t.pass(Duration::from_secs(1_000_000));
        assert!(poll(response).is_pending());
    }

    #[test]
    fn request_whose_deadline_has_passed_is_not_sent() {
        let mut t = Driven::new();
        let begin = t.timer.now();
        t.pass(TICK);
        let service =
            service_fn(|_: Request<()>| -> Ready<Result<(), BoxError>> { panic!("it was sent") });
        let mut service = DeadlineLayer::new(&t.timer, TICK).layer(service);
        assert!(
            service
                .poll_ready(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        );
        for late in [
            request(Some("0n"), None),
            request(None, Some(begin)),
            request(None, Some(t.timer.now())),
        ] {
            let Poll::Ready(Err(error)) = poll(pin!(service.call(late))) else {
                panic!("no error")
            };
            assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)));
        }
    }
}
