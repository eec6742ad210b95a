//! The stand-in for the queue, against the queue that it stands for: it shows the library everything that the real one can.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crossbeam_queue::SegQueue;
use hashed_wheel::Queue;

use super::*;

/// What the consumer does, while two producers push so many values each.
struct Script {
    pushes: [usize; 2],
    steps: &'static [Step],
}

#[derive(Clone, Copy)]
enum Step {
    Pop,
    IsEmpty,
    Len,
}
use Step::*;

/// What it sees: a value is that of a producer, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Popped(Option<(usize, usize)>),
    WasEmpty(bool),
    HadLen(usize),
}

/// All answers of one run, and what was left when all had been pushed, in order.
type Outcome = Vec<Answer>;

trait Fifo: Send + Sync + 'static {
    fn push(&self, value: (usize, usize));
    fn ask(&self, step: Step) -> Answer;
}

macro_rules! fifo {
    ($queue:ident) => {
        impl Fifo for $queue<(usize, usize)> {
            fn push(&self, value: (usize, usize)) {
                $queue::push(self, value);
            }

            fn ask(&self, step: Step) -> Answer {
                match step {
                    Pop => Answer::Popped(self.pop()),
                    IsEmpty => Answer::WasEmpty(self.is_empty()),
                    Len => Answer::HadLen(self.len()),
                }
            }
        }
    };
}

fifo!(SegQueue);
fifo!(Queue);

const SCRIPTS: [(Script, Option<usize>); 3] = [
    (Script { pushes: [1, 1], steps: &[IsEmpty, Pop, Len] }, None),
    (Script { pushes: [2, 1], steps: &[Pop, Len, Pop] }, Some(4)),
    (Script { pushes: [2, 2], steps: &[Pop, IsEmpty, Pop] }, Some(3)),
];

impl Script {
    /// Of the producers: `pause` says when it likes to.
    fn produce(&self, queue: &impl Fifo, producer: usize, mut pause: impl FnMut()) {
        for number in 0..self.pushes[producer] {
            pause();
            queue.push((producer, number));
        }
    }

    fn consume(&self, queue: &impl Fifo, mut pause: impl FnMut()) -> Outcome {
        let asked = self.steps.iter().map(|&step| {
            pause();
            queue.ask(step)
        });
        asked.collect()
    }

    /// When all has been pushed.
    fn finish(&self, queue: &impl Fifo, outcome: &mut Outcome) {
        let rest =
            std::iter::from_fn(|| Some(queue.ask(Pop)).filter(|answer| *answer != Answer::Popped(None)));
        outcome.extend(rest);
        outcome.extend([queue.ask(Len), queue.ask(IsEmpty)]);
    }

    /// One run over the stand-in.
    fn model(&'static self) -> Outcome {
        let queue = Arc::new(Queue::new());
        let producers = [0, 1].map(|producer| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || self.produce(&*queue, producer, || ()))
        });
        let mut outcome = self.consume(&*queue, || ());
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        self.finish(&*queue, &mut outcome);
        outcome
    }

    /// Outcomes that the real queue had.
    fn observed(&'static self) -> BTreeSet<Outcome> {
        let run = |seed: u64| {
            let queue = Arc::new(SegQueue::new());
            let start = Arc::new(std::sync::Barrier::new(3));
            let producers = [0, 1].map(|producer| {
                let (queue, start) = (Arc::clone(&queue), Arc::clone(&start));
                std::thread::spawn(move || {
                    let pause = pauses(seed * 3 + producer as u64);
                    start.wait();
                    self.produce(&*queue, producer, pause);
                })
            });
            let pause = pauses(seed * 3 + 2);
            start.wait();
            let mut outcome = self.consume(&*queue, pause);
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            self.finish(&*queue, &mut outcome);
            outcome
        };
        (0..2_000).map(run).collect()
    }

    /// Per producer first in, first out; and nothing is lost.
    #[track_caller]
    fn assert_fifo(&self, outcome: &Outcome) {
        for (producer, &pushes) in self.pushes.iter().enumerate() {
            let popped = outcome.iter().filter_map(|answer| match answer {
                Answer::Popped(Some((of, number))) if *of == producer => Some(*number),
                _ => None,
            });
            assert_eq!(
                Vec::from_iter(popped),
                Vec::from_iter(0..pushes),
                "producer {producer} of {outcome:?}"
            );
        }
        assert!(outcome.ends_with(&[Answer::HadLen(0), Answer::WasEmpty(true)]), "{outcome:?}");
    }
}

/// A pause of some length at each call, the lengths by the seed; now and then others get the processor.
fn pauses(seed: u64) -> impl FnMut() {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        // xorshift
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match state % 8 {
            0 => std::thread::yield_now(),
            _ => (0..state >> 32 & 0x3ff).for_each(|_| std::hint::spin_loop()),
        }
    }
}

#[test]
fn the_stand_in_shows_all_that_the_real_queue_does() {
    for (script, preemptions) in &SCRIPTS {
        let outcomes = Arc::new(Mutex::new(BTreeSet::new()));
        let seen = Arc::clone(&outcomes);
        explore(*preemptions, [broken(QueueIsAStack)], move || {
            let outcome = script.model();
            seen.lock().unwrap().insert(outcome);
        });
        let (explored, observed) = (outcomes.lock().unwrap(), script.observed());
        println!("    {} outcomes, of which the real queue had {}", explored.len(), observed.len());
        let missing: Vec<_> = observed.difference(&explored).collect();
        assert!(missing.is_empty(), "the stand-in never does this: {missing:?}");
        assert!(observed.len() > 1, "the real queue was given something to do");
        explored.iter().chain(&observed).for_each(|outcome| script.assert_fifo(outcome));
    }
}
