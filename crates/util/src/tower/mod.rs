//! Timeouts for the services of tower: feature `tower`.
//!
//! [`Timeout`] and [`TimeoutLayer`] are those of `tower::timeout`, on a timer of this library. A
//! layer outside of a retry limits the whole call; one inside of it limits each attempt.
//!
//! With feature `http`, the limit of [`DeadlineLayer`] depends on the HTTP request: on its header
//! `grpc-timeout`, on its extension [`Deadline`], and on the [deadline](crate::deadline) of the
//! task.
//!
//! There are no layers for retries and hedged requests. `tower::retry` works with this timer: the
//! future of its `Policy` may be a [`Sleep`](hashed_wheel::Sleep). The module `client`, with the
//! feature of that name, has both, with one deadline and one budget, for any operation that is a
//! future, such as `service.clone().oneshot(request.clone())`.

#[cfg(feature = "http")]
mod deadline;
#[cfg(feature = "http")]
mod grpc_timeout;
#[cfg(feature = "http")]
mod status;

use std::error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use hashed_wheel::{HashedWheelTimer, TimeoutError, WithTimeout};

#[cfg(feature = "http")]
pub use self::deadline::{Deadline, DeadlineLayer, DeadlineService};
#[cfg(feature = "http")]
pub use self::status::{grpc_status, http_status};

/// The error of a [`Timeout`]: `tower::BoxError`.
pub type BoxError = Box<dyn error::Error + Send + Sync>;

/// Adds a [`Timeout`] to a service: `tower::timeout::TimeoutLayer`.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::tower::TimeoutLayer;
/// use std::time::Duration;
/// use tower::{Service, ServiceBuilder, service_fn};
///
/// let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
/// let mut service = ServiceBuilder::new()
///     .layer(TimeoutLayer::new(&timer, Duration::from_secs(5)))
///     .service(service_fn(|name: &'static str| async move { Ok::<_, std::io::Error>(name.len()) }));
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// assert_eq!(service.call("request").await?, 7);
/// # Ok::<(), hashed_wheel_util::tower::BoxError>(())
/// # }).map_err(|error| error as Box<dyn std::error::Error>)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TimeoutLayer {
    timer: HashedWheelTimer,
    timeout: Duration,
}

impl TimeoutLayer {
    /// Makes a layer that limits each request to `timeout`, on `timer`.
    #[must_use]
    pub fn new(timer: &HashedWheelTimer, timeout: Duration) -> Self {
        Self {
            timer: timer.clone(),
            timeout,
        }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Timeout<S> {
        Timeout::new(inner, &self.timer, self.timeout)
    }
}

/// A service with a limit on the time of each request: `tower::timeout::Timeout`.
///
/// The time begins with the call of the service. `poll_ready` is passed through and is not limited.
/// When the time is over, the response future of the inner service is dropped together with that of
/// this one.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::tower::Timeout;
/// use hashed_wheel::{HashedWheelTimer, TimeoutError};
/// use std::time::Duration;
/// use tower::{Service, service_fn};
///
/// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
/// let silent = service_fn(|_: ()| std::future::pending::<Result<(), std::io::Error>>());
/// let mut service = Timeout::new(silent, &timer, Duration::from_millis(20));
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let error = service.call(()).await.unwrap_err();
/// assert!(matches!(error.downcast_ref(), Some(TimeoutError::Elapsed)));
/// # });
/// ```
///
/// # Errors
///
/// The response future resolves with a boxed [`TimeoutError`]:
/// [`Elapsed`](hashed_wheel::TimeoutError::Elapsed) when the time is over,
/// [`Timer`](hashed_wheel::TimeoutError::Timer) if the timer is stopped or rejects the timeout.
/// Errors of the inner service are boxed.
#[derive(Debug, Clone)]
pub struct Timeout<S> {
    inner: S,
    timer: HashedWheelTimer,
    timeout: Duration,
}

impl<S> Timeout<S> {
    /// Limits each request of `inner` to `timeout`, on `timer`.
    #[must_use]
    pub fn new(inner: S, timer: &HashedWheelTimer, timeout: Duration) -> Self {
        Self {
            inner,
            timer: timer.clone(),
            timeout,
        }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service, without the limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, Request> Service<Request> for Timeout<S>
where
    S: Service<Request>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        ResponseFuture {
            response: Some(self.timer.timeout(self.timeout, self.inner.call(request))),
        }
    }
}

pin_project! {
    /// The response of a service with a limit: `tower::timeout::future::ResponseFuture`.
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct ResponseFuture<F> {
        // `None` if the time was over before the request was sent.
        #[pin]
        response: Option<WithTimeout<F>>,
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let end = match self.project().response.as_pin_mut() {
            Some(response) => ready!(response.poll(context)),
            None => Err(TimeoutError::Elapsed),
        };
        match end {
            Ok(response) => Poll::Ready(response.map_err(Into::into)),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}
