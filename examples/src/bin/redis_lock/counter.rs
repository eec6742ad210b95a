//! What the lock guards: a counter that looks at fencing tokens.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use redis::{Client, Commands, Connection, RedisResult, Script};

/// An access, which is refused if somebody with a greater token was there before.
///
/// KEYS: the counter. ARGV: the token and, to write, the value. Returns the value; nothing, if it was refused.
const ACCESS: &str = r"
    if tonumber(ARGV[1]) < tonumber(redis.call('hget', KEYS[1], 'token') or 0) then
        redis.call('hincrby', KEYS[1], 'refused', 1)
        return nil
    end
    redis.call('hset', KEYS[1], 'token', ARGV[1])
    if ARGV[2] then
        redis.call('hset', KEYS[1], 'value', ARGV[2])
        redis.call('hincrby', KEYS[1], 'writes', 1)
    end
    return tonumber(redis.call('hget', KEYS[1], 'value') or 0)
";

/// Between reading and writing: so there is time for somebody else to come between them.
const WORK: Duration = Duration::from_millis(3);

pub(crate) struct Counter {
    client: Client,
    connection: Option<Connection>,
    patience: Duration,
    key: String,
    access: Script,
}

impl Counter {
    pub(crate) fn new(url: &str, name: &str, patience: Duration) -> RedisResult<Self> {
        let (client, key, access) = (Client::open(url)?, key(name), Script::new(ACCESS));
        Ok(Self { client, connection: None, patience, key, access })
    }

    /// Adds one, as who relies on the lock does it: reads, and writes what comes of that. False if it was refused.
    pub(crate) fn add_one(&mut self, token: u64) -> RedisResult<bool> {
        let Some(value) = self.access(token, None)? else { return Ok(false) };
        thread::sleep(WORK);
        Ok(self.access(token, Some(value + 1))?.is_some())
    }

    fn access(&mut self, token: u64, value: Option<u64>) -> RedisResult<Option<u64>> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.client.get_connection_with_timeout(self.patience)?;
                connection.set_read_timeout(Some(self.patience))?;
                connection
            }
        };
        let answer = self.access.key(&self.key).arg(token).arg(value).invoke(&mut connection)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// What has become of a counter.
pub(crate) struct Count {
    pub(crate) value: u64,
    /// More than the value, if one was made in vain.
    pub(crate) writes: u64,
    pub(crate) refused: u64,
}

impl Count {
    /// Counts no more.
    pub(crate) fn take(name: &str, redis: &mut Connection) -> RedisResult<Self> {
        let fields: HashMap<String, u64> = redis.hgetall(key(name))?;
        let () = redis.del(key(name))?;
        let [value, writes, refused] =
            ["value", "writes", "refused"].map(|field| fields.get(field).copied().unwrap_or_default());
        Ok(Self { value, writes, refused })
    }
}

fn key(name: &str) -> String {
    format!("counter:{name}")
}
