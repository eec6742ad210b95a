use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};

use super::*;

/// As if the machine of the program had vanished: the end of the connection is not reported.
#[test]
fn connection_that_falls_silent_is_left() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let frame = Frame {
        program: "server".into(),
        age: Duration::ZERO,
        timers: Vec::new(),
    };
    let line = serde_json::to_string(&frame).unwrap() + "\n";
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream
    });
    let (sender, messages) = mpsc::sync_channel(CAPACITY);
    let end = listen(address, Duration::from_secs(1), &sender);
    assert!(matches!(end, Ok(Why::Silent)));
    let seen: Vec<_> = messages.try_iter().collect();
    assert!(matches!(
        &seen[..],
        [Message::Gone(Why::Silent), Message::Frame(_)]
    ));
    drop(server.join().unwrap());
}

/// While no program listens, the system may choose the port of the address for this end too.
#[cfg(target_os = "linux")]
#[test]
fn stream_to_itself_is_no_program() {
    // Linux gives listeners and clients ports of different parity. Without the check, one attempt
    // in 14 000 makes such a stream.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port() ^ 1;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    for _ in 0..60_000 {
        let stream = connect(address, TIMEOUT);
        assert!(!stream.is_ok_and(|stream| stream.local_addr().unwrap() == address));
    }
}
