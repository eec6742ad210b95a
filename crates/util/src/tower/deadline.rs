//! A limit per HTTP request.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{HeaderValue, Request};
use tower_layer::Layer;
use tower_service::Service;

use hashed_wheel::HashedWheelTimer;

use super::{BoxError, ResponseFuture, grpc_timeout};
use crate::deadline_of_task::{self as deadline, Within};

const HEADER: &str = "grpc-timeout";

/// Until when an HTTP request is to be answered: an extension of the request. With the feature
/// `http`.
///
/// A [`DeadlineLayer`] heeds it and sets it. A handler passes it on: as the extension of the
/// requests that it sends itself, or to
/// [`Client::call_until`](crate::client::Client::call_until).
///
/// # Examples
///
/// See [`DeadlineLayer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(pub Instant);

/// Limits the time of each HTTP request of a service, by what the request says. With the feature
/// `http`. For servers and clients; the server's part is that of tonic's `Server::timeout`.
///
/// The time of a request ends at the earliest of these deadlines:
///
/// - after the time of the layer;
/// - after the time in the header `grpc-timeout`, as [gRPC] defines it. An invalid value counts as
///   none, and of several values the least counts. Zero, such as `0n`, is a deadline that has
///   passed, although gRPC asks for a positive number: the service is not called;
/// - at the [`Deadline`] in the extensions of the request;
/// - at the deadline of the task, [`deadline::current`].
///
/// The time ends when the service responds: a body that is sent after that has no limit. In tests
/// with a paused clock, the layer's timer has to follow that clock, as one of
/// [`tokio::build_on`](crate::tokio::build_on) does.
///
/// While the service handles the request, this deadline is [current](deadline::current). The
/// service also gets it as the [`Deadline`] of the request, and with
/// [`write_header`](Self::write_header) the time that is left as its `grpc-timeout`.
///
/// # Examples
///
/// A server asks another one, which gets the rest of the time. The deadline follows the task:
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::tower::{BoxError, DeadlineLayer};
/// use http::{Request, Response};
/// use std::time::Duration;
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
/// let (of_server, of_client) = (Duration::from_secs(30), Duration::from_secs(5));
///
/// let send = service_fn(|request: Request<()>| async move {
///     Ok::<_, BoxError>(Response::new(request.headers()["grpc-timeout"].clone()))
/// });
/// let client = DeadlineLayer::new(&timer, of_client).write_header(true).layer(send);
/// let server = DeadlineLayer::new(&timer, of_server).layer(service_fn(move |_: Request<()>| {
///     client.clone().oneshot(Request::new(()))
/// }));
///
/// let request = Request::builder().header("grpc-timeout", "100m").body(())?;
/// let response = server.oneshot(request).await?;
/// assert!(response.body().to_str()?.ends_with(['n', 'u']), "less than 100 ms, in nanoseconds or microseconds");
/// # Ok::<(), BoxError>(())
/// # }).unwrap();
/// ```
///
/// [gRPC]: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
///
/// # Errors
///
/// As for [`Timeout`](super::Timeout). If the deadline has passed already, the service is not
/// called, and the response future resolves with
/// [`Elapsed`](hashed_wheel::TimeoutError::Elapsed). [`http_status`](super::http_status) and
/// [`grpc_status`](super::grpc_status) say what to answer to each error.
#[derive(Debug, Clone)]
pub struct DeadlineLayer {
    timer: HashedWheelTimer,
    timeout: Duration,
    writes_header: bool,
}

impl DeadlineLayer {
    /// Makes a layer that limits each request to `timeout`, or to less if the request says so, on
    /// `timer`. `Duration::MAX` is no limit. Such a request still has a timeout in `timer`, which
    /// ends it if the timer is stopped.
    #[must_use]
    pub fn new(timer: &HashedWheelTimer, timeout: Duration) -> Self {
        Self {
            timer: timer.clone(),
            timeout,
            writes_header: false,
        }
    }

    /// Sets whether the service gets the time that is left as the header `grpc-timeout`: for
    /// clients of gRPC. It is rounded down to at most eight digits. Initially false: the header
    /// stays as it is.
    #[must_use]
    pub fn write_header(mut self, writes_header: bool) -> Self {
        self.writes_header = writes_header;
        self
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;

    fn layer(&self, inner: S) -> DeadlineService<S> {
        DeadlineService {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service with a limit on the time of each HTTP request: see [`DeadlineLayer`].
#[derive(Debug, Clone)]
pub struct DeadlineService<S> {
    inner: S,
    layer: DeadlineLayer,
}

impl<S, B> Service<Request<B>> for DeadlineService<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<Within<S::Future>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let DeadlineLayer {
            timer,
            timeout,
            writes_header,
        } = &self.layer;
        let now = timer.now();
        let header = request.headers().get_all(HEADER).iter();
        let in_header = header.filter_map(|value| grpc_timeout::parse(value.as_bytes()));
        let after = in_header.fold(*timeout, Duration::min);
        let extension = request
            .extensions()
            .get::<Deadline>()
            .map(|deadline| deadline.0);
        let nearest = now.checked_add(after).into_iter().chain(extension).min();
        let Some(deadline) = deadline::nearest(nearest) else {
            let response = deadline::until(None, self.inner.call(request));
            return ResponseFuture {
                response: Some(timer.timeout(Duration::MAX, response)),
            };
        };
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return ResponseFuture { response: None };
        }
        request.extensions_mut().insert(Deadline(deadline));
        if *writes_header {
            let value =
                HeaderValue::try_from(grpc_timeout::format(left)).expect("digits and a letter");
            request.headers_mut().insert(HEADER, value);
        }
        // The service may look at the deadline before it returns its future.
        let entered = deadline::enter(Some(deadline));
        let response = deadline::until(Some(deadline), self.inner.call(request));
        drop(entered);
        ResponseFuture {
            response: Some(timer.timeout_at(deadline, response)),
        }
    }
}
