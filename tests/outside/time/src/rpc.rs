//! Remote calls over a channel: a deadline for each request, a server that ends what is late, and a
//! connection that is closed when nothing is sent on it.

use std::collections::HashMap;
use std::pin::pin;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::time::{self, Duration, Instant, Timeout};

/// What a client sends.
pub struct Request {
    pub id: u64,
    pub body: String,
    /// `None`: the client waits for as long as it takes.
    pub deadline: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    Ok(String),
    DeadlineExceeded,
    Unavailable,
}

type Response = (u64, Status);

/// The server's and the client's end of a connection.
pub fn connection() -> (Client, Server) {
    let (send_request, requests) = mpsc::channel(16);
    let (send_response, responses) = mpsc::channel(16);
    let (calls, new_calls) = mpsc::channel(16);
    tokio::spawn(dispatch(new_calls, send_request, responses));
    let server = Server {
        requests,
        responses: send_response,
        idle: Duration::from_secs(300),
        slowest: Duration::from_secs(30),
    };
    (Client { calls }, server)
}

struct NewCall {
    body: String,
    deadline: Option<Instant>,
    answer: oneshot::Sender<Status>,
}

#[derive(Clone)]
pub struct Client {
    calls: mpsc::Sender<NewCall>,
}

impl Client {
    /// Calls with a time limit.
    pub fn call(&self, body: &str, limit: Duration) -> Call {
        let (answer, receive) = oneshot::channel();
        let deadline = Instant::now() + limit;
        self.send(body, Some(deadline), answer);
        Call {
            answer: time::timeout_at(deadline, receive),
        }
    }

    fn send(&self, body: &str, deadline: Option<Instant>, answer: oneshot::Sender<Status>) {
        // Without room the call is dropped, and its answer is `Unavailable`.
        _ = self.calls.try_send(NewCall {
            body: body.to_owned(),
            deadline,
            answer,
        });
    }

    /// Calls until the server is there, or until `deadline`. Waits a little longer each time.
    pub async fn call_when_ready(&self, body: &str, deadline: Instant) -> Status {
        let mut pause = Duration::from_millis(10);
        loop {
            let status = self.call(body, deadline - Instant::now()).answer().await;
            let next = Instant::now() + pause;
            if status != Status::Unavailable || next >= deadline {
                return status;
            }
            time::sleep_until(next).await;
            pause *= 2;
        }
    }
}

/// A call that waits for its answer.
pub struct Call {
    answer: Timeout<oneshot::Receiver<Status>>,
}

impl Call {
    pub async fn answer(self) -> Status {
        match self.answer.await {
            Ok(Ok(status)) => status,
            Ok(Err(_)) => Status::Unavailable,
            Err(_) => Status::DeadlineExceeded,
        }
    }

    /// Waits without the client's own limit. The server still has that of the request.
    pub async fn without_limit(self) -> Status {
        self.answer
            .into_inner()
            .await
            .unwrap_or(Status::Unavailable)
    }

    /// Gives up. An answer that has arrived already can still be received.
    pub fn close(&mut self) {
        self.answer.get_mut().close();
    }

    pub fn is_terminated(&self) -> bool {
        self.answer.get_ref().is_terminated()
    }
}

/// Gives each answer to the call that waits for it.
async fn dispatch(
    mut calls: mpsc::Receiver<NewCall>,
    requests: mpsc::Sender<Request>,
    mut responses: mpsc::Receiver<Response>,
) {
    let mut waiting: HashMap<u64, oneshot::Sender<Status>> = HashMap::new();
    for id in 0.. {
        let call = loop {
            tokio::select! {
                call = calls.recv() => match call {
                    Some(call) => break call,
                    None => return,
                },
                Some((id, status)) = responses.recv() => {
                    if let Some(answer) = waiting.remove(&id) {
                        _ = answer.send(status);
                    }
                }
            }
        };
        let NewCall {
            body,
            deadline,
            answer,
        } = call;
        waiting.retain(|_, answer| !answer.is_closed());
        if requests.send(Request { id, body, deadline }).await.is_ok() {
            waiting.insert(id, answer);
        }
    }
}

pub struct Server {
    requests: mpsc::Receiver<Request>,
    responses: mpsc::Sender<Response>,
    /// A connection without a request for this time is closed.
    pub idle: Duration,
    /// The limit of a request that has no deadline.
    pub slowest: Duration,
}

