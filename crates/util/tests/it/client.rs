//! The client on a manual clock, which advances to each time that the timer waits for. The tests
//! never sleep.
#![cfg(feature = "client")]

use crate::common;

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::future::pending;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{ends, ms};
use hashed_wheel::{Clock, Driver, HashedWheelTimer, ManualClock, NewTimeoutError, TimeoutError};
use hashed_wheel_util::client::{Budget, CallError, Client, ClientStats, Policy, Reason};
use hashed_wheel_util::{Backoff, Jitter};

fn policy(retries: u32) -> Policy {
    with_deadline(ms(1_000), retries)
}

fn with_deadline(deadline: Duration, retries: u32) -> Policy {
    Policy::new(deadline)
        .attempt_timeout(ms(300))
        .retries(retries)
        .hedge_after(ms(50))
}

type Answer = Result<&'static str, &'static str>;

struct Test {
    clock: ManualClock,
    timer: HashedWheelTimer,
    driver: Driver,
    client: Client,
    /// The requests that were sent, and when.
    sent: RefCell<Vec<(Reason, Duration)>>,
}

impl Test {
    fn new(policy: Policy) -> Self {
        Self::with_budget(policy, Budget::default())
    }

    fn with_budget(policy: Policy, budget: Budget) -> Self {
        let clock = ManualClock::new();
        let builder = HashedWheelTimer::builder().tick(ms(1)).clock(clock.clone());
        let (timer, driver) = builder.build_driven().unwrap();
        let client = Client::with_budget(&timer, policy, budget);
        Self {
            client,
            clock,
            timer,
            driver,
            sent: RefCell::default(),
        }
    }

    /// Makes a call to a simulated server and returns the result and its duration. `serve` answers
    /// a request by its number.
    fn call<F: Future<Output = Answer>>(
        &mut self,
        serve: impl Fn(usize, HashedWheelTimer) -> F,
    ) -> (Result<&'static str, CallError<&'static str>>, Duration) {
        let began = self.clock.now();
        let mut call = pin!(self.client.call(|reason| {
            let mut sent = self.sent.borrow_mut();
            sent.push((reason, self.clock.now() - began));
            serve(sent.len(), self.timer.clone())
        }));
        let end = drive(&self.clock, &mut self.driver, call.as_mut());
        // The call has cancelled everything that it waited for, including the unanswered request.
        assert_eq!(self.timer.pending_timeouts(), 0);
        (end, self.clock.now() - began)
    }
}

/// Runs the future to its end, and advances the clock to each turn that the timer needs.
fn drive<F: Future>(clock: &ManualClock, driver: &mut Driver, mut call: Pin<&mut F>) -> F::Output {
    loop {
        if let Poll::Ready(end) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return end;
        }
        clock.advance(driver.next_turn().expect("a timeout is pending"));
        driver.turn();
    }
}

async fn after(timer: HashedWheelTimer, delay: u64, answer: Answer) -> Answer {
    timer.sleep(ms(delay)).await.unwrap();
    answer
}

#[test]
fn quick_answer_sends_one_request() {
    let mut test = Test::new(policy(2));
    let (end, took) = test.call(|_, timer| after(timer, 40, Ok("yes")));
    assert!(matches!(end, Ok("yes")));
    assert_eq!(took, ms(40));
    assert_eq!(test.sent.take(), [(Reason::First, ms(0))]);
    // The timeout of the server itself, the deadlines of the call and the attempt, and the hedge.
    let stats = test.timer.stats();
    assert_eq!((stats.scheduled, stats.expired, stats.cancelled), (4, 1, 3));
}

#[test]
fn slow_answer_sends_a_hedge_and_the_first_answer_wins() {
    for (first, second, answer, at) in [(200, 10, "second", 60), (70, 100, "first", 70)] {
        let mut test = Test::new(policy(2));
        let (end, took) = test.call(|number, timer| match number {
            1 => after(timer, first, Ok("first")),
            _ => after(timer, second, Ok("second")),
        });
        assert!(matches!(end, Ok(text) if text == answer));
        assert_eq!(took, ms(at));
        assert_eq!(
            test.sent.take(),
            [(Reason::First, ms(0)), (Reason::Hedge, ms(50))]
        );
    }
}

