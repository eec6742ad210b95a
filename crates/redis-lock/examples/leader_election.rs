//! Leader election: of several processes, one leads until it ends or loses the lock.
//!
//! ```sh
//! cargo run -p hashed-wheel-redis-lock --example leader_election -- one
//! cargo run -p hashed-wheel-redis-lock --example leader_election -- two    # in another terminal
//! ```
//!
//! If the leader is killed, the other one leads when its lease has ended.

use redis_lock::{LockClient, LockError, LockOptions, redis};
use std::time::Duration;

/// Leads whenever no other candidate does.
///
/// # Errors
///
/// If the lock cannot be used at all, such as without a runtime.
pub async fn run(url: &str, name: &str, lease: Duration) -> Result<(), LockError> {
    let locks = LockClient::new(redis::Client::open(url)?)?;
    // In the order in which they began to wait, the others follow.
    let mut lock = locks.lock_with("leader", LockOptions::new().lease(lease).fair(true));
    loop {
        let leadership = match lock.lock().await {
            Ok(guard) => guard,
            Err(error @ (LockError::Redis(_) | LockError::Lost(_))) => {
                println!("{name} is no candidate at the moment: {error}");
                tokio::time::sleep(lease / 6).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        println!("{name} leads in term {}", leadership.token());
        tokio::select! {
            () = lead(leadership.token()) => drop(leadership.unlock().await),
            loss = leadership.lost() => println!("{name} leads no longer: {loss}"),
        }
    }
}

/// The work of the leader. It ends at any `.await` when the leadership is lost, so it sends the
/// term to everything that it changes, which rejects earlier terms.
async fn lead(_term: u64) {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments
        .next()
        .unwrap_or_else(|| std::process::id().to_string());
    let url = arguments
        .next()
        .unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    run(&url, &name, Duration::from_secs(5)).await
}
