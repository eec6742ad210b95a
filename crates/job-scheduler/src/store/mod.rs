//! All statements of a node.
//!
//! Two invariants hold even if any process stops at any point. All guarantees follow from them:
//!
//! - **A run that is claimed or running has an owner with a row in `node`.** A run is assigned to a
//!   node only in a transaction that holds a lock on that row ([`read::IS_MINE`] and `claim_runs`
//!   take it) or has inserted it ([`REGISTER`]), or by the function `finish_runs`, for a job of
//!   which the node has a run until that statement. A row is deleted only in a transaction that has
//!   locked it and then found no such run. Therefore a run that is claimed while the lease ends is
//!   either visible to the node that takes over, or it is not written at all.
//! - **Only its owner starts or finishes a run**, with an `UPDATE` that checks the owner. This
//!   `UPDATE` and the one that takes over the run conflict on the row of the run: the later one
//!   sees the changes of the earlier one. Therefore a run that was claimed and never started is
//!   started once. A run that was started by a lost node is started again and marked: its
//!   `interrupted` is incremented. So is a run that loses its places because no node can start it
//!   again, under the same lock of the row of its node.
//!
//! Why statements join by `id = ANY (ARRAY[other.id])` is said at the beginning of
//! `migrations/1.sql`.
//!
//! Statements that belong together are sent together (`in_order!`), so that they take one round
//! trip.
//!
//! If the answer to a statement is lost, it is unknown whether it was executed. There is no need to
//! find out. The node registers again under another number, and takes the executions that continue
//! with it. The other runs of the old number are given back. If the answer to a registration is
//! lost, its number is one more old number.

/// Sends statements at once, and awaits all answers. The error that is returned is the first one in
/// the order of the statements: after it, the server rejects the rest of the transaction.
macro_rules! in_order {
    ($($answer:ident = $statement:expr),+ $(,)?) => {{
        let ($($answer,)+) = tokio::join!($($statement),+);
        ($($answer?,)+)
    }};
}

mod read;
mod rows;
mod statements;

use std::slice;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Json;
use tokio_postgres::{Client, Error, Row};

use crate::clock::Reading;
use crate::connect::local_settings;
use crate::json::{LARGE, MAX_BYTES};
use crate::sql::{Names, Parameter};

use rows::{ids, look, reading, run, started};
use statements::Statements;

pub(crate) use read::{Portion, Wanted};
pub(crate) use rows::{
    Finished, Finishes, Look, Previous, Registered, Run, SNOOZED, Started, Starts, Verdict,
};

const LISTEN: &str = "LISTEN \"@channel\"; LISTEN \"@channel_cancel\"";

const REGISTER: &str = "
    INSERT INTO @node (name, alive_until, heartbeat_us, listens, handlers)
    VALUES ($1, clock_timestamp() + make_interval(secs => $2), $3, $4, $5)
    RETURNING id, clock_timestamp(), alive_until";

/// Fails after the lease has ended, because another node may be about to take over. It reads and
/// locks nothing but this row.
const RENEW: &str = "
    UPDATE @node SET alive_until = clock_timestamp() + make_interval(secs => $2)
    WHERE id = $1 AND alive_until > clock_timestamp()
    RETURNING clock_timestamp()";

/// A node with these numbers does nothing any more. Its runs can be taken over immediately. Waits
/// until it claims nothing. Returns the numbers that exist. A lease that ends later than the time
/// that is known is another node's: a server that crashes may give out a number again.
const LEAVE: &str = "
    WITH mine AS (
        SELECT node.id FROM unnest($1::bigint[], $2::timestamptz[]) AS known (id, alive_until)
        JOIN @node node ON node.id = ANY (ARRAY[known.id])
        WHERE (node.alive_until <= known.alive_until) IS NOT FALSE
        ORDER BY node.id FOR UPDATE OF node
    ), left_over AS (
        UPDATE @node node SET alive_until = LEAST(node.alive_until, clock_timestamp())
        FROM mine WHERE node.id = ANY (ARRAY[mine.id])
    )
    SELECT id, @notify('') FROM mine";

