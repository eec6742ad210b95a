//! The part of HTTP/1.1 that determines where a message ends. Messages are passed on unchanged.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_buf};

/// The maximum length in bytes of a head, and of a line in the framing of a body.
const MAX_HEAD_LENGTH: u64 = 16 << 10;

/// The first line of a message and its header fields.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) bytes: Vec<u8>,
    length: Option<u64>,
    chunked: bool,
    close: bool,
}

/// The kind of body after a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    Length(u64),
    Chunked,
    /// All data until the connection ends.
    Rest,
}

impl Head {
    /// Reads the head of a request.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData) if it is not HTTP/1 or is ambiguous.
    pub(crate) async fn request(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Self> {
        Self::read(from, Version::of_request).await
    }

    /// Reads the head of an answer. The errors are the same.
    pub(crate) async fn answer(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Self> {
        Self::read(from, Version::of_answer).await
    }

    async fn read(from: &mut (impl AsyncBufRead + Unpin), version: FirstLine) -> io::Result<Self> {
        let mut bytes = Vec::new();
        let mut from = from.take(MAX_HEAD_LENGTH);
        while !bytes.ends_with(b"\r\n\r\n") {
            if from.read_until(b'\n', &mut bytes).await? == 0 {
                return Err(if from.limit() == 0 {
                    invalid()
                } else {
                    io::ErrorKind::UnexpectedEof.into()
                });
            }
        }
        Self::parse(bytes, version).ok_or_else(invalid)
    }

    fn parse(bytes: Vec<u8>, version: FirstLine) -> Option<Self> {
        let mut lines = bytes
            .strip_suffix(b"\r\n")?
            .split_inclusive(|&byte| byte == b'\n');
        let version = version(text(lines.next()?)?)?;
        // An HTTP/1.0 message ends with its connection.
        let close = version == Version::Old;
        let mut head = Self {
            bytes: Vec::new(),
            length: None,
            chunked: false,
            close,
        };
        for line in lines {
            let line = text(line)?;
            let colon = line.iter().position(|&byte| byte == b':')?;
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if !is_token(name) {
                return None;
            }
            if name.eq_ignore_ascii_case(b"content-length") {
                let length = number(value, 10)?;
                if head
                    .length
                    .replace(length)
                    .is_some_and(|other| other != length)
                {
                    return None;
                }
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                if head.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return None;
                }
                head.chunked = true;
            } else if name.eq_ignore_ascii_case(b"connection") {
                let mut options = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
                head.close |= options.any(|option| option.eq_ignore_ascii_case(b"close"));
            }
        }
        // Rejects messages with both a length and chunks, and HTTP/1.0 messages with chunks. Two
        // implementations could disagree about the end of such a message, so one of them would read
        // its body as another request.
        let is_clear = !head.chunked || (head.length.is_none() && version == Version::New);
        is_clear.then_some(Self { bytes, ..head })
    }

    /// Returns a word of the first line: a method and a path, or a version and a status.
    pub(crate) fn word(&self, n: usize) -> &[u8] {
        self.bytes
            .split(u8::is_ascii_whitespace)
            .nth(n)
            .unwrap_or_default()
    }

    /// Whether another message may follow on the same connection.
    pub(crate) fn keeps_alive(&self) -> bool {
        !self.close
    }

    /// Returns the kind of body of a request.
    pub(crate) fn body(&self) -> Body {
        if self.chunked {
            Body::Chunked
        } else {
            Body::Length(self.length.unwrap_or(0))
        }
    }

    /// Returns the kind of body of the answer to this request.
    pub(crate) fn body_of(&self, answer: &Self) -> Body {
        match answer.word(1) {
            _ if self.word(0) == b"HEAD" => Body::Length(0),
            b"204" | b"304" => Body::Length(0),
            _ if answer.length.is_none() && !answer.chunked => Body::Rest,
            _ => answer.body(),
        }
    }
}

/// Parses the first line of a message. Returns `None` if it is invalid.
type FirstLine = fn(&[u8]) -> Option<Version>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    /// HTTP/1.1
    New,
    /// HTTP/1.0
    Old,
}

