//! `cancel_all` and `cancel_and_wait` beside threads that schedule, cancel and reset, with each
//! policy for the tasks that an executor refuses.

use hashed_wheel_over_shuttle::util::executor::TaskExecutorExt;

use super::*;

#[test]
fn each_cancel_all_counts_what_it_cancels() {
    explore(|random| {
        let policy = *random
            .choice(&[Policy::Drop, Policy::RunHere, Policy::Retry])
            .unwrap();
        let (world, timer, event_loop) = World::with_policy(random, policy);
        let event_loop = event_loop.map(EventLoop::start);
        let shared = (world.clone(), timer.clone(), Arc::new(AtomicU64::new(0)));
        let cancelled = Arc::clone(&shared.2);
        let producers = spawn(3, &shared, random, |(world, timer, cancelled), random| {
            for _ in 0..random.u8(1..6) {
                let delay = TICK * random.u32(0..4);
                match random.u8(0..10) {
                    0..4 => drop(world.schedule(timer, delay)),
                    4 => world.schedule_and_drop_handle(timer, delay, false),
                    5 => drop(world.schedule(timer, FAR)),
                    6 => drop(world.pick(random).map(|one| one.cancel())),
                    7 => drop(world.pick(random).map(|one| one.cancel_and_wait())),
                    8 => drop(world.pick(random).map(|one| one.reset(delay))),
                    _ => _ = cancelled.fetch_add(world.cancel_all(timer), Relaxed),
                }
            }
        });
        let clock = world.advance_clock(random);
        pause(random, 60);
        cancelled.fetch_add(world.cancel_all(&timer), Relaxed);
        let returned = if random.bool() {
            timer.stop()
        } else {
            world.stop_later(&timer)
        };
        join(producers.into_iter().chain([clock]).chain(event_loop));
        world.check_cancelled(&timer, policy, get(&cancelled), &returned)
    });
}

impl World {
    /// Each timeout that was scheduled before the call, and that no other thread cancels, has ended
    /// when it returns.
    fn cancel_all(&self, timer: &HashedWheelTimer) -> u64 {
        let before = self.known.lock().unwrap().clone();
        let count = timer.cancel_all() as u64;
        for one in &before {
            // A thread that is about to cancel a timeout takes its message back first. Then the
            // timeout is neither in the wheel nor in a lane, and ends a moment later.
            let timeout = &one.timeout;
            let is_being_cancelled = one.is_being_cancelled.load(Relaxed);
            assert!(
                timeout.is_cancelled() || timeout.is_expired() || is_being_cancelled,
                "`cancel_all` has left {timeout:?} of {timer:?}"
            );
        }
        count
    }

    /// Stops the timer after ten ticks. Other threads may still be scheduling.
    fn stop_later(&self, timer: &HashedWheelTimer) -> Vec<Timeout> {
        (0..40).for_each(|_| {
            self.clock.advance(TICK / 4);
            thread::yield_now();
        });
        timer.stop()
    }

    /// Checks that each timeout has ended once, and that the calls have counted all that were
    /// cancelled.
    fn check_cancelled(
        self,
        timer: &HashedWheelTimer,
        policy: Policy,
        by_all: u64,
        returned: &[Timeout],
    ) -> Counts {
        self.settle(Some(returned));
        let of = |count| self.ledger.get(Kind::Plain, count);
        let [runs, hooks, by_cancel, lost, rejected] = [
            Count::Expired,
            Count::HookAtEnd,
            Count::Cancelled,
            Count::Dropped,
            Count::Rejected,
        ]
        .map(of);
        let returned = returned.len() as u64;
        let stats = timer.stats();
        self.assert_no_fault();
        assert!(self.ledger.has_ended(Kind::Plain));
        assert_eq!((stats.dropped_tasks, stats.panics), (lost, 0));
        assert_eq!(
            (stats.cancelled, stats.pending),
            (by_cancel + by_all + returned, 0)
        );
        // The timeout of a task that waits to be offered again is cancelled, or it has expired, and
        // the task has run. Or it was rejected.
        let of_retry = by_cancel + by_all + returned - hooks;
        let max_of_retry = if policy == Policy::Retry { lost } else { 0 };
        assert!(
            of_retry <= max_of_retry,
            "{of_retry} timeouts were counted twice"
        );
        let rejected_retries = stats.rejected - rejected;
        let has_retried = policy != Policy::Retry || lost == of_retry + rejected_retries;
        assert!(
            has_retried,
            "{lost} tasks are lost, {of_retry} cancelled, {rejected_retries} rejected"
        );
        let max_lost = if policy == Policy::RunHere {
            0
        } else {
            get(&self.rejected)
        };
        assert!(
            lost <= max_lost && (policy != Policy::Drop || lost == max_lost),
            "{lost} tasks are lost"
        );
        Counts::of([
            ("run", runs),
            ("cancelled", by_cancel),
            ("cancelled by cancel_all", by_all),
            ("returned by stop", returned),
            ("waits to be offered again when it is cancelled", of_retry),
            ("tasks lost", lost),
        ])
    }
}

impl Scheduled {
    /// If the timeout has expired, its task is over when this returns.
    fn cancel_and_wait(&self) {
        self.is_being_cancelled.store(true, Relaxed);
        if self.timeout.cancel_and_wait() {
            self.ticket.count(Count::Cancelled);
        } else if self.timeout.is_expired() {
            assert_eq!(
                self.ticket.get(Count::TaskDrop),
                1,
                "`cancel_and_wait` returns before the task is over"
            );
        }
    }
}

/// The end of a task that the executor refuses.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Policy {
    Drop,
    RunHere,
    Retry,
}

impl Policy {
    pub(super) fn set_executor(self, builder: Builder, executor: impl TaskExecutor) -> Builder {
        match self {
            Self::Drop => builder.task_executor(executor),
            Self::RunHere => builder.task_executor(executor.or_run_here()),
            Self::Retry => builder.task_executor(executor.or_retry(TICK)),
        }
    }
}