#[test]
fn if_one_request_fails_the_other_can_still_succeed() {
    for (failing, at) in [(1, 250), (2, 200)] {
        let mut test = Test::new(policy(2));
        let (end, took) = test.call(|number, timer| match number {
            _ if number == failing => after(timer, 100, Err("no")),
            _ => after(timer, 200, Ok("yes")),
        });
        assert!(matches!(end, Ok("yes")));
        assert_eq!(took, ms(at));
    }
}

/// The pauses are random: of 30 the least is in the lower half, and the greatest in the upper one.
#[test]
fn pauses_double_and_the_last_failure_is_returned() {
    let mut test = Test::new(policy(3));
    let (mut shortest, mut longest) = ([Duration::MAX; 3], [Duration::ZERO; 3]);
    for _ in 0..30 {
        let (end, took) = test.call(|_, timer| after(timer, 10, Err("no")));
        assert!(matches!(end, Err(CallError::Failed("no"))));
        let sent = test.sent.take();
        assert_eq!(sent.len(), 4);
        for (n, pair) in sent.windows(2).enumerate() {
            let pause = pair[1].1 - pair[0].1 - ms(10);
            assert!(
                pair[1].0 == Reason::Retry && pause <= ms(100 << n),
                "{sent:?}"
            );
            (shortest[n], longest[n]) = (shortest[n].min(pause), longest[n].max(pause));
        }
        assert_eq!(took, sent[3].1 + ms(10));
    }
    for n in 0..3 {
        assert!(
            shortest[n] < ms(50 << n) && longest[n] > ms(50 << n),
            "{shortest:?} {longest:?}"
        );
    }
}

#[test]
fn call_to_a_silent_server_ends_after_the_last_attempt_or_at_the_deadline() {
    let mut test = Test::new(policy(1));
    let (end, took) = test.call(|_, _| pending());
    assert!(matches!(end, Err(CallError::AttemptTimeout)));
    assert!((ms(600)..=ms(701)).contains(&took), "{took:?}");
    let reasons: Vec<_> = test
        .sent
        .take()
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    assert_eq!(
        reasons,
        [Reason::First, Reason::Hedge, Reason::Retry, Reason::Hedge]
    );

    // Without pauses: a pause that lasts until the deadline would end the call before it.
    let mut test = Test::new(policy(9).backoff(Backoff::new(Duration::ZERO)));
    let (end, took) = test.call(|_, _| pending());
    assert!(matches!(end, Err(CallError::Deadline)));
    assert_eq!(took, ms(1_000));
}

#[test]
fn call_once_has_a_deadline() {
    let Test {
        clock,
        mut driver,
        client,
        ..
    } = Test::new(policy(2));
    let began = clock.now();
    let call = pin!(client.call_once(pending::<Answer>()));
    assert!(matches!(
        drive(&clock, &mut driver, call),
        Err(CallError::Deadline)
    ));
    assert_eq!(clock.now() - began, ms(1_000));
}

#[test]
fn budget_limits_requests_to_a_failing_server() {
    let mut test = Test::new(policy(2));
    let calls = if cfg!(miri) { 60 } else { 1_000 };
    for _ in 0..calls {
        test.call(|_, _| pending()).0.unwrap_err();
    }
    let more = test.sent.take().len() - calls;
    // 100 from the reserve and 1 per ten calls.
    assert_eq!(more, 100 + calls / 10);
}

/// The answer comes after the deadline, and before the tick that would end the call.
#[test]
fn failure_of_the_last_attempt_is_returned_after_the_deadline_too() {
    let mut test = Test::new(Policy::new(ms(20)).retries(0));
    let clock = test.clock.clone();
    let (end, _) = test.call(|_, _| {
        clock.advance(ms(30));
        async { Err("no") }
    });
    assert_eq!(end, Err(CallError::Failed("no")));
}