impl Version {
    fn new(word: &[u8]) -> Option<Self> {
        match word {
            b"HTTP/1.1" => Some(Self::New),
            b"HTTP/1.0" => Some(Self::Old),
            _ => None,
        }
    }

    fn of_request(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|&byte| byte == b' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        let is_target = !target.is_empty() && target.iter().all(u8::is_ascii_graphic);
        if is_token(method) && is_target && words.next().is_none() {
            Self::new(version)
        } else {
            None
        }
    }

    fn of_answer(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|&byte| byte == b' ');
        let (version, status) = (words.next()?, words.next()?);
        if status.len() == 3 && number(status, 10).is_some() {
            Self::new(version)
        } else {
            None
        }
    }
}

/// Returns a line without its end. `None` if the end is invalid, or if the line contains a
/// character that some implementations treat as a line end.
fn text(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\r\n")?;
    line.iter()
        .all(|&byte| byte == b'\t' || !byte.is_ascii_control())
        .then_some(line)
}

/// Whether the word is a valid method or field name.
fn is_token(word: &[u8]) -> bool {
    let is_in_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !word.is_empty() && word.iter().all(is_in_token)
}

impl Body {
    pub(crate) async fn copy(
        self,
        from: &mut (impl AsyncBufRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        match self {
            Self::Length(length) => copy_exactly(from, to, length).await,
            Self::Rest => copy_buf(from, to).await.map(drop),
            Self::Chunked => {
                loop {
                    let line = read_line(from).await?;
                    let size = line
                        .split(|&byte| byte == b';' || byte == b'\r')
                        .next()
                        .unwrap_or_default();
                    let size = number(size.trim_ascii_end(), 16).ok_or_else(invalid)?;
                    to.write_all(&line).await?;
                    if size == 0 {
                        break;
                    }
                    copy_exactly(from, to, size).await?;
                    if read_line(from).await? != b"\r\n" {
                        return Err(invalid());
                    }
                    to.write_all(b"\r\n").await?;
                }
                // The trailer.
                loop {
                    let line = read_line(from).await?;
                    to.write_all(&line).await?;
                    if line == b"\r\n" {
                        return Ok(());
                    }
                }
            }
        }
    }
}

async fn copy_exactly(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    length: u64,
) -> io::Result<()> {
    let copied = copy_buf(&mut from.take(length), to).await?;
    if copied == length {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

async fn read_line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(MAX_HEAD_LENGTH)
        .read_until(b'\n', &mut line)
        .await?;
    if text(&line).is_some() {
        Ok(line)
    } else {
        Err(invalid())
    }
}

/// Parses a number. It may contain only digits, not even a sign.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| !digits.starts_with('+'))?;
    u64::from_str_radix(digits, radix).ok()
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Option<Head> {
        Head::parse(text.into(), Version::of_request)
    }

    fn answer(text: &str) -> Option<Head> {
        Head::parse(text.into(), Version::of_answer)
    }

    /// Returns the part of `text` that is copied, and the rest.
    fn copy(body: Body, text: &str) -> (io::Result<String>, &str) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let (mut from, mut to) = (text.as_bytes(), Vec::new());
        let end = runtime.block_on(body.copy(&mut from, &mut to));
        (
            end.map(|()| String::from_utf8(to).unwrap()),
            std::str::from_utf8(from).unwrap(),
        )
    }