/// The node has shut down, and this has interrupted its runs. If it watches one, the takeover excuses
/// the others.
const EXCUSE_ALL: &str = "
    WITH unlocked AS (
        SELECT id FROM @run WHERE owner = $1 AND state = 'running' AND @counts(id, $1)
        FOR UPDATE SKIP LOCKED
    )
    UPDATE @run run SET excused = excused + 1 FROM unlocked WHERE run.id = ANY (ARRAY[unlocked.id])";

/// Gives a new number of a node the executions that continue. (A statement that an old connection
/// has sent may still arrive. It changes nothing, because the runs have another owner.)
const ADOPT: &str = "
    WITH unlocked AS (
        SELECT id FROM @run WHERE owner = ANY ($2) AND state = 'running' AND id = ANY ($3)
        FOR UPDATE SKIP LOCKED
    ), kept AS (
        UPDATE @slot slot SET node = $1 FROM unlocked WHERE slot.run = ANY (ARRAY[unlocked.id])
    )
    UPDATE @run run SET owner = $1 FROM unlocked WHERE run.id = ANY (ARRAY[unlocked.id])
    RETURNING run.id";

/// Waits if there are executions that a statement of an old connection has locked, or a transaction
/// of an application.
const WAIT_FOR_LOCKED: &str = "
    SELECT pg_sleep($3) FROM (
        SELECT FROM @run WHERE owner = ANY ($1) AND state = 'running' AND id = ANY ($2) LIMIT 1
    ) AS locked";

/// How often a new number of a node waits for them, altogether for a quarter of a lease. Then other
/// nodes take them over.
const WAITS: u32 = 10;

/// A statement that should have started only this run has failed, and its payload is large. No node
/// reads it forever: it is abandoned as if it had ended the node.
const BLAME: &str = "
    UPDATE @run run SET interrupted = run.interrupted + 1, attempt = run.attempt + 1
    FROM (
        SELECT run.id FROM @run run JOIN @job job ON job.id = ANY (ARRAY[run.job])
        WHERE run.id = $2 AND run.owner = ANY ($1) AND run.state IN ('claimed', 'running')
            AND COALESCE(run.payload_bytes, job.payload_bytes) > $3
        FOR UPDATE OF run SKIP LOCKED
    ) AS unlocked
    WHERE run.id = ANY (ARRAY[unlocked.id])";

/// Executions that have ended because the node could not renew its lease. Perhaps another node has
/// taken them over meanwhile. No interruption is excused twice.
const EXCUSE: &str = "
    WITH unlocked AS (
        SELECT id FROM @run
        WHERE id = ANY ($1) AND finished IS NULL
            AND excused < interrupted + CASE WHEN owner = ANY ($2) AND state = 'running' THEN 1 ELSE 0 END
        FOR UPDATE SKIP LOCKED
    )
    UPDATE @run run SET excused = run.excused + 1 FROM unlocked WHERE run.id = ANY (ARRAY[unlocked.id])";

/// Gives back what has not started: with a list of executions that continue, also runs that are not
/// in it, because the node has not got the answer to the statement that has started them. Locked
/// runs remain, until other nodes take them over.
const RELEASE: &str = "
    WITH unlocked AS (
        SELECT id FROM @run
        WHERE owner = ANY ($1) AND state IN ('claimed', 'running') AND (state = 'claimed' OR id <> ALL ($2))
        FOR UPDATE SKIP LOCKED
    ), unused AS (
        UPDATE @slot slot SET node = NULL FROM unlocked WHERE slot.run = ANY (ARRAY[unlocked.id])
    ), released AS (
        UPDATE @run run SET state = 'waiting', owner = NULL FROM unlocked WHERE run.id = ANY (ARRAY[unlocked.id])
        RETURNING run.id
    )
    SELECT array_agg(id), @notify('') FROM released HAVING count(*) > 0";