/// Attempts that fail without waiting, in a single poll.
#[test]
fn deadline_ends_retries_that_never_wait() {
    let end = ends(|| {
        let timer = HashedWheelTimer::new(ms(1), 64);
        let policy = Policy::new(ms(20))
            .retries(u32::MAX)
            .backoff(Backoff::new(Duration::ZERO));
        let client = Client::with_budget(&timer, policy, None);
        let call = pin!(client.call(|_| async { Err::<(), _>(()) }));
        call.poll(&mut Context::from_waker(Waker::noop()))
    });
    assert!(matches!(end, Poll::Ready(Err(CallError::Deadline))));
}

#[test]
fn retry_that_does_not_fit_before_the_deadline_is_not_paid_for() {
    let pauses = Backoff::new(Duration::MAX).max_pause(Duration::MAX);
    let mut test = Test::new(with_deadline(ms(1), 5).backoff(pauses));
    // The pause is random: one of a millisecond or less is rare.
    let (end, took) = test.call(|_, _| async { Err("broken") });
    assert!(matches!(end, Err(CallError::Failed("broken"))), "{end:?}");
    assert_eq!(took, ms(0));
}

#[test]
fn budget_without_a_reserve_earns_retries() {
    let mut test = Test::with_budget(
        policy(1).backoff(Backoff::new(Duration::ZERO)),
        Budget::new(0, 5),
    );
    for _ in 0..100 {
        test.call(|_, _| async { Err("broken") }).0.unwrap_err();
    }
    assert_eq!(test.sent.take().len(), 120);
}

#[test]
fn stopped_timer_is_an_error() {
    let mut test = Test::new(policy(2));
    test.timer.stop();
    assert!(matches!(
        test.call(|_, _| pending()).0,
        Err(CallError::Timer(_))
    ));

    // The same in the middle of the last attempt.
    let mut test = Test::new(policy(0));
    let (end, _) = test.call(|_, timer| async move {
        timer.stop();
        pending().await
    });
    assert!(matches!(end, Err(CallError::Timer(_))), "{end:?}");
}

/// The worker is late: the pause, or the time before a hedge, and the deadline are over in one
/// turn.
#[test]
fn nothing_is_sent_after_the_deadline() {
    for answers in [true, false] {
        let Test {
            clock,
            timer,
            mut driver,
            client,
            ..
        } = Test::new(policy(9));
        let sent = Cell::new(0);
        let mut call = pin!(client.call(|_| {
            sent.set(sent.get() + 1);
            let timer = timer.clone();
            async move {
                if !answers {
                    timer.sleep(Duration::MAX).await.unwrap();
                }
                Answer::Err("busy")
            }
        }));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(context).is_pending());
        clock.advance(ms(1_000));
        driver.turn();
        let Poll::Ready(end) = call.as_mut().poll(context) else {
            panic!("the deadline has passed")
        };
        assert_eq!(end, Err(CallError::Deadline));
        assert_eq!(sent.get(), 1);
    }
}

#[test]
fn pauses_of_a_call_are_those_of_the_policy() {
    let pauses = Backoff::new(ms(100)).max_pause(ms(150));
    let mut test = Test::new(with_deadline(Duration::MAX, 50).backoff(pauses));
    let (end, took) = test.call(|_, timer| after(timer, 10, Err("no")));
    assert!(matches!(end, Err(CallError::Failed("no"))));
    let sent = test.sent.take();
    assert_eq!(sent.len(), 51);
    assert!(
        sent.windows(2).all(|pair| pair[1].1 - pair[0].1 <= ms(160)),
        "{sent:?}"
    );
    assert!(took > ms(1_000), "{took:?}");
}

#[test]
fn policy_without_retries_and_hedges_sends_one_request() {
    let mut test = Test::new(Policy::new(ms(1_000)));
    let (end, took) = test.call(|_, timer| after(timer, 900, Err("no")));
    assert!(matches!(end, Err(CallError::Failed("no"))));
    assert_eq!(
        (took, test.sent.take()),
        (ms(900), vec![(Reason::First, ms(0))])
    );
}

