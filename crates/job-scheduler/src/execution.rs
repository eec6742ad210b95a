//! The executions of a node: its handlers, and their results until they are written.
//!
//! They belong to the node, and not to a session. After an error of the database, they continue
//! while the lease of the session lasts. A session that opens meanwhile gets their runs, and writes
//! their results. If there is none, they end with the lease, because other nodes take over their
//! runs then.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use crate::cancel::{self, Canceller};
use crate::caught::lock;
use crate::handler::Kind;
use crate::json::{LARGE, MAX_BYTES};
use crate::observe::{self, End};
use crate::perform::{Executing, Execution, Failure, Runner, bytes};
use crate::settings::Shared;
use crate::store::{Finished, Finishes, Run, SNOOZED, Started, Verdict};

/// The maximum number of runs in one statement that starts or finishes runs.
const MAX_BATCH: usize = 256;

/// The maximum size of the results that are not written, in bytes. Many of them wait while a
/// transaction of an application has locked their runs. Further handlers keep their runners.
const MAX_UNWRITTEN: usize = 64 << 20;

/// How often a large output is written alone. Then it is a failure: it does not get through within
/// a lease.
const MAX_WRITES: u32 = 3;

/// The handlers that are executing, and the runs whose results are not written.
pub(crate) struct Executions {
    shared: Arc<Shared>,
    /// One permit for each handler that may execute.
    pub(crate) runners: Arc<Semaphore>,
    /// One permit for each byte of a result that is not written.
    places: Arc<Semaphore>,
    results: mpsc::UnboundedSender<Execution>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    handlers: JoinSet<()>,
    runs: HashMap<i64, Active>,
    /// The number of the last execution.
    last: u64,
    /// The suspect that the node watches, or has watched last.
    watched: Option<i64>,
    /// The runs that have ended because the lease could not be renewed.
    excused: Vec<i64>,
    /// The runs that a statement is starting, and when it was sent.
    starting: Option<(Instant, Vec<i64>)>,
    /// The only run that the last session was starting when it failed, if that took long: perhaps
    /// the payload of this run does not get through within a lease.
    culprit: Option<i64>,
    /// The number of runs that are started one by one, because a statement has failed that should
    /// have started as many.
    suspects: usize,
}

/// The last execution of a run.
struct Active {
    number: u64,
    handler: AbortHandle,
    canceller: Canceller,
}

/// The results that are not written.
pub(crate) struct Results {
    receiver: mpsc::UnboundedReceiver<Execution>,
    /// Those that are to be written now.
    ready: Vec<Execution>,
    /// A transaction of an application has locked their runs, or their jobs.
    locked: Vec<Execution>,
    /// The number of those in `ready` that a statement is writing.
    writing: usize,
    /// When that statement was sent.
    since: Instant,
    /// The number of those in `ready` that are written one by one, because a statement has failed
    /// that should have written all of them.
    suspects: usize,
}

