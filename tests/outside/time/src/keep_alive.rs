//! The keep-alive of a broker's connections, as in MQTT. A client that has nothing to send pings.
//! A broker that hears nothing for one and a half keep-alive times ends the connection, and then
//! keeps the session for a while.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::mpsc;

use super::time::{self, Duration, Instant, Interval, MissedTickBehavior, Sleep};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    Publish(String),
    Ping,
    Pong,
    Disconnect,
}

/// Why a client has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The broker has not answered a ping.
    NoPong,
    Disconnected,
}

/// One end of a connection.
pub struct Link {
    pub send: mpsc::UnboundedSender<Packet>,
    pub receive: mpsc::UnboundedReceiver<Packet>,
}

/// Returns both ends.
pub fn link() -> (Link, Link) {
    let (to_broker, from_client) = mpsc::unbounded_channel();
    let (to_client, from_broker) = mpsc::unbounded_channel();
    let client = Link {
        send: to_broker,
        receive: from_broker,
    };
    let broker = Link {
        send: to_client,
        receive: from_client,
    };
    (client, broker)
}

/// A client: a future that drives the connection, and resolves when it has ended.
pub struct Client {
    link: Link,
    publish: mpsc::UnboundedReceiver<Command>,
    /// Ticks when it is time for a ping.
    ping: Interval,
    /// Runs while a ping has no answer.
    pong: Option<Pin<Box<Sleep>>>,
    received: mpsc::UnboundedSender<String>,
}

/// What the user of a client may ask for.
pub enum Command {
    Publish(String),
    /// Is the broker there?
    PingNow,
    /// Says nothing for this long, for example in a tunnel.
    Quiet(Duration),
}

impl Client {
    pub fn new(
        link: Link,
        keep_alive: Duration,
        received: mpsc::UnboundedSender<String>,
    ) -> (Self, mpsc::UnboundedSender<Command>) {
        let (commands, publish) = mpsc::unbounded_channel();
        let mut ping = time::interval(keep_alive);
        // After a stall one ping is enough, and the next one a full time later.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        debug_assert_eq!(ping.missed_tick_behavior(), MissedTickBehavior::Delay);
        ping.reset();
        let client = Self {
            link,
            publish,
            ping,
            pong: None,
            received,
        };
        (client, commands)
    }

    /// Every packet that is sent postpones the ping.
    fn send(&mut self, packet: Packet) -> bool {
        self.ping.reset();
        self.link.send.send(packet).is_ok()
    }

    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Publish(text) => return self.send(Packet::Publish(text)),
            Command::PingNow => self.ping.reset_immediately(),
            Command::Quiet(time) => self.ping.reset_at(Instant::now() + time),
        }
        true
    }
}

impl Future for Client {
    type Output = End;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End> {
        let this = self.get_mut();
        loop {
            match this.publish.poll_recv(context) {
                Poll::Ready(Some(command)) => {
                    if !this.obey(command) {
                        return Poll::Ready(End::Disconnected);
                    }
                    continue;
                }
                Poll::Ready(None) => {
                    this.send(Packet::Disconnect);
                    return Poll::Ready(End::Disconnected);
                }
                Poll::Pending => {}
            }
            match this.link.receive.poll_recv(context) {
                Poll::Ready(Some(Packet::Pong)) => this.pong = None,
                Poll::Ready(Some(Packet::Publish(text))) => _ = this.received.send(text),
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => return Poll::Ready(End::Disconnected),
                Poll::Pending => break,
            }
        }
        while this.ping.poll_tick(context).is_ready() {
            if !this.send(Packet::Ping) {
                return Poll::Ready(End::Disconnected);
            }
            let limit = this.ping.period() / 2;
            this.pong
                .get_or_insert_with(|| Box::pin(time::sleep(limit)));
        }
        match &mut this.pong {
            Some(pong) => pong.as_mut().poll(context).map(|()| End::NoPong),
            None => Poll::Pending,
        }
    }
}

/// Times of a broker's connection.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub keep_alive: Duration,
    /// How long the session of a lost client is kept.
    pub session: Duration,
}

/// What the broker knows of a client.
#[derive(Debug, Default)]
pub struct Broker {
    sessions: HashMap<String, Session>,
}

#[derive(Debug, Default)]
struct Session {
    published: Vec<String>,
    ends: Option<Instant>,
}

impl Broker {
    /// Serves a client until it disconnects, or is silent. Returns whether it was silent.
    pub async fn serve(&mut self, name: &str, mut link: Link, times: Times) -> bool {
        let now = Instant::now();
        let session = self.sessions.entry(name.to_owned()).or_default();
        if session.ends.is_some_and(|ends| ends <= now) {
            session.published.clear();
        }
        session.ends = None;
        let patience = times.keep_alive.mul_f64(1.5);
        let mut silence = Box::pin(time::sleep(patience));
        loop {
            tokio::select! {
                biased;
                packet = link.receive.recv() => {
                    silence.as_mut().reset(Instant::now() + patience);
                    match packet {
                        Some(Packet::Publish(text)) => session.published.push(text),
                        Some(Packet::Ping) => _ = link.send.send(Packet::Pong),
                        Some(Packet::Pong) => {}
                        Some(Packet::Disconnect) | None => break,
                    }
                }
                () = silence.as_mut() => break,
            }
        }
        session.ends = Some(Instant::now() + times.session);
        silence.is_elapsed()
    }