/// Clones of a budget are one budget, also on several threads.
#[test]
fn budget_is_shared_and_never_overdrawn() {
    let budget = Budget::new(7, 100);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let budget = budget.clone();
            std::thread::spawn(move || {
                let (end, sent) = failing_call(10, budget);
                assert!(matches!(end, Poll::Ready(Err(CallError::Failed("no")))));
                sent - 1
            })
        })
        .collect();
    let retries: usize = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    assert_eq!(retries, 7);
}

#[test]
fn without_a_budget_only_the_policy_limits_retries() {
    let retries = if cfg!(miri) { 20 } else { 1_000 };
    let (end, sent) = failing_call(retries, None);
    assert!(end.is_ready());
    assert_eq!(sent, 1 + retries as usize);
}

/// A computed zero must not switch the limit off.
#[test]
#[should_panic(expected = "calls_per_retry is zero")]
fn budget_with_zero_calls_per_retry_is_refused() {
    let _ = Budget::new(1, 0);
}

/// Polls a call once whose requests fail at once. Returns the result, and how many were sent.
fn failing_call(
    retries: u32,
    budget: impl Into<Option<Budget>>,
) -> (Poll<Result<(), CallError<&'static str>>>, usize) {
    let (timer, _driver) = HashedWheelTimer::builder()
        .clock(ManualClock::new())
        .build_driven()
        .unwrap();
    let policy = Policy::new(ms(1_000))
        .retries(retries)
        .backoff(Backoff::new(Duration::ZERO));
    let client = Client::with_budget(&timer, policy, budget);
    let sent = std::cell::Cell::new(0);
    let call = pin!(client.call(|_| {
        sent.set(sent.get() + 1);
        std::future::ready(Err("no"))
    }));
    let end = call.poll(&mut Context::from_waker(Waker::noop()));
    (end, sent.get())
}

#[test]
fn pause_that_lasts_until_the_deadline_is_not_begun() {
    // A pause is zero or one nanosecond. At the first one that is not zero the call ends.
    let nano = Duration::from_nanos(1);
    let mut test = Test::new(
        Policy::new(nano)
            .backoff(Backoff::new(nano).max_pause(nano))
            .retries(u32::MAX),
    );
    let (end, took) = test.call(|_, _| async { Err("broken") });
    assert!(matches!(end, Err(CallError::Failed("broken"))), "{end:?}");
    assert_eq!(took, ms(0));
}

#[test]
fn end_of_the_pauses_is_the_end_of_the_retries() {
    let pauses = Backoff::new(ms(100))
        .jitter(Jitter::None)
        .max_total(ms(300));
    let mut test = Test::new(Policy::new(Duration::MAX).retries(9).backoff(pauses));
    let (end, took) = test.call(|_, _| async { Err("broken") });
    assert_eq!((end, took), (Err(CallError::Failed("broken")), ms(300)));
    assert_eq!(test.sent.take().len(), 3);
}

#[test]
fn clones_of_a_client_count_together() {
    let policy = policy(3).backoff(Backoff::new(Duration::ZERO));
    let mut test = Test::with_budget(policy, Budget::new(4, 100));
    let (client, mut expected) = (test.client.clone(), ClientStats::default());

    let (end, _) = test.call(|number, timer| after(timer, 200 / number as u64, Ok("yes")));
    assert_eq!(end, Ok("yes"));
    (expected.calls, expected.attempts, expected.answers) = (1, 1, 1);
    (expected.hedges, expected.hedge_answers) = (1, 1);
    assert_eq!(client.stats(), expected);

    test.sent.take();
    let (end, _) = test.call(|number, timer| match number {
        1 => after(timer, 10, Err("no")),
        2 | 3 => after(timer, 10_000, Ok("too late")),
        _ => after(timer, 10, Ok("yes")),
    });
    assert_eq!(end, Ok("yes"));
    (expected.calls, expected.attempts, expected.answers) = (2, 4, 2);
    (expected.failures, expected.attempt_timeouts) = (1, 1);
    (expected.retries, expected.retry_answers, expected.hedges) = (2, 1, 2);
    assert_eq!(client.stats(), expected);

    // The budget is empty.
    let (end, _) = test.call(|_, _| pending());
    assert_eq!(end, Err(CallError::AttemptTimeout));
    (expected.calls, expected.attempts, expected.attempt_timeouts) = (3, 5, 2);
    expected.over_budget = 2;
    assert_eq!(client.stats(), expected);

    let call = pin!(client.call_until(test.timer.now(), |_| pending::<Answer>()));
    let end = drive(&test.clock, &mut test.driver, call);
    assert_eq!(end, Err(CallError::Deadline));
    let call = pin!(client.call_once(async { Answer::Err("no") }));
    let end = drive(&test.clock, &mut test.driver, call);
    assert_eq!(end, Err(CallError::Failed("no")));
    (expected.calls, expected.attempts, expected.failures) = (5, 6, 2);
    expected.past_deadline = 1;
    assert_eq!(client.stats(), expected);
}