    #[test]
    fn head_determines_the_body() {
        let get = request("GET /a HTTP/1.1\r\nhost: here\r\n\r\n").unwrap();
        assert_eq!((get.word(0), get.word(1)), (&b"GET"[..], &b"/a"[..]));
        assert_eq!((get.body(), get.keeps_alive()), (Body::Length(0), true));
        let post = request("POST / HTTP/1.1\r\nContent-Length: 7\r\nConnection: te, Close\r\n\r\n")
            .unwrap();
        assert_eq!((post.body(), post.keeps_alive()), (Body::Length(7), false));
        let old = request("GET / HTTP/1.0\r\n\r\n").unwrap();
        assert!(!old.keeps_alive());

        let head = request("HEAD / HTTP/1.1\r\n\r\n").unwrap();
        for (text, to_get) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n",
                Body::Length(3),
            ),
            (
                "HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n",
                Body::Chunked,
            ),
            ("HTTP/1.1 200 OK\r\n\r\n", Body::Rest),
            (
                "HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n",
                Body::Length(0),
            ),
        ] {
            let answer = answer(text).unwrap();
            assert_eq!(get.body_of(&answer), to_get);
            assert_eq!(head.body_of(&answer), Body::Length(0));
        }
    }

    #[test]
    fn ambiguous_messages_are_rejected() {
        for fields in [
            "content-length: 1\r\ncontent-length: 2",
            "content-length: 1\r\ntransfer-encoding: chunked",
            "content-length: +1",
            "content-length: 18446744073709551616",
            "content-length:",
            "transfer-encoding: gzip, chunked",
            "content-length : 1",
            "a: b\r\n continued: too",
            "no colon",
            "a: b\rcontent-length: 1",
            "a: b\ncontent-length: 1",
            "a: b\0c",
            "content-length\x0b: 1",
            "content-length: \x0c1",
            "transfer-encoding: \x0cchunked",
        ] {
            assert!(
                request(&format!("POST / HTTP/1.1\r\n{fields}\r\n\r\n")).is_none(),
                "{fields:?}"
            );
        }
        assert!(request("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n").is_none());
        for line in [
            "",
            "GET /",
            "GET  / HTTP/1.1",
            " GET / HTTP/1.1",
            "GET / HTTP/1.1 HTTP/1.0",
            "GET / HTTP/1.1 ",
            "GET / HTTP/2.0",
            "GET\t/ HTTP/1.1",
            "G(T / HTTP/1.1",
            "HTTP/1.1 200 OK",
        ] {
            assert!(request(&format!("{line}\r\n\r\n")).is_none(), "{line:?}");
        }
        for line in [
            "HTTP/1.1",
            "HTTP/1.1 +20 OK",
            "HTTP/1.1 2000 OK",
            "HTTP/2.0 200 OK",
            "GET / HTTP/1.1",
        ] {
            assert!(answer(&format!("{line}\r\n\r\n")).is_none(), "{line:?}");
        }
    }

    #[test]
    fn body_is_copied_exactly_to_its_end() {
        for (body, text) in [
            (Body::Length(5), "hello"),
            (
                Body::Chunked,
                "5\r\nhello\r\nA;name=value\r\n0123456789\r\n0\r\n\r\n",
            ),
            (Body::Chunked, "0\r\nsum: 1\r\n\r\n"),
        ] {
            let with_more = format!("{text}GET");
            let (copied, left) = copy(body, &with_more);
            assert_eq!((copied.unwrap().as_str(), left), (text, "GET"));
        }
        assert_eq!(copy(Body::Rest, "all").0.unwrap(), "all");
        for (body, text) in [
            (Body::Length(6), "hello"),
            (Body::Chunked, "5\r\nhel"),
            (Body::Chunked, "five\r\n"),
            (Body::Chunked, "ffffffffffffffff\r\n"),
            (Body::Chunked, "0\r\n"),
            (Body::Chunked, "5\r\nhelloXX0\r\n\r\n"),
            (Body::Chunked, "5\n\r\nhello\r\n0\r\n\r\n"),
            (Body::Chunked, "5\x0c\r\nhello\r\n0\r\n\r\n"),
            (Body::Chunked, " 5\r\nhello\r\n0\r\n\r\n"),
            (Body::Chunked, "5\r\nhello\r\n0\r\na: b\rc\r\n\r\n"),
        ] {
            assert!(copy(body, text).0.is_err(), "{text}");
        }
    }
}
