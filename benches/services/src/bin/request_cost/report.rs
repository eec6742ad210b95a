//! The results: a table in Markdown.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use hashed_wheel_trial::Verdict;

use crate::process::Used;
use crate::{EXPECTED, TOLERANCE};
use hashed_wheel_services::On;

pub(crate) struct Measurement {
    pub(crate) on: On,
    pub(crate) round: u32,
    pub(crate) requests: u64,
    pub(crate) time: Duration,
    /// How long each answer to the probe took.
    pub(crate) answers: Vec<Duration>,
    pub(crate) used: Used,
}

impl Measurement {
    fn cpu_micros(&self) -> f64 {
        self.used.cpu.as_secs_f64() * 1e6 / self.requests as f64
    }

    /// Returns how long this part of the answers took at most, in microseconds.
    fn answer_micros(&self, percent: usize) -> f64 {
        let mut answers = self.answers.clone();
        answers.sort_unstable();
        let answer = answers.get(answers.len().saturating_sub(1) * percent / 100);
        answer.map_or(0.0, |answer| answer.as_secs_f64() * 1e6)
    }

    pub(crate) fn check(&self, verdict: &mut Verdict) {
        let counted = self.used.scheduled as f64 / self.requests as f64;
        verdict.expect(
            !self.on.has_counters() || (counted - EXPECTED).abs() < TOLERANCE,
            format!(
                "{}, round {}: a request took {counted:.2} timeouts instead of {EXPECTED}",
                self.on, self.round
            ),
        );
    }
}

pub(crate) struct Report<'a>(pub(crate) &'a [Measurement]);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| timer | CPU time per request, µs | / tokio::time in the same round | answer p50, µs | p99, µs | timeouts per request | wake-ups per second |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|")?;
        for &on in On::value_variants() {
            let costs = self.of(on).map(Measurement::cpu_micros);
            let Some(costs) = Spread::new(costs) else {
                continue;
            };
            let ratios = self.of(on).filter_map(|measurement| {
                let tokio = self
                    .of(On::Tokio)
                    .find(|other| other.round == measurement.round)?;
                Some(measurement.cpu_micros() / tokio.cpu_micros())
            });
            let ratios = Spread::new(ratios).map_or("–".into(), |ratios| ratios.to_string());
            let counts = if on.has_counters() {
                self.counts(on)
            } else {
                "– | –".into()
            };
            let [half, most] = [50, 99].map(|percent| {
                let answers = self.of(on).map(|of| of.answer_micros(percent));
                Spread::new(answers).map_or(0.0, |spread| spread.median)
            });
            writeln!(
                f,
                "| {on} | {costs} | {ratios} | {half:.0} | {most:.0} | {counts} |"
            )?;
        }
        writeln!(f, "\nMedians and quartiles of the rounds.")
    }
}

impl Report<'_> {
    /// Returns the counters of the wheel in all rounds.
    fn counts(&self, on: On) -> String {
        let sum = |of: fn(&Measurement) -> f64| self.of(on).map(of).sum::<f64>();
        let (requests, seconds) = (
            sum(|of| of.requests as f64),
            sum(|of| of.time.as_secs_f64()),
        );
        format!(
            "{:.2} | {:.1}",
            sum(|of| of.used.scheduled as f64) / requests,
            sum(|of| of.used.wake_ups as f64) / seconds
        )
    }

    fn of(&self, on: On) -> impl Iterator<Item = &Measurement> {
        self.0
            .iter()
            .filter(move |measurement| measurement.on == on)
    }
}

/// The median and the quartiles.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn new(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let (low, high) = (*values.get(values.len() / 4)?, values[values.len() * 3 / 4]);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        };
        Some(Self { low, median, high })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} ({:.2} to {:.2})",
            self.median, self.low, self.high
        )
    }
}
