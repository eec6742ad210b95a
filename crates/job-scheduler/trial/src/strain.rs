//! What must not cost a node its lease: a network that is slow at times, thousands of cron jobs by
//! one statement of SQL, and a limit that changes while many runs wait for it.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio_postgres::Config;

use crate::connection::connect;

/// The delays of the network in each direction, in milliseconds.
const DELAYS: [u64; 3] = [0, 5, 25];

/// How many runs of the handler execute at a time, in all nodes.
const LIMITS: [i32; 4] = [1, 50, 5, 200];

const LIMIT: &str = "
    INSERT INTO kind (handler, running) VALUES ('bulk', $1) ON CONFLICT (handler) DO UPDATE SET running = $1";

/// Replaces the cron jobs, which are due each night.
const ADD_CRON_JOBS: &str = "
    DELETE FROM job WHERE handler = 'bulk' AND schedule <> 'once';
    SELECT count(*) FROM generate_series(1, 2000) AS n,
        add_job('bulk', to_jsonb(n), cron => '0 30 3 * * *', time_zone => 'Europe/Berlin')";

/// Adds runs if there are not as many already.
const ADD_RUNS: &str = "
    SELECT count(*) FROM generate_series(1, CASE WHEN (
        SELECT count(*) FROM run WHERE handler = 'bulk' AND finished IS NULL) < 300 THEN 300 ELSE 0 END) AS n,
        add_job('bulk', to_jsonb(n))";

/// A relay between the nodes and the server.
pub(crate) struct Network {
    /// For nodes that connect through it.
    pub(crate) url: String,
    delay: Arc<AtomicU64>,
}

impl Network {
    pub(crate) fn start(server: &Config) -> io::Result<Self> {
        let server = ("127.0.0.1", server.get_ports()[0]);
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let delay = Arc::new(AtomicU64::new(0));
        let network = Self {
            url: format!("postgresql://postgres@127.0.0.1:{port}/postgres"),
            delay: delay.clone(),
        };
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // If the server is not there, the connection is closed.
                let _ = TcpStream::connect(server).and_then(|far| {
                    pass(near.try_clone()?, far.try_clone()?, delay.clone())?;
                    pass(far, near, delay.clone())
                });
            }
        });
        Ok(network)
    }
}

/// Passes on what one side of a connection sends. What is on the way does not delay what follows it.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Arc<AtomicU64>) -> io::Result<()> {
    to.set_nodelay(true)?;
    let (sender, sent) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (arrives, bytes) in sent {
            thread::sleep(arrives.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both)
    });
    thread::spawn(move || {
        let mut bytes = [0; 4_096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let arrives = Instant::now() + Duration::from_millis(delay.load(Relaxed));
            if sender.send((arrives, bytes[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    Ok(())
}

/// Strains the nodes at random intervals of about half a lease, in turn. Adds to the numbers of changes of
/// the network, of statements that add cron jobs, and of changes of a limit.
pub(crate) fn strain(
    config: &Config,
    network: &Network,
    end: Instant,
    lease: Duration,
    random: &mut Rng,
    counts: &mut [u64; 3],
) -> Result<(), Box<dyn Error>> {
    let mut client = connect(config)?;
    for what in (0..counts.len()).cycle() {
        if Instant::now() >= end {
            break;
        }
        match what {
            0 => network
                .delay
                .store(DELAYS[random.usize(..DELAYS.len())], Relaxed),
            1 => client.batch_execute(ADD_CRON_JOBS)?,
            _ => {
                client.execute(LIMIT, &[&LIMITS[random.usize(..LIMITS.len())]])?;
                client.batch_execute(ADD_RUNS)?;
            }
        }
        counts[what] += 1;
        thread::sleep(lease.mul_f64(0.2 + 0.6 * random.f64()));
    }
    network.delay.store(0, Relaxed);
    client.execute(LIMIT, &[&LIMITS[3]])?;
    Ok(())
}