impl Executions {
    pub(crate) fn new(shared: Arc<Shared>) -> (Self, Results) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let executions = Self {
            runners: Arc::new(Semaphore::new(shared.settings.runners)),
            places: Arc::new(Semaphore::new(MAX_UNWRITTEN)),
            results: sender,
            state: Mutex::default(),
            shared,
        };
        let results = Results {
            receiver,
            ready: Vec::new(),
            locked: Vec::new(),
            writing: 0,
            since: Instant::now(),
            suspects: 0,
        };
        (executions, results)
    }

    /// Executes a run that has started. Returns false if it replaces an earlier execution of the
    /// run, which the node had lost.
    pub(crate) fn spawn(&self, run: Run, started: Started, runner: Runner) -> bool {
        let id = run.id;
        let (canceller, cancelled) = cancel::pair();
        let mut state = lock(&self.state);
        while state.handlers.try_join_next().is_some() {}
        state.last += 1;
        let number = state.last;
        let execution = Executing {
            shared: self.shared.clone(),
            run,
            number,
            cancelled,
            runner,
            places: self.places.clone(),
            results: self.results.clone(),
        };
        let handler = state.handlers.spawn(execution.execute(started));
        let active = Active {
            number,
            handler,
            canceller,
        };
        let earlier = state.runs.insert(id, active);
        if let Some(earlier) = &earlier {
            earlier.handler.abort();
        }
        earlier.is_none()
    }

    /// Waits until the execution of this run has ended.
    pub(crate) async fn ended(&self, run: i64) {
        let canceller = |active: &Active| active.canceller.clone();
        let canceller = lock(&self.state).runs.get(&run).map(canceller);
        if let Some(canceller) = canceller {
            canceller.unused().await;
        }
    }

    /// Returns the runs that are executing, or whose results are not written.
    pub(crate) fn runs(&self) -> Vec<i64> {
        lock(&self.state).runs.keys().copied().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.state).runs.is_empty()
    }

    /// Ends all executions. Returns false if a handler blocks its thread for longer than a lease.
    pub(crate) async fn end(&self) -> bool {
        let mut handlers = {
            let mut state = lock(&self.state);
            state.runs.clear();
            mem::take(&mut state.handlers)
        };
        let (timer, limit) = (&self.shared.timer, self.shared.settings.lease);
        timer.timeout(limit, handlers.shutdown()).await.is_ok()
    }

    /// Ends all executions, because the lease could not be renewed. That is not their fault. If the
    /// node watches one, the takeover excuses the others.
    pub(crate) async fn end_excused(&self) -> bool {
        let (mut runs, watched) = (self.runs(), self.watched());
        runs.retain(|&run| watched.is_none_or(|watched| watched == run));
        lock(&self.state).excused.extend(runs);
        self.end().await
    }

    /// From now on the node watches this suspect, or none.
    pub(crate) fn watch(&self, suspect: Option<i64>) {
        lock(&self.state).watched = suspect;
    }

    pub(crate) fn watched(&self) -> Option<i64> {
        lock(&self.state).watched
    }

    pub(crate) fn excused(&self) -> Vec<i64> {
        lock(&self.state).excused.clone()
    }

    /// Returns the maximum number of runs that the next statement starts.
    pub(crate) fn start_limit(&self) -> usize {
        if lock(&self.state).suspects > 0 {
            1
        } else {
            MAX_BATCH
        }
    }

    /// A statement starts these runs. Then call [`started`](Self::started).
    pub(crate) fn starting(&self, runs: &[i64]) {
        lock(&self.state).starting = Some((Instant::now(), runs.to_vec()));
    }

    pub(crate) fn started(&self) {
        let mut state = lock(&self.state);
        let count = state.starting.take().map_or(0, |(_, runs)| runs.len());
        state.suspects = state.suspects.saturating_sub(count);
    }

    /// A session has ended by an error.
    pub(crate) fn failed(&self) {
        let mut state = lock(&self.state);
        let Some((since, runs)) = state.starting.take() else {
            return;
        };
        state.suspects = state.suspects.max(runs.len());
        state.culprit = match runs[..] {
            [run] if is_long(since, &self.shared) => Some(run),
            _ => None,
        };
    }

    pub(crate) fn culprit(&self) -> Option<i64> {
        lock(&self.state).culprit
    }

    /// A session begins. It has these runs of the last one. The others end.
    pub(crate) fn resume(&self, kept: &[i64]) {
        let mut state = lock(&self.state);
        state.culprit = None;
        state.excused.clear();
        state.runs.retain(|id, active| {
            let is_kept = kept.contains(id);
            if !is_kept {
                active.handler.abort();
            }
            is_kept
        });
    }

    /// Whether this is the last execution of the run on this node, and is not given up.
    fn is_current(&self, execution: &Execution) -> bool {
        lock(&self.state)
            .runs
            .get(&execution.run.id)
            .is_some_and(|active| active.number == execution.number)
    }

    /// These runs were cancelled. Those that are not executing yet are in the next call again.
    pub(crate) fn cancel(&self, runs: &[i64]) {
        let state = lock(&self.state);
        runs.iter()
            .filter_map(|run| state.runs.get(run))
            .for_each(|active| active.canceller.cancel());
    }
}

impl Results {
    /// A session has ended by an error.
    pub(crate) fn failed(&mut self, executions: &Executions) {
        match self.ready.first_mut() {
            Some(execution) if self.writing == 1 => {
                if is_long(self.since, &executions.shared) {
                    execution.writes += 1;
                    execution.give_up_large_output();
                }
            }
            _ => self.suspects = self.suspects.max(self.writing),
        }
        self.writing = 0;
    }

    /// A session begins. Returns the number of results that it has to write.
    pub(crate) fn resume(&mut self, executions: &Executions) -> usize {
        // Those that are written one by one remain the first ones.
        self.ready.append(&mut self.locked);
        self.ready
            .retain(|execution| executions.is_current(execution));
        self.ready.len()
    }

