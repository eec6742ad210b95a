//! Redis answers, but with an error: because of the rights of the user.

use std::time::Duration;

use redis::{Client, Connection, RedisResult};
use redis_lock::LockClient;

use super::common::{PATIENCE, Setup, options, restricted_user, within};

/// A call may take 10 s.
const LONG: Duration = Duration::from_secs(100);

/// Executes a command whose arguments contain no spaces.
fn execute(redis: &mut Connection, command: &str) -> RedisResult<()> {
    let mut words = command.split(' ');
    redis::cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).query(redis)
}

/// Without rights for the channels, callers poll.
#[tokio::test]
async fn a_user_with_few_rights_can_lock() {
    let Some(mut setup) = Setup::new("lock-acl") else { return };
    for (user, rules, database) in
        [("poll", "resetchannels -publish -subscribe", ""), ("wake", "", ""), ("select", "+select", "1")]
    {
        let url = restricted_user(&setup.server.url(), user, rules) + database;
        let locks = LockClient::new(Client::open(url).unwrap(), &setup.timer).unwrap();
        let poll = if user == "poll" { Duration::from_millis(100) } else { PATIENCE * 3 };
        let mut lock = locks.lock_with("a", options().lease(LONG).poll(poll));
        let guard = lock.lock().await.unwrap();
        let mut other = locks.lock_with("a", options().lease(LONG).poll(poll));
        let waiting = tokio::spawn(async move { other.lock().await });
        execute(&mut setup.redis, &format!("SELECT {}", if database.is_empty() { "0" } else { database }))
            .unwrap();
        setup.until("it waits", |setup| setup.queue_len("a") == 1).await;
        // Each call has to send its script again.
        execute(&mut setup.redis, "SCRIPT FLUSH").unwrap();
        lock.lock().await.unwrap().unlock().await.unwrap();
        execute(&mut setup.redis, "SCRIPT FLUSH").unwrap();
        guard.unlock().await.unwrap();
        within(waiting).await.unwrap().unwrap().unlock().await.unwrap();
    }
    let url = restricted_user(&setup.server.url(), "no-select", "") + "1";
    let locks = LockClient::new(Client::open(url).unwrap(), &setup.timer).unwrap();
    let failed = locks.lock("a").lock().await.unwrap_err().to_string();
    assert!(failed.contains("no permissions to run the 'select' command"), "{failed}");
}
