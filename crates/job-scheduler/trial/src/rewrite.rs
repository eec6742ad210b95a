//! A relay between clients and their server that changes the text of statements. So a test can leave
//! a safeguard out, of a node or of a function in the database, without anything for this in the
//! scheduler.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tokio_postgres::Config;

/// What occurs in statements, and what replaces it.
#[derive(Debug)]
struct Change {
    from: String,
    to: String,
    was_made: AtomicBool,
}

impl Change {
    fn make(text: String, Self { from, to, was_made }: &Self) -> String {
        was_made.fetch_or(text.contains(from), Relaxed);
        text.replace(from, to)
    }
}

/// A relay to a server. It passes on until this process ends.
#[derive(Debug)]
pub struct Relay {
    /// The address for clients.
    pub url: String,
    changes: Arc<[Change]>,
}

impl Relay {
    /// Starts a relay to a server on this machine.
    ///
    /// # Errors
    ///
    /// If it cannot listen.
    pub fn start<S: AsRef<str>>(
        server: &Config,
        changes: impl IntoIterator<Item = (S, S)>,
    ) -> io::Result<Self> {
        let latin = |text: S| latin(text.as_ref().as_bytes());
        let change = |(from, to)| Change {
            from: latin(from),
            to: latin(to),
            was_made: AtomicBool::new(false),
        };
        let changes: Arc<[_]> = changes.into_iter().map(change).collect();
        let server = ("127.0.0.1", server.get_ports()[0]);
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let url = format!("postgresql://postgres@127.0.0.1:{port}/postgres");
        let relay = Self {
            url,
            changes: changes.clone(),
        };
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let changes = changes.clone();
                // If the server is not there, the connection is closed.
                thread::spawn(move || pass(&near, &TcpStream::connect(server)?, &changes));
            }
        });
        Ok(relay)
    }
}

/// Panics if a change was never made: a test that expects its effect would show nothing, because the
/// text in the scheduler is another one now.
impl Drop for Relay {
    fn drop(&mut self) {
        let changes = self.changes.iter();
        let unmade: Vec<_> = changes
            .filter(|change| !change.was_made.load(Relaxed))
            .map(|change| &change.from)
            .collect();
        assert!(
            unmade.is_empty() || thread::panicking(),
            "no statement contains {unmade:#?}"
        );
    }
}

/// Passes on what both sides of a connection send.
fn pass(near: &TcpStream, far: &TcpStream, changes: &[Change]) -> io::Result<()> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &*far, &mut &*near);
            near.shutdown(Shutdown::Both)
        });
        let result = pass_statements(near, far, changes);
        far.shutdown(Shutdown::Both)?;
        result
    })
}

/// Passes on the messages of a client, with other texts of queries and of statements that are
/// prepared. A message is its type, apart from the first one, its length and that of the rest.
fn pass_statements(near: &TcpStream, mut far: &TcpStream, changes: &[Change]) -> io::Result<()> {
    let mut near = BufReader::new(near);
    let mut kind = Vec::new();
    loop {
        let mut length = [0; 4];
        near.read_exact(&mut length)?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize - length.len()];
        near.read_exact(&mut body)?;
        if matches!(kind[..], [b'P' | b'Q']) {
            let text = changes.iter().fold(latin(&body), Change::make);
            body = text.chars().map(|char| char as u8).collect();
        }
        let length = (body.len() + length.len()) as u32;
        far.write_all(&[&kind[..], &length.to_be_bytes(), &body].concat())?;
        kind.resize(1, 0);
        near.read_exact(&mut kind)?;
    }
}

/// Returns a text with one character for each byte: the parameters of a message are no text.
fn latin(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no statement contains")]
    fn changes_that_are_never_made_are_noticed() {
        let server = "host=127.0.0.1 port=1".parse().unwrap();
        drop(Relay::start(&server, [("FROM nowhere", "")]));
    }
}
