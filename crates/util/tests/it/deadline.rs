//! The deadline that follows a request.
#![cfg(all(feature = "client", feature = "http", feature = "tokio", not(miri)))]

use std::future::{pending, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, TimeoutError};
use hashed_wheel_util::client::{CallError, Client, Policy};
use hashed_wheel_util::time::{self, error::Elapsed};
use hashed_wheel_util::tower::{
    BoxError, Deadline, DeadlineLayer, TimeoutLayer, grpc_status, http_status,
};
use hashed_wheel_util::{deadline, tokio::build_on};
use http::{Request, StatusCode};
use tokio::runtime::Handle;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::common::{Driven, TICK, ms};

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn in_ms(millis: u64) -> Instant {
    time::Instant::now().into_std() + ms(millis)
}

#[test]
fn a_deadline_is_current_during_the_polls_of_its_future_alone() {
    let (far, farther) = (in_ms(60_000), in_ms(90_000));
    let two_looks = || async {
        let first = deadline::current();
        tokio::task::yield_now().await;
        (first, deadline::current())
    };
    let mut one = pin!(deadline::within(far, two_looks()));
    let mut other = pin!(deadline::within(farther, two_looks()));
    let mut none = pin!(two_looks());
    // All three in turn on one thread, as `join!` polls them.
    for _ in 0..2 {
        let ended = (
            poll(one.as_mut()),
            poll(other.as_mut()),
            poll(none.as_mut()),
        );
        assert_eq!(deadline::current(), None);
        if let (Poll::Ready(one), Poll::Ready(other), Poll::Ready(none)) = ended {
            assert_eq!(one, Ok((Some(far), Some(far))));
            assert_eq!(other, Ok((Some(farther), Some(farther))));
            assert_eq!(none, (None, None));
            return;
        }
    }
    panic!("they wait for more than one poll");
}

#[test]
fn the_nearest_of_nested_deadlines_counts() {
    let (near, far) = (in_ms(60_000), in_ms(90_000));
    for (outer, inner) in [(near, far), (far, near)] {
        let both = deadline::within(outer, async move {
            let within = deadline::within(inner, async { deadline::current() }).await;
            (within, deadline::current())
        });
        let seen = smol::block_on(both);
        assert_eq!(seen, Ok((Ok(Some(near)), Some(outer))));
    }
}

#[test]
fn a_panic_restores_the_deadline() {
    let (near, far) = (in_ms(60_000), in_ms(90_000));
    let outer = deadline::within(far, async {
        let panics = pin!(deadline::within(near, async { panic!("in the future") }));
        let panicked: Result<Poll<Result<(), Elapsed>>, _> =
            catch_unwind(AssertUnwindSafe(|| poll(panics)));
        assert!(panicked.is_err());
        deadline::current()
    });
    assert_eq!(smol::block_on(outer), Ok(Some(far)));
    assert_eq!(deadline::current(), None);
}

