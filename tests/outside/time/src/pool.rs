//! A pool of connections: `get` has a time limit, and a reaper closes what is idle or old.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::time::error::Elapsed;
use super::time::{self, Duration, Instant, MissedTickBehavior};

/// Makes connections.
pub trait Manager: Send + Sync + 'static {
    type Connection: Send + 'static;
    type Error: Send;

    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Self::Error>> + Send;

    fn is_alive(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub max_size: usize,
    /// How long `get` waits: for a place, a connection and a check together.
    pub get: Duration,
    /// How long a check of a connection may take.
    pub check: Duration,
    /// The first pause after a failed connect. Each further one is twice as long.
    pub retry: Duration,
    pub max_idle: Duration,
    pub max_lifetime: Duration,
    pub reap_every: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub enum GetError {
    Timeout,
    Closed,
}

impl From<Elapsed> for GetError {
    fn from(_: Elapsed) -> Self {
        Self::Timeout
    }
}

struct Idle<C> {
    connection: C,
    since: Instant,
    created: Instant,
}

struct Shared<M: Manager> {
    manager: M,
    settings: Settings,
    idle: Mutex<VecDeque<Idle<M::Connection>>>,
    places: Arc<Semaphore>,
}

impl<M: Manager> Shared<M> {
    fn is_old(&self, idle: &Idle<M::Connection>, now: Instant) -> bool {
        now - idle.since >= self.settings.max_idle
            || now - idle.created >= self.settings.max_lifetime
    }

    fn reap(&self) -> usize {
        let now = Instant::now();
        let mut idle = self.idle.lock().unwrap();
        let before = idle.len();
        idle.retain(|idle| !self.is_old(idle, now));
        before - idle.len()
    }
}

/// Clones share the connections.
pub struct Pool<M: Manager>(Arc<Shared<M>>);

impl<M: Manager> Clone for Pool<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Manager> Pool<M> {
    /// Makes a pool, and spawns its reaper, which ends with the pool.
    pub fn new(manager: M, settings: Settings) -> Self {
        let shared = Arc::new(Shared {
            manager,
            settings,
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(settings.max_size)),
        });
        tokio::spawn(reap(Arc::downgrade(&shared), settings.reap_every));
        Self(shared)
    }

    /// Takes a connection that is alive, or makes one.
    pub async fn get(&self) -> Result<Pooled<M>, GetError> {
        let deadline = Instant::now() + self.0.settings.get;
        let place = Arc::clone(&self.0.places).acquire_owned();
        let place = time::timeout_at(deadline, place).await?;
        let place = place.map_err(|_| GetError::Closed)?;
        let (connection, created) = time::timeout_at(deadline, self.connection()).await?;
        Ok(Pooled {
            connection: Some(connection),
            created,
            pool: Arc::downgrade(&self.0),
            _place: place,
        })
    }

    async fn connection(&self) -> (M::Connection, Instant) {
        let Shared {
            manager, settings, ..
        } = &*self.0;
        loop {
            let Some(mut idle) = self.0.idle.lock().unwrap().pop_back() else {
                break;
            };
            if self.0.is_old(&idle, Instant::now()) {
                continue;
            }
            let check = manager.is_alive(&mut idle.connection);
            if let Ok(Ok(())) = time::timeout(settings.check, check).await {
                return (idle.connection, idle.created);
            }
        }
        let mut pause = settings.retry;
        loop {
            if let Ok(connection) = manager.connect().await {
                return (connection, Instant::now());
            }
            time::sleep(pause).await;
            pause *= 2;
        }
    }

    pub fn idle(&self) -> usize {
        self.0.idle.lock().unwrap().len()
    }

    /// From now on `get` fails. Connections in use are closed when they come back.
    pub fn close(&self) {
        self.0.places.close();
        self.0.idle.lock().unwrap().clear();
    }
}

async fn reap<M: Manager>(pool: Weak<Shared<M>>, every: Duration) {
    let mut rounds = time::interval_at(Instant::now() + every, every);
    // A machine that was suspended needs one round, and not one for each that was missed.
    rounds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        rounds.tick().await;
        let Some(pool) = pool.upgrade() else { return };
        if pool.reap() > 0 {
            // The others are about as old.
            rounds.reset_after(rounds.period() / 4);
        }
    }
}

/// A connection that goes back to its pool when it is dropped.
pub struct Pooled<M: Manager> {
    connection: Option<M::Connection>,
    created: Instant,
    pool: Weak<Shared<M>>,
    _place: OwnedSemaphorePermit,
}

impl<M: Manager> Deref for Pooled<M> {
    type Target = M::Connection;

    fn deref(&self) -> &M::Connection {
        self.connection.as_ref().expect("it is not dropped")
    }
}

impl<M: Manager> DerefMut for Pooled<M> {
    fn deref_mut(&mut self) -> &mut M::Connection {
        self.connection.as_mut().expect("it is not dropped")
    }
}

