//! The calls of the scripts: the names of keys and owners, the arguments and the answers.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, ParsingError, Script, Value};

use crate::protocol::{COMMON, ENTER, HOUSE, LEAVE, RENEW, STATE};

/// The kind of a name, and how an owner holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    /// A read-write lock, for reading.
    Read,
    /// A read-write lock, for writing.
    Write,
    /// A permit of a semaphore that has this many.
    Permit(u32),
}

impl Kind {
    /// Returns the first part of the keys. Names of different families do not affect each other.
    fn family(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Read | Self::Write => "rwlock",
            Self::Permit(_) => "semaphore",
        }
    }

    /// Returns whether an owner with this name holds it this way.
    pub(crate) fn is_of(self, owner: &str) -> bool {
        owner.ends_with(&self.mark())
    }

    /// Returns the end of the names of its owners.
    fn mark(self) -> String {
        match self {
            Self::Lock | Self::Write => "/w".to_owned(),
            Self::Read => format!("/{}", u32::MAX),
            Self::Permit(permits) => format!("/{}", permits.saturating_sub(1)),
        }
    }
}

/// The keys of a lock, a read-write lock or a semaphore.
#[derive(Debug)]
pub(crate) struct Keys {
    /// The holders, their tokens, the queue, and until when the queue keeps its owners.
    all: [String; 4],
    pub(crate) kind: Kind,
}

impl Keys {
    /// The part in braces decides the slot on a cluster. It is never empty, whatever the name is.
    pub(crate) fn new(prefix: &str, kind: Kind, name: &str) -> Self {
        let all = ["", ":tokens", ":queue", ":seen"]
            .map(|part| format!("{prefix}{{{}:{name}}}{part}", kind.family()));
        Self { all, kind }
    }

    /// Returns the first key, which stands for all.
    pub(crate) fn lock(&self) -> &str {
        &self.all[0]
    }

    /// Returns the name of the owner with this number.
    pub(crate) fn owner(&self, client: &str, number: u64) -> Arc<str> {
        format!("{client}:{number}{}", self.kind.mark()).into()
    }
}

/// Returns the channel of the messages for a client's waiting owners.
pub(crate) fn channel(prefix: &str, client: &str) -> String {
    format!("{prefix}lock-wake:{client}")
}

/// A request for the lock. Times are in milliseconds.
pub(crate) struct Request<'a> {
    pub(crate) owner: &'a str,
    pub(crate) lease: u64,
    pub(crate) fair: bool,
    /// For how long the queue keeps the owner. 0: it does not join.
    pub(crate) keep: u64,
    /// How long the first of the queue has time to take a free lock.
    pub(crate) claim: Duration,
}

/// The answer to a request for the lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted {
        token: u64,
    },
    Busy {
        /// After which time the first waiting owner may succeed, in milliseconds. `None`: unknown.
        wait: Option<u64>,
        /// How many owners should try before this one.
        place: u64,
    },
}

impl FromRedisValue for Answer {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (token, wait, place): (u64, i64, i64) = redis::from_redis_value(value)?;
        Ok(match token {
            0 => Self::Busy {
                wait: wait.try_into().ok(),
                place: place.try_into().unwrap_or(0),
            },
            token => Self::Granted { token },
        })
    }
}

/// Which owner of a lock a renewal or a release has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The caller.
    Caller,
    NoOwner,
    OtherOwner,
}

impl FromRedisValue for Found {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        Ok(match redis::from_redis_value::<i64>(value)? {
            1 => Self::Caller,
            0 => Self::NoOwner,
            _ => Self::OtherOwner,
        })
    }
}

/// The text of a script, and its hash, by which Redis finds it.
struct Code {
    text: String,
    hash: String,
}

impl Code {
    fn new(text: String) -> Self {
        let hash = Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// A call of a script.
pub(crate) struct Call<'a> {
    code: &'a Code,
    keys: Vec<&'a str>,
    arguments: Vec<String>,
}

impl<'a> Call<'a> {
    fn new(code: &'a Code, keys: &'a Keys, arguments: Vec<String>) -> Self {
        Self {
            code,
            keys: keys.all.iter().map(|key| &**key).collect(),
            arguments,
        }
    }

    /// Returns the command for a server that knows the script.
    pub(crate) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.code.hash)
    }

    /// Returns the command for a server that does not know the script. After it, the server does.
    pub(crate) fn by_text(&self) -> Cmd {
        self.command("EVAL", &self.code.text)
    }

    fn command(&self, name: &str, code: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command
            .arg(code)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.arguments);
        command
    }
}

/// The scripts of a client.
pub(crate) struct Scripts {
    enter: Code,
    leave: Code,
    state: Code,
    renew: Code,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            enter: Code::new(format!("{COMMON}{HOUSE}{ENTER}")),
            leave: Code::new(format!("{COMMON}{HOUSE}{LEAVE}")),
            state: Code::new(format!("{COMMON}{HOUSE}{STATE}")),
            renew: Code::new(format!("{COMMON}{RENEW}")),
        }
    }

    pub(crate) fn enter<'a>(&'a self, keys: &'a Keys, request: &Request<'_>) -> Call<'a> {
        let Request {
            owner,
            lease,
            fair,
            keep,
            claim,
        } = *request;
        let numbers = [lease, u64::from(fair), keep, claim.as_millis() as u64];
        let arguments = iter::once(owner.to_owned())
            .chain(numbers.map(|number| number.to_string()))
            .collect();
        Call::new(&self.enter, keys, arguments)
    }

    pub(crate) fn leave<'a>(&'a self, keys: &'a Keys, owner: &str, claim: Duration) -> Call<'a> {
        let arguments = vec![owner.to_owned(), claim.as_millis().to_string()];
        Call::new(&self.leave, keys, arguments)
    }

    /// `wanted` is the token of the hold that the script ends, `*` for any, or empty. Waiting owners
    /// have the time `claim` to enter after it.
    pub(crate) fn state<'a>(&'a self, keys: &'a Keys, wanted: &str, claim: Duration) -> Call<'a> {
        let claim = claim.as_millis().to_string();
        let arguments = vec![String::new(), wanted.to_owned(), claim];
        Call::new(&self.state, keys, arguments)
    }

    /// Takes the keys, the owner and the lease in milliseconds of each lock.
    pub(crate) fn renew<'a>(&'a self, locks: &[(&'a Keys, &str, u64)]) -> Call<'a> {
        let keys = locks.iter().map(|&(keys, ..)| keys.lock()).collect();
        // A lease of 0 would delete the lock.
        let arguments = locks
            .iter()
            .flat_map(|&(_, owner, lease)| [owner.to_owned(), lease.max(1).to_string()]);
        Call {
            code: &self.renew,
            keys,
            arguments: arguments.collect(),
        }
    }
}