#[test]
fn only_the_errors_of_the_predicate_are_retried() {
    let mut test = Test::new(policy(5));
    let policy = Policy::new(ms(1_000))
        .attempt_timeout(ms(100))
        .retries(5)
        .backoff(Backoff::new(Duration::ZERO));
    let client = Client::new(&test.timer, policy.retry_if(|error: &u16| *error >= 500));
    let sent = std::cell::Cell::new(0);
    let call = pin!(client.call(|_| {
        sent.set(sent.get() + 1);
        let number = sent.get();
        async move {
            match number {
                1 => Err(503_u16),
                // An attempt that has timed out is retried.
                2 => pending().await,
                3 => Err(404),
                _ => Ok(()),
            }
        }
    }));
    let end = drive(&test.clock, &mut test.driver, call);
    assert!(matches!(end, Err(CallError::Failed(404))), "{end:?}");
    assert_eq!(sent.get(), 3);
    assert_eq!(
        format!("{:?}", client)
            .matches("Policy { deadline: 1s")
            .count(),
        1
    );
}

#[test]
fn call_until_ends_at_the_earlier_deadline() {
    let mut test = Test::new(policy(9).backoff(Backoff::new(Duration::ZERO)));
    let mut call = |ahead: Duration| {
        let began = test.clock.now();
        let sent = std::cell::Cell::new(0);
        let deadline = test.timer.now() + ahead;
        let call = pin!(test.client.call_until(deadline, |_| {
            sent.set(sent.get() + 1);
            pending::<Answer>()
        }));
        let end = drive(&test.clock, &mut test.driver, call);
        assert!(matches!(end, Err(CallError::Deadline)), "{end:?}");
        (test.clock.now() - began, sent.get())
    };
    // Each attempt takes 300 ms, and has a hedge.
    assert_eq!(call(ms(400)), (ms(400), 4));
    assert_eq!(
        call(ms(5_000)),
        (ms(1_000), 8),
        "the deadline of the policy is earlier"
    );
    assert_eq!(call(Duration::ZERO), (ms(0), 0), "nothing is sent");

    // The pause of a retry does not last beyond the deadline of the call.
    let test = Test::new(
        Policy::new(Duration::MAX)
            .retries(1)
            .backoff(Backoff::new(ms(50)).jitter(Jitter::None)),
    );
    let until = |ahead| {
        let call = pin!(test.client.call_until(test.timer.now() + ahead, |_| async {
            Err::<(), _>("broken")
        }));
        call.poll(&mut Context::from_waker(Waker::noop()))
    };
    assert!(matches!(
        until(ms(50)),
        Poll::Ready(Err(CallError::Failed("broken")))
    ));
    assert!(until(ms(51)).is_pending());
}

/// Makes calls whose answers take so many milliseconds. Hedges are not answered.
fn observe(test: &mut Test, times: impl IntoIterator<Item = u64>) {
    for time in times {
        let (end, took) = test.call(|number, timer| {
            let answer = after(timer, time, Ok("yes"));
            async move {
                if number == 1 {
                    answer.await
                } else {
                    pending().await
                }
            }
        });
        assert!(matches!(end, Ok("yes")));
        assert_eq!(took, ms(time));
        test.sent.take();
    }
}

