//! How code that waits is tested: on a clock that goes where the timer wants it. Nothing here takes any time.

use std::cell::RefCell;
use std::future::pending;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use hashed_wheel::{Clock, Driver, ManualClock};

use super::*;

const POLICY: Policy =
    Policy { deadline: ms(1_000), attempt: ms(300), retries: 2, backoff: ms(100), hedge_after: Some(ms(50)) };

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

type Answer = Result<&'static str, &'static str>;

struct Trial {
    clock: ManualClock,
    timer: HashedWheelTimer,
    driver: Driver,
    client: Client,
    /// What was sent, and when.
    sent: RefCell<Vec<(Reason, Duration)>>,
}

impl Trial {
    fn new(policy: Policy) -> Self {
        let clock = ManualClock::new();
        let builder = HashedWheelTimer::builder().tick(ms(1)).clock(clock.clone());
        let (timer, driver) = builder.build_driven().unwrap();
        Self { client: Client::new(timer.clone(), policy), clock, timer, driver, sent: RefCell::default() }
    }

    /// Calls a server that treats each request as `serve` has it, which gets its number; what came of it, and when.
    fn call<F: Future<Output = Answer>>(
        &mut self,
        serve: impl Fn(usize, HashedWheelTimer) -> F,
    ) -> (Result<&'static str, GaveUp<&'static str>>, Duration) {
        let began = self.clock.now();
        let mut call = pin!(self.client.call(|reason| {
            let mut sent = self.sent.borrow_mut();
            sent.push((reason, self.clock.now() - began));
            serve(sent.len(), self.timer.clone())
        }));
        let end = drive(&self.clock, &mut self.driver, call.as_mut());
        // Whatever was waited for is cancelled by now, the request that was not answered too.
        assert_eq!(self.timer.pending_timeouts(), 0);
        (end, self.clock.now() - began)
    }
}

/// To its end, through all the turns of the timer that it waits for.
fn drive<F: Future>(clock: &ManualClock, driver: &mut Driver, mut call: Pin<&mut F>) -> F::Output {
    loop {
        if let Poll::Ready(end) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return end;
        }
        clock.advance(driver.next_turn().expect("the timer has something to do"));
        driver.turn();
    }
}

async fn after(timer: HashedWheelTimer, delay: u64, answer: Answer) -> Answer {
    timer.sleep(ms(delay)).await.unwrap();
    answer
}

#[test]
fn what_is_answered_soon_is_sent_once() {
    let mut trial = Trial::new(POLICY);
    let (end, took) = trial.call(|_, timer| after(timer, 40, Ok("yes")));
    assert!(matches!(end, Ok("yes")));
    assert_eq!(took, ms(40));
    assert_eq!(trial.sent.take(), [(Reason::First, ms(0))]);
    // The server's own, and the deadlines of call and attempt and the hedge.
    let stats = trial.timer.stats();
    assert_eq!((stats.scheduled, stats.expired, stats.cancelled), (4, 1, 3));
}

#[test]
fn what_is_answered_late_is_asked_for_twice_and_the_first_answer_is_taken() {
    for (first, second, answer, at) in [(200, 10, "second", 60), (70, 100, "first", 70)] {
        let mut trial = Trial::new(POLICY);
        let (end, took) = trial.call(|number, timer| match number {
            1 => after(timer, first, Ok("first")),
            _ => after(timer, second, Ok("second")),
        });
        assert!(matches!(end, Ok(text) if text == answer));
        assert_eq!(took, ms(at));
        assert_eq!(trial.sent.take(), [(Reason::First, ms(0)), (Reason::Hedge, ms(50))]);
    }
}

#[test]
fn where_one_of_the_two_fails_the_other_may_still_be_answered() {
    for (failing, at) in [(1, 250), (2, 200)] {
        let mut trial = Trial::new(POLICY);
        let (end, took) = trial.call(|number, timer| match number {
            _ if number == failing => after(timer, 100, Err("no")),
            _ => after(timer, 200, Ok("yes")),
        });
        assert!(matches!(end, Ok("yes")));
        assert_eq!(took, ms(at));
    }
}

/// The pauses are left to chance, which has a seed here.
#[test]
fn pauses_grow_up_to_twice_as_long_and_the_last_failure_is_told() {
    fastrand::seed(1);
    let mut trial = Trial::new(Policy { retries: 3, ..POLICY });
    let (mut shortest, mut longest) = ([Duration::MAX; 3], [Duration::ZERO; 3]);
    for _ in 0..30 {
        let (end, took) = trial.call(|_, timer| after(timer, 10, Err("no")));
        assert!(matches!(end, Err(GaveUp::Failed("no"))));
        let sent = trial.sent.take();
        assert_eq!(sent.len(), 4);
        for (n, pair) in sent.windows(2).enumerate() {
            let pause = pair[1].1 - pair[0].1 - ms(10);
            assert!(pair[1].0 == Reason::Retry && pause <= ms(100 << n), "{sent:?}");
            (shortest[n], longest[n]) = (shortest[n].min(pause), longest[n].max(pause));
        }
        assert_eq!(took, sent[3].1 + ms(10));
    }
    for n in 0..3 {
        assert!(shortest[n] < ms(50 << n) && longest[n] > ms(50 << n), "{shortest:?} {longest:?}");
    }
}

#[test]
fn a_silent_server_is_left_after_the_last_attempt_or_at_the_deadline() {
    let mut trial = Trial::new(Policy { retries: 1, ..POLICY });
    let (end, took) = trial.call(|_, _| pending());
    assert!(matches!(end, Err(GaveUp::Unanswered)));
    assert!((ms(600)..=ms(701)).contains(&took), "{took:?}");
    let reasons: Vec<_> = trial.sent.take().into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, [Reason::First, Reason::Hedge, Reason::Retry, Reason::Hedge]);

    let mut trial = Trial::new(Policy { retries: 9, ..POLICY });
    let (end, took) = trial.call(|_, _| pending());
    assert!(matches!(end, Err(GaveUp::Deadline)));
    assert_eq!(took, ms(1_000));
}

#[test]
fn what_may_not_be_done_twice_has_its_deadline_too() {
    let Trial { clock, mut driver, client, .. } = Trial::new(POLICY);
    let began = clock.now();
    let call = pin!(client.call_once(pending::<Answer>()));
    assert!(matches!(drive(&clock, &mut driver, call), Err(GaveUp::Deadline)));
    assert_eq!(clock.now() - began, ms(1_000));
}

#[test]
fn a_server_that_is_down_gets_few_requests_more() {
    let mut trial = Trial::new(POLICY);
    let calls = 1_000;
    for _ in 0..calls {
        trial.call(|_, _| pending()).0.unwrap_err();
    }
    let more = trial.sent.take().len() - calls;
    // 100 of the reserve, and 1 for ten calls; but the first one earned nothing, for the reserve was full.
    assert_eq!(more, 199);
}

#[test]
fn a_timer_that_is_stopped_is_told() {
    let mut trial = Trial::new(POLICY);
    trial.timer.stop();
    assert!(matches!(trial.call(|_, _| pending()).0, Err(GaveUp::Timer(_))));

    // Also in the middle of the last attempt.
    let mut trial = Trial::new(Policy { retries: 0, ..POLICY });
    let (end, _) = trial.call(|_, timer| async move {
        timer.stop();
        pending().await
    });
    assert!(matches!(end, Err(GaveUp::Timer(_))), "{end:?}");
}