/// The node is ending: no run keeps a place for it.
const STOP_SERVING: &str = "UPDATE @node SET handlers = '{}' WHERE id = $1";

const LOOK: &str = "SELECT * FROM @look($1, $2, $3)";

const HAS_OTHERS: &str =
    "SELECT EXISTS (SELECT FROM @node WHERE id <> $1 AND alive_until > clock_timestamp())";

/// The node starts this suspect next, or, if it is NULL, other runs. A statement of its own, because
/// the renewal of the lease waits for this lock of its row.
const WATCH: &str = "
    UPDATE @node SET suspect = $2 WHERE id = $1 AND suspect IS DISTINCT FROM $2";

const START: &str = "SELECT * FROM @start_runs($1, $2, $3)";

/// Runs that could not start were cancelled, released or taken over, or the lease has ended.
const IS_ALIVE: &str = "SELECT id FROM @node WHERE id = $1 AND alive_until > clock_timestamp()";

const FINISH: &str = "SELECT * FROM @finish_runs($1, $2, $3, $4, $5, $6, $7)";

/// Of runs whose results could not be written: those that another node has taken over. The others
/// were deleted with their job.
const TAKEN_OVER: &str = "
    SELECT id FROM @run WHERE id = ANY ($1) AND owner IS DISTINCT FROM $2 LIMIT 1";

/// A node that is stopped between two statements of a transaction would keep the locks.
const SETTLE: &str = "SELECT @settle(make_interval(secs => $1), $2, $3)";

const CLEAN: &str = "SELECT @clean(make_interval(secs => $1), $2)";

/// The purpose of a connection of a node: which statements it executes often.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role {
    /// Renews the lease, and nothing else, so that nothing else delays it.
    Lease,
    Read,
    Start,
    Finish,
}

/// A connection of a node.
#[derive(Debug)]
pub(crate) struct Store {
    client: Client,
    statements: Statements,
    lease: Duration,
    has_session: bool,
    /// The settings of each transaction, if the connection has no session of its own.
    local_settings: String,
}

impl Store {
    /// `has_session`: the connection is one to PostgreSQL itself, which has settings.
    pub(crate) async fn new(
        client: Client,
        names: &Names,
        lease: Duration,
        has_session: bool,
        role: Role,
    ) -> Result<Self, Error> {
        let texts = match role {
            _ if !has_session => &[][..],
            Role::Lease => &[RENEW],
            Role::Read => &[
                LOOK,
                read::CLAIM_RUNS,
                read::IS_MINE,
                read::LOCK_DUE,
                read::CLAIM,
                read::MOVE_ON,
                read::LOCK_UNPLANNED,
                SETTLE,
            ],
            Role::Start => &[WATCH, START],
            Role::Finish => &[FINISH],
        };
        let statements = Statements::new(names, &client, texts).await?;
        let local_settings = if has_session {
            String::new()
        } else {
            local_settings(lease)
        };
        Ok(Self {
            client,
            statements,
            lease,
            has_session,
            local_settings,
        })
    }

    /// Makes notifications arrive on this connection.
    pub(crate) async fn listen(&self, names: &Names) -> Result<(), Error> {
        self.client.batch_execute(&names.complete(LISTEN)).await
    }