    /// Waits for results, if none is ready. Returns their number.
    pub(crate) async fn receive(&mut self, executions: &Executions) -> usize {
        // The other end is in `executions`.
        self.receiver.recv_many(&mut self.ready, MAX_BATCH).await;
        // The others belong to runs that this node has lost.
        self.ready
            .retain(|execution| executions.is_current(execution));
        self.ready.len()
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn has_locked(&self) -> bool {
        !self.locked.is_empty()
    }

    pub(crate) fn retry_locked(&mut self) {
        self.ready.append(&mut self.locked);
    }

    /// Returns the results that the next statement writes. Then call [`written`](Self::written).
    pub(crate) fn next_batch(&mut self) -> Vec<Finished> {
        let limit = if self.suspects > 0 { 1 } else { MAX_BATCH };
        let sizes = self.ready.iter().take(limit).map(Execution::bytes);
        self.writing = batch_len(sizes).min(self.ready.len());
        self.since = Instant::now();
        self.ready[..self.writing]
            .iter()
            .map(Execution::finished)
            .collect()
    }

    /// The results of a batch were written, but for those that are locked. Returns the number of
    /// those that were written.
    pub(crate) fn written(
        &mut self,
        executions: &Executions,
        results: &[Finished],
        finishes: &Finishes,
    ) -> usize {
        self.suspects = self.suspects.saturating_sub(self.writing);
        let all = self.ready.drain(..mem::take(&mut self.writing));
        let (waiting, written): (Vec<_>, Vec<_>) = all
            .zip(results)
            .partition(|(execution, _)| finishes.locked.contains(&execution.run.id));
        self.locked
            .extend(waiting.into_iter().map(|(execution, _)| execution));
        for (execution, _) in &written {
            lock(&executions.state).runs.remove(&execution.run.id);
        }
        // Last, because a recorder of metrics may panic.
        for (execution, result) in &written {
            execution.report(result, finishes);
        }
        written.len()
    }
}

impl Execution {
    fn bytes(&self) -> usize {
        bytes(&self.result)
    }

    fn give_up_large_output(&mut self) {
        let bytes = self.bytes();
        if self.writes >= MAX_WRITES && bytes > LARGE {
            let text = format!("the output of {bytes} bytes could not be written within a lease");
            self.result = Err(Failure::permanent(text));
        }
    }

    fn finished(&self) -> Finished {
        let verdict = self.started.verdict;
        let (state, result, retry) = match &self.result {
            Ok(output) => ("done", Ok(output.clone()), None),
            Err(error) => {
                let failures = (self.run.attempt - self.run.interrupted).unsigned_abs();
                let (state, retry) = match error.kind {
                    Kind::Snooze(pause) => (SNOOZED, Some(pause)),
                    Kind::Failure if failures <= self.started.retries => {
                        ("failed", Some(backoff(self.started.backoff, failures)))
                    }
                    _ => (verdict.map_or("failed", Verdict::state), None),
                };
                (state, Err(error.text.clone()), retry)
            }
        };
        Finished {
            run: self.run.id,
            state,
            result,
            retry,
        }
    }

    fn report(&self, finished: &Finished, finishes: &Finishes) {
        let is_completed = finishes.completed.contains(&self.run.id);
        let end = match (&finished.result, finished.retry, self.started.verdict) {
            _ if finishes.cancelled.contains(&self.run.id) => End::Cancelled,
            _ if is_completed => End::Done,
            (Ok(_), ..) => End::Done,
            (.., Some(Verdict::Cancelled | Verdict::Paused)) => End::Cancelled,
            (.., Some(Verdict::Abandoned)) => End::Abandoned,
            _ if finished.state == SNOOZED => End::Snoozed,
            (_, Some(_), None) => End::Retried,
            (_, None, None) => End::Failed,
        };
        let error = finished.result.as_ref().err().filter(|_| !is_completed);
        observe::ended(&self.run, end, self.took, error.map(String::as_str));
    }
}

/// Whether a statement has taken so long that a session may have failed because of it. (The lease
/// ends half a lease after the statement or later, if this statement keeps the node from renewing
/// it.) A statement that fails earlier fails for another reason, such as a closed connection.
fn is_long(since: Instant, shared: &Shared) -> bool {
    since.elapsed() >= shared.settings.lease / 4
}

/// Returns the pause after a number of failures, from 1 on.
pub(crate) fn backoff((first, max): (Duration, Duration), failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(max)
}

/// Returns how many results of these sizes a statement writes: at least one.
fn batch_len(sizes: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fits = |size: &usize| {
        bytes += size;
        bytes <= MAX_BYTES
    };
    sizes.take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_writes_results_of_a_limited_size() {
        for (size, len) in [
            (1, 9),
            (MAX_BYTES / 4, 4),
            (MAX_BYTES / 2 + 1, 1),
            (MAX_BYTES + 1, 1),
        ] {
            assert_eq!(batch_len([size; 9].into_iter()), len, "{size}");
        }
    }

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let [first, max] = [1, 10].map(Duration::from_secs);
        let pauses: Vec<_> = (1..=6)
            .map(|failures| backoff((first, max), failures).as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(
            backoff((first, Duration::MAX), 100),
            Duration::from_secs(u32::MAX.into())
        );
    }
}