impl<M: Manager> Drop for Pooled<M> {
    fn drop(&mut self) {
        if let (Some(connection), Some(pool)) = (self.connection.take(), self.pool.upgrade()) {
            if !pool.places.is_closed() {
                pool.idle.lock().unwrap().push_back(Idle {
                    connection,
                    since: Instant::now(),
                    created: self.created,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const SETTINGS: Settings = Settings {
        max_size: 2,
        get: ms(1_000),
        check: ms(100),
        retry: ms(10),
        max_idle: ms(10_000),
        max_lifetime: ms(60_000),
        reap_every: ms(4_000),
    };

    /// Numbers its connections. The first `failures` attempts fail.
    #[derive(Default)]
    struct Numbers {
        made: Arc<AtomicUsize>,
        failures: AtomicUsize,
        hangs: Arc<AtomicUsize>,
    }

    impl Manager for Numbers {
        type Connection = usize;
        type Error = ();

        async fn connect(&self) -> Result<usize, ()> {
            let one_less = |left: usize| left.checked_sub(1);
            match self.failures.fetch_update(SeqCst, SeqCst, one_less) {
                Ok(_) => Err(()),
                Err(_) => Ok(self.made.fetch_add(1, SeqCst)),
            }
        }

        async fn is_alive(&self, _: &mut usize) -> Result<(), ()> {
            if self.hangs.load(SeqCst) > 0 {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn get_waits_for_a_place_but_not_for_longer_than_its_limit() {
        let pool = Pool::new(Numbers::default(), SETTINGS);
        let (first, second) = (pool.get().await.unwrap(), pool.get().await.unwrap());
        assert_eq!((*first, *second), (0, 1));
        let begin = Instant::now();
        assert_eq!(pool.get().await.err(), Some(GetError::Timeout));
        assert!((ms(1_000)..=ms(1_001)).contains(&begin.elapsed()));
        let waits = tokio::spawn({
            let pool = pool.clone();
            async move { pool.get().await.map(|connection| *connection) }
        });
        time::sleep(ms(500)).await;
        drop(second);
        assert_eq!(waits.await.unwrap(), Ok(1));
        pool.close();
        assert_eq!(pool.get().await.err(), Some(GetError::Closed));
        drop(first);
        assert_eq!(pool.idle(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_reaper_closes_idle_and_old_connections() {
        let pool = Pool::new(Numbers::default(), SETTINGS);
        drop((pool.get().await.unwrap(), pool.get().await.unwrap()));
        time::sleep(ms(9_000)).await;
        assert_eq!(pool.idle(), 2);
        drop(pool.get().await.unwrap());
        time::sleep(ms(4_000)).await;
        assert_eq!(pool.idle(), 1, "the one that was used stays");
        for _ in 0..9 {
            time::sleep(ms(6_000)).await;
            drop(pool.get().await.unwrap());
        }
        let number = *pool.get().await.unwrap();
        assert_eq!(number, 2, "the first has reached its age");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reaper_that_was_suspended_goes_on() {
        let pool = Pool::new(Numbers::default(), SETTINGS);
        drop(pool.get().await.unwrap());
        time::sleep(ms(1)).await;
        time::advance(ms(3_600_000)).await;
        time::sleep(ms(4_001)).await;
        assert_eq!(pool.idle(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_connects_are_repeated_with_growing_pauses() {
        let manager = Numbers::default();
        manager.failures.store(4, SeqCst);
        let pool = Pool::new(manager, SETTINGS);
        let begin = Instant::now();
        assert_eq!(*pool.get().await.unwrap(), 0);
        assert!((ms(150)..=ms(154)).contains(&begin.elapsed()));
        let manager = Numbers::default();
        manager.failures.store(99, SeqCst);
        let got = Pool::new(manager, SETTINGS).get().await;
        assert_eq!(got.err(), Some(GetError::Timeout));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_check_hangs_is_replaced() {
        let manager = Numbers::default();
        let hangs = Arc::clone(&manager.hangs);
        let pool = Pool::new(manager, SETTINGS);
        drop(pool.get().await.unwrap());
        hangs.store(1, SeqCst);
        let begin = Instant::now();
        assert_eq!(*pool.get().await.unwrap(), 1);
        assert!((ms(100)..=ms(101)).contains(&begin.elapsed()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_works_in_real_time() {
        let short = Settings {
            get: ms(2_000),
            max_idle: ms(20),
            reap_every: ms(10),
            ..SETTINGS
        };
        let pool = Pool::new(Numbers::default(), short);
        let tasks = (0..20).map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    let connection = pool.get().await.unwrap();
                    time::sleep(ms(1)).await;
                    drop(connection);
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let emptied = async {
            while pool.idle() > 0 {
                time::sleep(ms(5)).await;
            }
        };
        time::timeout(ms(10_000), emptied).await.unwrap();
    }
}
