//! The resource that the lock protects: a counter that checks fencing tokens.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use redis::{Client, Commands, Connection, RedisResult, Script};

/// An access. It is rejected if there was an access with a greater token before.
///
/// KEYS: the counter. ARGV: the token, and the value of a write. Returns the value, or nothing if
/// the access was rejected.
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

/// The pause between reading and writing. It gives another process time for an access in between.
const WORK: Duration = Duration::from_millis(3);

pub(crate) struct Counter {
    client: Client,
    connection: Option<Connection>,
    timeout: Duration,
    key: String,
    access: Script,
}

impl Counter {
    pub(crate) fn new(url: &str, name: &str, timeout: Duration) -> RedisResult<Self> {
        let (client, key, access) = (Client::open(url)?, key(name), Script::new(ACCESS));
        Ok(Self {
            client,
            connection: None,
            timeout,
            key,
            access,
        })
    }

    /// Adds one like a program that relies on the lock: reads the value and writes the incremented
    /// value. Returns false if an access was rejected.
    pub(crate) fn add_one(&mut self, token: u64) -> RedisResult<bool> {
        let Some(value) = self.access(token, None)? else {
            return Ok(false);
        };
        thread::sleep(WORK);
        Ok(self.access(token, Some(value + 1))?.is_some())
    }

    fn access(&mut self, token: u64, value: Option<u64>) -> RedisResult<Option<u64>> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.client.get_connection_with_timeout(self.timeout)?;
                connection.set_read_timeout(Some(self.timeout))?;
                connection
            }
        };
        let answer = self
            .access
            .key(&self.key)
            .arg(token)
            .arg(value)
            .invoke(&mut connection)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// The state of a counter.
pub(crate) struct Count {
    pub(crate) value: u64,
    /// More than the value if a write was overwritten.
    pub(crate) writes: u64,
    pub(crate) refused: u64,
}

impl Count {
    /// Reads the state and deletes the counter.
    pub(crate) fn take(name: &str, redis: &mut Connection) -> RedisResult<Self> {
        let fields: HashMap<String, u64> = redis.hgetall(key(name))?;
        let () = redis.del(key(name))?;
        let [value, writes, refused] = ["value", "writes", "refused"]
            .map(|field| fields.get(field).copied().unwrap_or_default());
        Ok(Self {
            value,
            writes,
            refused,
        })
    }
}

fn key(name: &str) -> String {
    format!("counter:{name}")
}