    /// Fails if the connection is closed.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        self.client.batch_execute("").await
    }

    /// Begins a transaction, of which the server ends a statement that takes longer than `limit`.
    /// The caller sends more without waiting for the answer.
    async fn begin(&self, limit: Duration) -> Result<(), Error> {
        let (settings, millis) = (&self.local_settings, limit.as_millis());
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED;{settings}SET LOCAL statement_timeout = {millis}"
        );
        let begin = self.statements.names.complete(&begin);
        self.client.batch_execute(&begin).await
    }

    /// Limits each of the next statements of the transaction.
    async fn limit(&self, limit: Duration) -> Result<(), Error> {
        let limit = format!("SET LOCAL statement_timeout = {}", limit.as_millis());
        self.client.batch_execute(&limit).await
    }

    async fn commit(&self) -> Result<(), Error> {
        self.client.batch_execute("COMMIT").await
    }

    /// Executes one statement, which takes `limit` at most.
    async fn query_limited<const N: usize>(
        &self,
        limit: Duration,
        text: &str,
        parameters: [Parameter<'_>; N],
    ) -> Result<Vec<Row>, Error> {
        let ((), rows, ()) = in_order!(
            begun = self.begin(limit),
            rows = self.query(text, parameters),
            committed = self.commit()
        );
        Ok(rows)
    }

    async fn query<const N: usize>(
        &self,
        text: &str,
        parameters: [Parameter<'_>; N],
    ) -> Result<Vec<Row>, Error> {
        self.statements.query(&self.client, text, parameters).await
    }

    /// Registers a new node. Ends its previous numbers: executions that continue get the new number,
    /// and what has not started is given back. Before it commits, it adds the new number to them.
    pub(crate) async fn register(
        &self,
        name: &str,
        handlers: &[String],
        heartbeat: Duration,
        previous: Previous<'_>,
    ) -> Result<Registered, Error> {
        let Previous {
            numbers,
            executing,
            excused,
            culprit,
        } = previous;
        let sent = Instant::now();
        let (lease, heartbeat) = (self.lease.as_secs_f64(), heartbeat.as_micros() as i64);
        let (known, untils): (Vec<_>, Vec<_>) = numbers.iter().copied().unzip();
        // The old numbers first: that waits until an old connection claims nothing. Twice, because it
        // may have registered meanwhile.
        let ((), _, old, rows) = in_order!(
            begun = self.begin(self.lease),
            waited = self.query(LEAVE, [&known, &untils]),
            old = self.query(LEAVE, [&known, &untils]),
            rows = self.query(
                REGISTER,
                [&name, &lease, &heartbeat, &self.has_session, &handlers]
            )
        );
        let (id, reading): (i64, _) = (rows[0].try_get(0)?, reading(&rows[0], 1, sent)?);
        let old = ids(&old)?;
        let mut kept = Vec::new();
        if executing.is_some() {
            let pause = (self.lease / (4 * WAITS)).as_secs_f64();
            for _ in 0..WAITS {
                let (adopted, locked) = in_order!(
                    adopted = self.query(ADOPT, [&id, &old, &executing]),
                    locked = self.query(WAIT_FOR_LOCKED, [&old, &executing, &pause])
                );
                kept.extend(ids(&adopted)?);
                if locked.is_empty() {
                    break;
                }
            }
        }
        // The answer may be lost.
        numbers.retain(|(id, _)| old.contains(id));
        numbers.push((id, Some(rows[0].try_get(2)?)));
        in_order!(
            blamed = self.query(BLAME, [&old, &culprit, &(LARGE as i32)]),
            released = self.query(RELEASE, [&old, &executing]),
            excused = self.query(EXCUSE, [&excused, &old]),
            committed = self.commit()
        );
        Ok(Registered { id, reading, kept })
    }

    /// Renews the lease. Returns `None` if it has ended.
    pub(crate) async fn renew(&self, node: i64) -> Result<Option<Reading>, Error> {
        let sent = Instant::now();
        let lease = self.lease.as_secs_f64();
        let renewed = self.query(RENEW, [&node, &lease]).await?;
        renewed.first().map(|row| reading(row, 0, sent)).transpose()
    }

    /// Hands on the places of limited runs that no node hands on, and gives turns to runs that wait
    /// for a rate, until a time that is so far ahead.
    /// Only a part, of about this many places of the names after this one. Returns the last name.
    pub(crate) async fn settle(
        &self,
        ahead: Duration,
        after: &str,
        count: usize,
        limit: Duration,
    ) -> Result<String, Error> {
        let (ahead, count) = (ahead.as_secs_f64(), count as i64);
        let settle = self.query_limited(limit, SETTLE, [&ahead, &after, &count]);
        settle.await?[0].try_get(0)
    }

    /// Looks what there is to do. It writes nothing.
    pub(crate) async fn look(
        &self,
        node: i64,
        handlers: &[String],
        prefetch: Duration,
        limit: Duration,
    ) -> Result<Look, Error> {
        let prefetch = prefetch.as_micros() as i64;
        let rows = self.query_limited(limit, LOOK, [&node, &handlers, &prefetch]);
        look(&rows.await?[0])
    }

    /// From now on the node watches this suspect, or none.
    pub(crate) async fn watch(&self, node: i64, suspect: Option<i64>) -> Result<(), Error> {
        self.query(WATCH, [&node, &suspect]).await.map(drop)
    }

    /// Starts runs that are due, as many as have payloads of [`MAX_BYTES`] together, and at least
    /// one.
    pub(crate) async fn start(&self, node: i64, runs: &[i64]) -> Result<Starts, Error> {
        let rows = match self.query(START, [&node, &runs, &(MAX_BYTES as i64)]).await {
            Err(error) if is_locked(&error) => {
                return Ok(Starts {
                    locked: runs.to_vec(),
                    ..Starts::default()
                });
            }
            rows => rows?,
        };
        let mut starts = Starts::default();
        let mut missing = runs.to_vec();
        for row in rows {
            let id: i64 = row.try_get(0)?;
            missing.retain(|&run| run != id);
            match row.try_get(1)? {
                "running" => starts.running.push(started(&row)?),
                "locked" => starts.locked.push(id),
                "postponed" => starts.postponed.push(id),
                "later" => starts.later.push((id, row.try_get(7)?)),
                _ => starts.held_back += 1,
            }
        }
        if !missing.is_empty() {
            starts.is_lease_lost = self.query(IS_ALIVE, [&node]).await?.is_empty();
        }
        Ok(starts)
    }

    /// Writes results. `None`: another node owns one of the runs.
    ///
    /// If the database rejects a value, the results are written one by one, and that run fails:
    /// otherwise the node would end because of it, and then the next node.
    pub(crate) async fn finish(
        &self,
        node: i64,
        prefetch: Duration,
        results: &[Finished],
    ) -> Result<Option<Finishes>, Error> {
        match self.finish_all(node, prefetch, results).await {
            Err(error) if is_rejected(&error) => {}
            finishes => return finishes,
        }
        let mut all = Finishes::default();
        for result in results {
            let finish = self.finish_all(node, prefetch, slice::from_ref(result));
            let finishes = match finish.await {
                Err(error) if is_rejected(&error) => {
                    let code = error.code().map_or("", SqlState::code);
                    let why = format!("the database rejects the result, with SQLSTATE {code}");
                    let failed = Finished {
                        run: result.run,
                        state: "failed",
                        result: Err(why),
                        retry: None,
                    };
                    self.finish_all(node, prefetch, &[failed]).await?
                }
                finishes => finishes?,
            };
            let Some(finishes) = finishes else {
                return Ok(None);
            };
            all.claimed.extend(finishes.claimed);
            all.cancelled.extend(finishes.cancelled);
            all.completed.extend(finishes.completed);
            all.locked.extend(finishes.locked);
        }
        Ok(Some(all))
    }

    async fn finish_all(
        &self,
        node: i64,
        prefetch: Duration,
        results: &[Finished],
    ) -> Result<Option<Finishes>, Error> {
        let runs: Vec<_> = results.iter().map(|finished| finished.run).collect();
        let states: Vec<_> = results.iter().map(|finished| finished.state).collect();
        let outputs: Vec<_> = results
            .iter()
            .map(|finished| finished.result.as_deref().ok().map(Json))
            .collect();
        let error = |finished: &Finished| {
            let error = finished.result.as_ref().err();
            error.filter(|_| finished.state != SNOOZED).cloned()
        };
        let errors: Vec<_> = results.iter().map(error).collect();
        let retry = |finished: &Finished| finished.retry.map(|pause| pause.as_micros() as i64);
        let retries: Vec<_> = results.iter().map(retry).collect();
        let prefetch = prefetch.as_micros() as i64;
        let finish: [Parameter<'_>; 7] = [
            &node, &prefetch, &runs, &states, &outputs, &errors, &retries,
        ];
        let rows = match self.query(FINISH, finish).await {
            Err(error) if is_locked(&error) => {
                return Ok(Some(Finishes {
                    locked: runs,
                    ..Finishes::default()
                }));
            }
            rows => rows?,
        };
        let mut missing = runs;
        let mut finishes = Finishes::default();
        for row in rows {
            let id: i64 = row.try_get(0)?;
            match row.try_get(1)? {
                "written" => {}
                "cancelled" => finishes.cancelled.push(id),
                "completed" => finishes.completed.push(id),
                "locked" => finishes.locked.push(id),
                _ => {
                    finishes.claimed.push(run(&row)?);
                    continue;
                }
            }
            missing.retain(|&run| run != id);
        }
        let is_lost =
            !missing.is_empty() && !self.query(TAKEN_OVER, [&missing, &node]).await?.is_empty();
        Ok((!is_lost).then_some(finishes))
    }

    /// From now on no run keeps a place because this node has its handler.
    pub(crate) async fn stop_serving(&self, node: i64) -> Result<(), Error> {
        self.query(STOP_SERVING, [&node]).await.map(drop)
    }

    /// Gives back the runs that have not started, and are not locked. Returns their ids.
    pub(crate) async fn release(&self, node: i64) -> Result<Vec<i64>, Error> {
        let none: Option<Vec<i64>> = None;
        let rows = self.query(RELEASE, [&[node].as_slice(), &none]).await?;
        rows.first().map_or(Ok(Vec::new()), |row| row.try_get(0))
    }

    /// Returns whether there are other nodes that are alive.
    pub(crate) async fn has_others(&self, node: i64) -> Result<bool, Error> {
        self.query(HAS_OTHERS, [&node]).await?[0].try_get(0)
    }

    /// Ends a node that shuts down. The interruption of what it was executing does not count. Other
    /// nodes take it over now, if the executions `have_ended`, and otherwise after the lease.
    pub(crate) async fn leave(&self, node: i64, have_ended: bool) -> Result<(), Error> {
        self.query(EXCUSE_ALL, [&node]).await?;
        if have_ended {
            let any: Vec<Option<Timestamp>> = vec![None];
            self.query(LEAVE, [&[node].as_slice(), &any]).await?;
        }
        Ok(())
    }

    /// Removes at most `count` old results, and the finished jobs that have lost their last one.
    /// Returns whether there may be more.
    pub(crate) async fn clean(
        &self,
        retention: Duration,
        count: usize,
        limit: Duration,
    ) -> Result<bool, Error> {
        let (age, count) = (retention.as_secs_f64(), count as i64);
        let rows = self.query_limited(limit, CLEAN, [&age, &count]).await?;
        let removed: i64 = rows[0].try_get(0)?;
        Ok(removed >= count)
    }
}

/// Whether the server has ended a statement because it has taken too long.
pub(crate) fn was_ended(error: &Error) -> bool {
    error.code() == Some(&SqlState::QUERY_CANCELED)
}

/// Whether a value in a statement is invalid, or exceeds a limit (the classes 22 and 54).
fn is_rejected(error: &Error) -> bool {
    let class = error.code().and_then(|state| state.code().get(..2));
    matches!(class, Some("22" | "54"))
}

/// Whether a statement has waited for a lock as long as it may. Then it has changed nothing.
fn is_locked(error: &Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}