/// When a silent server gets the hedge.
fn hedge_time(test: &mut Test) -> Option<Duration> {
    test.call(|_, _| pending()).0.unwrap_err();
    let sent = test.sent.take();
    sent.into_iter()
        .find(|(reason, _)| *reason == Reason::Hedge)
        .map(|(_, at)| at)
}

#[test]
fn hedge_is_sent_at_the_observed_percentile() {
    let policy = Policy::new(ms(1_000)).hedge_at_percentile(95);
    let mut test = Test::new(policy.clone());
    observe(&mut test, 1..=127);
    assert_eq!(hedge_time(&mut test), None, "too few answers");
    observe(&mut test, [1]);
    assert_eq!(hedge_time(&mut test), Some(ms(121)));
    for _ in 0..512 {
        test.call(|_, _| async { Err("no") }).0.unwrap_err();
        test.sent.take();
    }
    assert_eq!(
        hedge_time(&mut test),
        Some(ms(121)),
        "failures do not count"
    );
    observe(&mut test, [10; 512]);
    assert_eq!(
        hedge_time(&mut test),
        Some(ms(10)),
        "the last answers count"
    );
    let clone = test.client.clone();
    test.client = Client::new(&test.timer, policy);
    assert_eq!(
        hedge_time(&mut test),
        None,
        "another client has observed nothing"
    );
    test.client = clone;
    assert_eq!(hedge_time(&mut test), Some(ms(10)));
}

#[test]
fn hedge_after_applies_until_the_percentile_is_known() {
    let mut test = Test::new(
        Policy::new(ms(1_000))
            .hedge_after(ms(50))
            .hedge_at_percentile(99),
    );
    assert_eq!(hedge_time(&mut test), Some(ms(50)));
    observe(&mut test, [200; 128]);
    assert_eq!(hedge_time(&mut test), Some(ms(200)));
}

/// The time counts from the first request, so that a slow server is not taken for a quick one.
#[test]
fn answer_to_a_hedge_counts_from_the_first_request() {
    let policy = Policy::new(ms(1_000))
        .hedge_after(ms(50))
        .hedge_at_percentile(50);
    let mut test = Test::with_budget(policy, Budget::new(1_000, 1));
    for _ in 0..128 {
        let (end, took) = test.call(|number, timer| async move {
            if number == 1 {
                pending().await
            } else {
                after(timer, 10, Ok("yes")).await
            }
        });
        assert_eq!((end.unwrap(), took), ("yes", ms(60)));
        test.sent.take();
    }
    assert_eq!(hedge_time(&mut test), Some(ms(60)));
}

#[test]
fn percentile_that_is_none_is_refused() {
    for percent in [0, 100] {
        let end = std::panic::catch_unwind(|| Policy::new(ms(1)).hedge_at_percentile(percent));
        assert!(end.is_err(), "{percent}");
    }
    assert_eq!(
        Policy::new(ms(1)).hedge_at_percentile(None),
        Policy::new(ms(1))
    );
}

#[test]
fn error_says_why_and_has_its_source() {
    let over = TimeoutError::Elapsed.to_string();
    let over = &*over;
    let errors = [
        (
            CallError::Deadline,
            "the deadline of the call has passed",
            Some(over),
        ),
        (
            CallError::AttemptTimeout,
            "the last attempt has timed out",
            Some(over),
        ),
        (
            CallError::Failed(std::io::Error::other("reset")),
            "the last attempt has failed",
            Some("reset"),
        ),
        (
            CallError::Timer(NewTimeoutError::Stopped),
            "the timer cannot watch the deadline",
            Some("the timer is stopped"),
        ),
    ];
    for (error, text, source) in errors {
        assert_eq!(error.to_string(), text);
        assert_eq!(error.source().map(ToString::to_string).as_deref(), source);
    }
}
