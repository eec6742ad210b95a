//! Three services in a chain have the deadline of one request. The last one hangs, and each of them
//! answers in time; 4 is `DEADLINE_EXCEEDED`. Only the header `grpc-timeout` connects them.
//! hashed-wheel-util needs `features = ["http", "tokio"]`, tower `["util"]`, and tokio
//! `["macros", "rt-multi-thread", "time"]`.
//!
//! ```text
//! orders: 504 Gateway Timeout, in gRPC 4
//! shop: 504 Gateway Timeout, in gRPC 4
//! stock: 504 Gateway Timeout, in gRPC 4
//! ```

use std::future::pending;
use std::sync::Mutex;
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use hashed_wheel_util::time;
use hashed_wheel_util::tower::{BoxError, DeadlineLayer, grpc_status, http_status};
use http::Request;
use tower::{Layer, ServiceExt, service_fn};

type Answer = Result<&'static str, BoxError>;

static ANSWERS: Mutex<Vec<String>> = Mutex::new(vec![]);

/// A server: it has half a minute for a request, or less if the request says so.
async fn serve(name: &str, handler: impl Future<Output = Answer>, request: Request<()>) -> Answer {
    let mut handler = Some(handler);
    let handler = service_fn(|_: Request<()>| handler.take().unwrap());
    let layer = DeadlineLayer::new(HashedWheelTimer::global(), Duration::from_secs(30));
    let answer = layer.layer(handler).oneshot(request).await;
    answer.inspect_err(|error| {
        let (http, grpc) = (http_status(&**error), grpc_status(&**error));
        ANSWERS
            .lock()
            .unwrap()
            .push(format!("{name}: {http}, in gRPC {grpc}"));
    })
}

/// A client of a server, which runs in another task.
async fn ask<F>(server: impl FnOnce(Request<()>) -> F) -> Answer
where
    F: Future<Output = Answer> + Send + 'static,
{
    let mut server = Some(server);
    let send = service_fn(|request| tokio::spawn(server.take().unwrap()(request)));
    let layer = DeadlineLayer::new(HashedWheelTimer::global(), Duration::MAX);
    let client = layer.write_header(true).layer(send);
    client.oneshot(Request::new(())).await?
}

#[tokio::main]
async fn main() {
    let stock = |request| serve("stock", pending(), request);
    let orders = move |request| serve("orders", ask(stock), request);
    let request = Request::builder().header("grpc-timeout", "200m");
    let answer = serve("shop", ask(orders), request.body(()).unwrap()).await;
    assert!(answer.is_err());
    while ANSWERS.lock().unwrap().len() < 3 {
        time::sleep(Duration::from_millis(1)).await;
    }
    ANSWERS.lock().unwrap().sort();
    println!("{}", ANSWERS.lock().unwrap().join("\n"));
}