impl Server {
    /// Serves until the client is gone or silent. Returns how many requests were late.
    pub async fn serve<F>(mut self, handler: fn(String) -> F) -> usize
    where
        F: Future<Output = String> + Send + 'static,
    {
        let mut late = 0;
        let mut handlers = JoinSet::new();
        let mut silence = pin!(time::sleep(self.idle));
        loop {
            tokio::select! {
                request = self.requests.recv() => {
                    let Some(request) = request else { break };
                    let next = Instant::now() + self.idle;
                    silence.as_mut().reset(next);
                    debug_assert_eq!(silence.deadline(), next);
                    let slowest = Instant::now() + self.slowest;
                    let deadline = request.deadline.map_or(slowest, |at| at.min(slowest));
                    let handled = time::timeout_at(deadline, handler(request.body));
                    let responses = self.responses.clone();
                    handlers.spawn(async move {
                        let answer = handled.await;
                        let is_late = answer.is_err();
                        let status = answer.map_or(Status::DeadlineExceeded, Status::Ok);
                        _ = responses.send((request.id, status)).await;
                        is_late
                    });
                }
                Some(ended) = handlers.join_next() => {
                    silence.as_mut().reset(Instant::now() + self.idle);
                    late += usize::from(ended.unwrap_or(true));
                }
                () = &mut silence, if handlers.is_empty() => break,
            }
        }
        handlers.abort_all();
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The body says how many milliseconds the answer takes.
    async fn handler(body: String) -> String {
        time::sleep(ms(body.parse().unwrap())).await;
        format!("after {body} ms")
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_in_time_arrives() {
        let (client, server) = connection();
        let server = tokio::spawn(server.serve(handler));
        let begin = Instant::now();
        let both = tokio::join!(
            client.call("40", ms(100)).answer(),
            client.call("60", ms(100)).answer()
        );
        let answer = |millis| Status::Ok(format!("after {millis} ms"));
        assert_eq!(both, (answer(40), answer(60)));
        assert!((ms(60)..=ms(62)).contains(&begin.elapsed()));
        drop(client);
        assert_eq!(server.await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn both_sides_end_a_request_at_its_deadline() {
        let (client, server) = connection();
        let server = tokio::spawn(server.serve(handler));
        let begin = Instant::now();
        let late = client.call("60000", ms(100)).answer().await;
        assert_eq!(late, Status::DeadlineExceeded);
        assert!((ms(100)..=ms(102)).contains(&begin.elapsed()));
        let late = client.call("60000", ms(100)).without_limit().await;
        assert_eq!(late, Status::DeadlineExceeded, "the server has ended it");
        // A request that asks for more than the server allows.
        let slow = client.call("3600000", ms(90_000)).answer().await;
        assert_eq!(slow, Status::DeadlineExceeded);
        assert!(begin.elapsed() < ms(31_000));
        drop(client);
        assert_eq!(server.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn the_clock_may_be_paused_in_the_middle_of_a_call() {
        let (client, server) = connection();
        tokio::spawn(server.serve(handler));
        let answer = tokio::spawn(client.call("20000", ms(25_000)).answer());
        tokio::task::yield_now().await;
        time::pause();
        let begin = Instant::now();
        time::advance(ms(10_000)).await;
        assert!(!answer.is_finished());
        assert_eq!(answer.await.unwrap(), Status::Ok("after 20000 ms".into()));
        assert!((ms(19_000)..=ms(20_002)).contains(&begin.elapsed()));
        time::resume();
        let real = std::time::Instant::now();
        let status = client.call("0", ms(9_000)).answer().await;
        assert_eq!(status, Status::Ok("after 0 ms".into()));
        assert!(real.elapsed() < ms(9_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed_but_not_while_it_works() {
        let (client, mut server) = connection();
        server.idle = ms(10_000);
        let server = tokio::spawn(server.serve(handler));
        for _ in 0..3 {
            time::sleep(ms(9_000)).await;
            let status = client.call("0", ms(100)).answer().await;
            assert_eq!(status, Status::Ok("after 0 ms".into()));
        }
        let slow = client.call("20000", ms(30_000)).answer().await;
        assert_eq!(slow, Status::Ok("after 20000 ms".into()));
        assert!(!server.is_finished());
        time::sleep(ms(10_001)).await;
        assert_eq!(server.await.unwrap(), 0);
        let status = client.call("0", ms(100)).answer().await;
        assert_eq!(status, Status::Unavailable);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_its_server_until_its_deadline() {
        let (client, server) = connection();
        drop(server);
        let begin = Instant::now();
        let status = client.call_when_ready("0", begin + ms(100)).await;
        assert_eq!(status, Status::Unavailable);
        assert!((ms(70)..=ms(75)).contains(&begin.elapsed()), "10 + 20 + 40");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_closed_gets_no_answer() {
        let (client, server) = connection();
        tokio::spawn(server.serve(handler));
        let mut call = client.call("10", ms(100));
        time::sleep(ms(5)).await;
        call.close();
        assert!(!call.is_terminated());
        assert_eq!(call.answer().await, Status::Unavailable);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_works_in_real_time() {
        let (client, server) = connection();
        let server = tokio::spawn(server.serve(handler));
        let begin = Instant::now();
        let late = client.call("60000", ms(20)).answer().await;
        assert_eq!(late, Status::DeadlineExceeded);
        assert!((ms(20)..ms(20_000)).contains(&begin.elapsed()));
        let answer = client.call("5", ms(20_000)).answer().await;
        assert_eq!(answer, Status::Ok("after 5 ms".into()));
        drop(client);
        assert_eq!(server.await.unwrap(), 1);
    }
}