#[test]
fn a_future_that_moves_to_another_thread_takes_its_deadline_along() {
    let far = in_ms(60_000);
    let mut moved = Box::pin(deadline::within(far, async {
        let first = deadline::current();
        tokio::task::yield_now().await;
        (first, deadline::current())
    }));
    assert!(poll(moved.as_mut()).is_pending());
    let there = std::thread::spawn(move || {
        assert_eq!(deadline::current(), None);
        poll(moved.as_mut())
    });
    assert_eq!(
        there.join().unwrap(),
        Poll::Ready(Ok((Some(far), Some(far))))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawned_task_has_a_deadline_only_if_it_asks() {
    let far = in_ms(60_000);
    let request = async {
        let without = tokio::spawn(async { deadline::current() });
        let with = tokio::spawn(deadline::inherit(async {
            let nested = deadline::inherit(async { deadline::current() });
            tokio::spawn(nested).await.unwrap()
        }));
        (without.await.unwrap(), with.await.unwrap())
    };
    assert_eq!(deadline::within(far, request).await, Ok((None, Some(far))));
    let outside = deadline::inherit(async { deadline::current() });
    assert_eq!(outside.await, None);
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_ends_at_the_deadline_if_that_is_nearer() {
    for (limit, expected) in [
        (ms(10), ms(10)),
        (ms(90_000), ms(60_000)),
        (Duration::MAX, ms(60_000)),
    ] {
        let begin = time::Instant::now();
        let request = deadline::inherit(async move { time::timeout(limit, pending::<()>()).await });
        let limited = deadline::within(begin + ms(60_000), async move {
            assert_eq!(deadline::remaining(), Some(ms(60_000)));
            request.await
        });
        // Either of the two that end at the same time.
        assert!(matches!(limited.await, Err(_) | Ok(Err(_))));
        let range = expected..=expected + ms(1);
        assert!(range.contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }
    assert_eq!(deadline::remaining(), None);
}

/// Awaits a future that was made within a deadline, but outside of it.
async fn made_within<F: Future>(deadline: Instant, make: impl FnOnce() -> F) -> F::Output {
    let mut made = None;
    let makes = async { made = Some(make()) };
    deadline::within(deadline, makes).await.unwrap();
    made.unwrap().await
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_heeds_the_deadline_of_the_task_that_polls_it() {
    let far = in_ms(60_000);
    for limit in [ms(50_000), Duration::MAX] {
        let begin = time::Instant::now();
        let later = time::sleep(ms(10_000));
        let spawned = made_within(in_ms(100), || tokio::spawn(time::timeout(limit, later)));
        assert_eq!(spawned.await.unwrap(), Ok(()));
        assert!(begin.elapsed() >= ms(10_000));

        let limited = time::timeout(limit, pending::<()>());
        let inherited = made_within(in_ms(100), || deadline::inherit(limited));
        let begin = time::Instant::now();
        assert!(inherited.await.is_err());
        assert!(begin.elapsed() <= ms(101), "{:?}", begin.elapsed());
    }
    let nested = deadline::within(far, async { deadline::current() });
    let spawned = made_within(in_ms(100), || tokio::spawn(nested));
    assert_eq!(spawned.await.unwrap(), Ok(Some(far)));
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_the_time_follows_the_paused_clock() {
    let limited = deadline::within(in_ms(100), async {
        time::sleep(ms(30)).await;
        let rest = deadline::remaining().unwrap();
        assert!((ms(69)..=ms(70)).contains(&rest), "{rest:?}");
        time::sleep(ms(60_000)).await;
    });
    assert_eq!(
        limited.await.unwrap_err().to_string(),
        "deadline has elapsed"
    );
    let passed = deadline::inherit(async { deadline::remaining() });
    let (rest, ended) = (deadline::within(in_ms(0), ready(())), passed.await);
    assert_eq!((rest.await, ended), (Ok(()), None));
}

#[test]
fn a_timer_of_ones_own_respects_the_deadline() {
    let mut t = Driven::new();
    let time = time::Timer::new(&t.timer);
    let mut limited = pin!(deadline::within(t.timer.now() + TICK, async {
        time.timeout(TICK * 9, pending::<()>()).await
    }));
    assert!(poll(limited.as_mut()).is_pending());
    t.pass(TICK);
    assert!(poll(limited.as_mut()).is_ready());
}

// --- client --------------------------------------------------------------------------------------

#[test]
fn a_call_ends_at_the_deadline_and_hands_it_on() {
    let mut t = Driven::new();
    let client = Client::new(&t.timer, Policy::new(TICK * 5));
    let now = t.timer.now();
    let seen = || async { Ok::<_, ()>(deadline::current()) };
    let far = deadline::inherit(client.call(|_| seen()));
    assert_eq!(smol::block_on(far), Ok(Some(now + TICK * 5)));
    let near = deadline::within(now + TICK, async { client.call_once(seen()).await });
    assert_eq!(smol::block_on(near), Ok(Ok(Some(now + TICK))));

    let mut silent = pin!(deadline::within(now + TICK * 2, async {
        client.call(|_| pending::<Result<(), ()>>()).await
    }));
    assert!(poll(silent.as_mut()).is_pending());
    t.pass(TICK * 2);
    assert_eq!(poll(silent), Poll::Ready(Ok(Err(CallError::Deadline))));

    let late = deadline::within(now, async {
        let once = client.call_once(async { panic!("it was sent") }).await;
        let repeated =
            client.call(|_| -> std::future::Ready<Result<(), ()>> { panic!("it was sent") });
        (once as Result<(), CallError<()>>, repeated.await)
    });
    let ended = Err(CallError::Deadline);
    assert_eq!(smol::block_on(late), Ok((ended.clone(), ended)));
}

// --- tower ---------------------------------------------------------------------------------------

fn request(header: &str) -> Request<()> {
    Request::builder()
        .header("grpc-timeout", header)
        .body(())
        .unwrap()
}

#[test]
fn a_layer_sets_the_deadline_of_a_handler() {
    let t = Driven::new();
    let layer = DeadlineLayer::new(&t.timer, TICK * 9);
    let now = t.timer.now();
    let mut server = layer.layer(service_fn(|request: Request<()>| {
        // Before the future, and in it.
        let (in_call, of_request) = (
            deadline::current(),
            *request.extensions().get::<Deadline>().unwrap(),
        );
        async move { Ok::<_, BoxError>([in_call, deadline::current(), Some(of_request.0)]) }
    }));
    let call = server.call(request("40m"));
    assert_eq!(deadline::current(), None);
    assert_eq!(smol::block_on(call).unwrap(), [Some(now + TICK * 4); 3]);
    let near = deadline::within(now + TICK, async {
        server.call(request("40m")).await.unwrap()
    });
    assert_eq!(smol::block_on(near), Ok([Some(now + TICK); 3]));
}

#[test]
fn a_layer_without_a_limit_sets_none() {
    let t = Driven::new();
    let layer = DeadlineLayer::new(&t.timer, Duration::MAX);
    let mut server = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, BoxError>(deadline::current())
    }));
    assert_eq!(smol::block_on(server.call(Request::new(()))).unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn the_header_of_a_request_has_the_rest_of_the_time() {
    let timer = build_on(HashedWheelTimer::builder().tick(ms(1)), &Handle::current()).unwrap();
    let send = service_fn(|request: Request<()>| async move {
        Ok::<_, BoxError>(
            request.headers()["grpc-timeout"]
                .to_str()
                .unwrap()
                .to_owned(),
        )
    });
    let client = DeadlineLayer::new(&timer, Duration::MAX)
        .write_header(true)
        .layer(send);
    let server = DeadlineLayer::new(&timer, ms(30_000)).layer(service_fn(move |_: Request<()>| {
        let client = client.clone();
        async move {
            time::sleep(ms(40)).await;
            client.oneshot(Request::new(())).await
        }
    }));
    let rest = server.oneshot(request("100m")).await.unwrap();
    let micros: u64 = rest.strip_suffix('n').unwrap().parse().unwrap();
    assert!((58_000_000..=60_000_000).contains(&micros), "{rest}");
}

#[tokio::test(start_paused = true)]
async fn a_server_knows_what_to_answer() {
    let timer = build_on(HashedWheelTimer::builder().tick(ms(1)), &Handle::current()).unwrap();
    let silent = || service_fn(|_: Request<()>| pending::<Result<(), BoxError>>());
    let late = DeadlineLayer::new(&timer, ms(9)).layer(silent());
    let error = late.oneshot(Request::new(())).await.unwrap_err();
    assert_eq!(
        (http_status(&*error), grpc_status(&*error)),
        (StatusCode::GATEWAY_TIMEOUT, 4)
    );

    // An error of a handler that has awaited a `timeout`, and one that another one has wrapped.
    let within = service_fn(|_: Request<()>| async {
        Ok::<_, BoxError>(time::timeout(ms(1), pending::<()>()).await?)
    });
    let error = TimeoutLayer::new(&timer, ms(9_000))
        .layer(within)
        .oneshot(Request::new(()))
        .await;
    let error = error.unwrap_err();
    assert_eq!(
        (http_status(&*error), grpc_status(&*error)),
        (StatusCode::GATEWAY_TIMEOUT, 4)
    );
    let wrapped = Wrapped(error);
    assert_eq!(
        (http_status(&wrapped), grpc_status(&wrapped)),
        (StatusCode::GATEWAY_TIMEOUT, 4)
    );

    async fn handler() -> Result<(), StatusCode> {
        Ok(time::timeout(ms(1), pending::<()>()).await?)
    }
    assert_eq!(handler().await, Err(StatusCode::GATEWAY_TIMEOUT));

    let other: BoxError = "broken".into();
    assert_eq!(
        (http_status(&*other), grpc_status(&*other)),
        (StatusCode::INTERNAL_SERVER_ERROR, 2)
    );
    // That of a connection, of a handler that does I/O, and of a call; then that of a sleep.
    let over = time::timeout(ms(1), pending::<()>()).await.unwrap_err();
    let late: [BoxError; 4] = [
        io::Error::from(TimeoutError::Elapsed).into(),
        io::Error::from(over).into(),
        CallError::<io::Error>::Deadline.into(),
        CallError::<io::Error>::AttemptTimeout.into(),
    ];
    for late in late {
        assert_eq!(
            (http_status(&*late), grpc_status(&*late)),
            (StatusCode::GATEWAY_TIMEOUT, 4),
            "{late:?}"
        );
    }
    let full = CallError::<io::Error>::Timer(NewTimeoutError::Stopped);
    assert_eq!(http_status(&full), StatusCode::SERVICE_UNAVAILABLE);
    let reset = io::Error::from(io::ErrorKind::ConnectionReset);
    assert_eq!(http_status(&reset), StatusCode::INTERNAL_SERVER_ERROR);
    timer.stop();
    let error = timer.sleep(ms(9)).await.unwrap_err();
    assert_eq!(
        (http_status(&error), grpc_status(&error)),
        (StatusCode::SERVICE_UNAVAILABLE, 14)
    );
    let stopped = DeadlineLayer::new(&timer, ms(9))
        .layer(silent())
        .oneshot(Request::new(()))
        .await;
    let error = stopped.unwrap_err();
    assert!(error.is::<TimeoutError>());
    assert_eq!(
        (http_status(&*error), grpc_status(&*error)),
        (StatusCode::SERVICE_UNAVAILABLE, 14)
    );
}

#[derive(Debug)]
struct Wrapped(BoxError);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the call has failed")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}