    /// Returns what the client has published in its session.
    pub fn published(&self, name: &str) -> &[String] {
        self.sessions
            .get(name)
            .map_or(&[], |session| &session.published)
    }
}

/// Sends a status line at a fixed rate. All lines are sent, also those that are late.
pub async fn report(every: Duration, lines: Vec<String>, to: mpsc::UnboundedSender<Command>) {
    let mut ticks = time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for line in lines {
        let due = ticks.tick().await;
        debug_assert!(due <= Instant::now());
        if to.send(Command::Publish(line)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const TIMES: Times = Times {
        keep_alive: ms(10_000),
        session: ms(60_000),
    };

    fn client(link: Link) -> (Client, mpsc::UnboundedSender<Command>) {
        Client::new(link, TIMES.keep_alive, mpsc::unbounded_channel().0)
    }

    #[tokio::test(start_paused = true)]
    async fn pings_keep_a_silent_connection() {
        let (ours, theirs) = link();
        let (client, commands) = client(ours);
        let client = tokio::spawn(client);
        let mut broker = Broker::default();
        let served = broker.serve("ada", theirs, TIMES);
        assert!(time::timeout(ms(3_600_000), served).await.is_err());
        assert!(!client.is_finished());
        drop(commands);
        assert_eq!(client.await.unwrap(), End::Disconnected);
    }

    #[tokio::test(start_paused = true)]
    async fn traffic_postpones_pings() {
        let (ours, mut theirs) = link();
        let (client, commands) = client(ours);
        tokio::spawn(client);
        for _ in 0..3 {
            time::sleep(ms(9_000)).await;
            commands.send(Command::Publish("hello".into())).unwrap();
        }
        time::sleep(ms(9_999)).await;
        for _ in 0..3 {
            let packet = theirs.receive.recv().await;
            assert_eq!(packet, Some(Packet::Publish("hello".into())));
        }
        assert!(theirs.receive.try_recv().is_err());
        time::sleep(ms(3)).await;
        assert_eq!(theirs.receive.try_recv(), Ok(Packet::Ping));
    }

    #[tokio::test(start_paused = true)]
    async fn a_ping_without_an_answer_ends_the_client() {
        let (ours, mut theirs) = link();
        let (client, commands) = client(ours);
        let client = tokio::spawn(client);
        let begin = Instant::now();
        commands.send(Command::PingNow).unwrap();
        assert_eq!(theirs.receive.recv().await, Some(Packet::Ping));
        assert!(begin.elapsed() <= ms(1));
        assert_eq!(client.await.unwrap(), End::NoPong);
        assert!((ms(5_000)..=ms(5_002)).contains(&begin.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_ends_a_silent_client_and_keeps_its_session() {
        let mut broker = Broker::default();
        for (pause, kept) in [(ms(0), 1), (ms(30_000), 2), (ms(61_000), 1)] {
            time::sleep(pause).await;
            let (ours, theirs) = link();
            let (client, commands) = client(ours);
            commands.send(Command::Publish("a line".into())).unwrap();
            commands.send(Command::Quiet(ms(600_000))).unwrap();
            tokio::spawn(client);
            let begin = Instant::now();
            assert!(broker.serve("ada", theirs, TIMES).await, "it was silent");
            assert!((ms(15_000)..=ms(15_002)).contains(&begin.elapsed()));
            assert_eq!(broker.published("ada").len(), kept);
        }
        assert!(broker.published("grace").is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_stall_one_ping_follows() {
        let (ours, mut theirs) = link();
        let (client, _commands) = client(ours);
        let client = tokio::spawn(client);
        tokio::task::yield_now().await;
        time::advance(ms(55_000)).await;
        time::sleep(ms(1)).await;
        assert_eq!(theirs.receive.try_recv(), Ok(Packet::Ping));
        assert!(theirs.receive.try_recv().is_err());
        theirs.send.send(Packet::Pong).unwrap();
        time::sleep(ms(9_990)).await;
        assert!(theirs.receive.try_recv().is_err() && !client.is_finished());
        time::sleep(ms(20)).await;
        assert_eq!(theirs.receive.try_recv(), Ok(Packet::Ping));
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_are_late_are_sent_in_a_burst() {
        let (send, mut commands) = mpsc::unbounded_channel();
        let lines = (0..5).map(|line| line.to_string()).collect();
        let report = tokio::spawn(report(ms(1_000), lines, send));
        time::sleep(ms(1)).await;
        time::advance(ms(3_500)).await;
        time::sleep(ms(1)).await;
        let mut sent = 0;
        while commands.try_recv().is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 4);
        report.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_works_in_real_time() {
        let times = Times {
            keep_alive: ms(400),
            session: ms(60_000),
        };
        let (ours, theirs) = link();
        let (received, mut inbox) = mpsc::unbounded_channel();
        theirs.send.send(Packet::Publish("welcome".into())).unwrap();
        let (client, commands) = Client::new(ours, times.keep_alive, received);
        let client = tokio::spawn(client);
        tokio::spawn(report(
            ms(5),
            vec!["one".into(), "two".into()],
            commands.clone(),
        ));
        let mut broker = Broker::default();
        let served = broker.serve("ada", theirs, times);
        let served = time::timeout(ms(1_000), served).await.is_err();
        assert!(served, "pings keep it");
        assert_eq!(broker.published("ada"), ["one", "two"]);
        assert_eq!(inbox.recv().await.as_deref(), Some("welcome"));
        drop(commands);
        assert_eq!(client.await.unwrap(), End::Disconnected);
    }
}
