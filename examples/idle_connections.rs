//! A TCP server with 2 000 clients closes those that fall silent, and only those. It checks itself,
//! and ends with PASS or FAIL.
//!
//! One thread serves all connections. Each has one timeout. After each round of events the thread
//! re-arms those of the connections that have sent packets, all at once. Another thread plays the
//! clients: each sends a packet every half second, and 600 of them fall silent.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as Client};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Timeout};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

const IDLE: Duration = Duration::from_secs(4);
const LISTENER: Token = Token(usize::MAX);

/// Returns how many connections the timer has closed, the re-arms, and the worst lateness.
fn serve(
    listener: &mut TcpListener,
    clients: usize,
) -> Result<(usize, usize, Duration), Box<dyn Error>> {
    let timer = HashedWheelTimer::new(Duration::from_millis(10), 512);
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1_024));
    poll.registry()
        .register(listener, LISTENER, Interest::READABLE)?;
    let mut open: HashMap<Token, (Arc<TcpStream>, Timeout)> = HashMap::new();
    let (mut accepted, mut closed_by_timer, mut re_armed) = (0, 0, 0);
    let mut active = Vec::new();
    while accepted < clients || !open.is_empty() {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            while event.token() == LISTENER {
                let Ok((mut stream, _)) = listener.accept() else {
                    break;
                };
                stream.write_all(b"!")?;
                poll.registry()
                    .register(&mut stream, Token(accepted), Interest::READABLE)?;
                let stream = Arc::new(stream);
                let silent = Arc::clone(&stream);
                let idle =
                    timer.new_timeout(move |_| drop(silent.shutdown(Shutdown::Both)), IDLE)?;
                open.insert(Token(accepted), (stream, idle));
                accepted += 1;
            }
            let Some((stream, idle)) = open.get(&event.token()) else {
                continue;
            };
            let is_closed = loop {
                match (&**stream).read(&mut [0; 64]) {
                    Ok(0) => break true,
                    Ok(_) => {}
                    Err(error) => break error.kind() != ErrorKind::WouldBlock,
                }
            };
            if is_closed {
                closed_by_timer += usize::from(!idle.cancel()); // false: the timeout has fired
                open.remove(&event.token());
            } else {
                active.push(event.token());
            }
        }
        let idle = |token| Some(&open.get(&token)?.1);
        re_armed += Timeout::reset_each(active.drain(..).filter_map(idle), timer.now() + IDLE);
    }
    Ok((closed_by_timer, re_armed, timer.stats().lateness.max))
}

/// Returns how many clients the server has closed: silent ones, other ones, and any too early.
fn play(server: SocketAddr, count: usize, silent: usize) -> io::Result<[usize; 3]> {
    let (mut clients, mut early) = (Vec::new(), 0);
    for _ in 0..count {
        let mut client = Client::connect(server)?;
        client.read_exact(&mut [0])?; // one after the other: the listener has a short queue
        client.set_nonblocking(true)?;
        clients.push((client, Instant::now()));
    }
    let is_closed = |client: &Client| client.peek(&mut [0]).is_ok();
    for round in 0..24 {
        thread::sleep(Duration::from_millis(500));
        for (number, (client, last)) in clients.iter_mut().enumerate() {
            if number < silent && round > number % 12 {
                early += usize::from(is_closed(client) && last.elapsed() < IDLE);
            } else if client.write(b"still here").is_ok() {
                *last = Instant::now();
            }
        }
    }
    let closed = |some: &[(Client, Instant)]| {
        let closed = some.iter().filter(|(client, _)| is_closed(client));
        closed.count()
    };
    let (silent, others) = clients.split_at(silent);
    Ok([closed(silent), closed(others), early])
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let files = rlimit::increase_nofile_limit(4_100).unwrap_or(256) as usize;
    let clients = (files.saturating_sub(100) / 2).min(2_000); // each needs two sockets
    let silent = clients * 3 / 10;
    println!("{clients} clients, {silent} of which fall silent; the limit is {IDLE:?} of silence");
    let mut listener = TcpListener::bind(([127, 0, 0, 1], 0).into())?;
    let address = listener.local_addr()?;
    let play = thread::spawn(move || play(address, clients, silent));
    let (by_timer, re_armed, late) = serve(&mut listener, clients)?;
    let [of_silent, of_others, early] = play.join().expect("the clients do not panic")?;
    println!("closed: {of_silent} silent clients, {of_others} others, {early} too early");
    println!("timer: {by_timer} timeouts fired, at most {late:?} late; {re_armed} re-arms");
    let passed = [of_silent, by_timer] == [silent; 2] && [of_others, early] == [0; 2];
    println!("{}", if passed { "PASS" } else { "FAIL" });
    Ok(ExitCode::from(u8::from(!passed)))
}
