//! The results: one line per measurement, and a table in Markdown at the end.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use hashed_wheel_examples::Verdict;

use crate::process::{On, Used};
use crate::{EXPECTED, TOLERANCE};

pub(crate) struct Measurement {
    pub(crate) on: On,
    pub(crate) round: u32,
    pub(crate) requests: u64,
    pub(crate) time: Duration,
    pub(crate) used: Used,
}

impl Measurement {
    fn cpu_micros(&self) -> f64 {
        self.used.cpu.as_secs_f64() * 1e6 / self.requests as f64
    }

    /// Returns how many timeouts were scheduled and re-armed per request.
    fn per_request(&self) -> [f64; 2] {
        [self.used.scheduled, self.used.resets].map(|count| count as f64 / self.requests as f64)
    }

    pub(crate) fn check(&self, verdict: &mut Verdict) {
        let counted = self.per_request();
        let is_expected =
            counted.iter().zip(EXPECTED).all(|(counted, expected)| (counted - expected).abs() < TOLERANCE);
        verdict.expect(
            self.on == On::Tokio || is_expected,
            format!(
                "{}, round {}: a request took {counted:.2?} timeouts and re-arms instead of {EXPECTED:?}",
                self.on, self.round
            ),
        );
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {:<29}  {:.2} µs per request", self.round, self.on, self.cpu_micros())?;
        if self.on != On::Tokio {
            let [scheduled, resets] = self.per_request();
            let wake_ups = self.used.wake_ups as f64 / self.time.as_secs_f64();
            write!(
                f,
                "; {scheduled:.2} timeouts and {resets:.2} re-arms each; {wake_ups:.1} wake-ups per second"
            )?;
        }
        Ok(())
    }
}

pub(crate) struct Report<'a>(pub(crate) &'a [Measurement]);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| timer | CPU time per request, µs | / tokio::time in the same round |")?;
        writeln!(f, "|---|--:|--:|")?;
        for &on in On::value_variants() {
            let costs = self.of(on).map(Measurement::cpu_micros);
            let Some(costs) = Spread::new(costs) else { continue };
            let ratios = self.of(on).filter_map(|measurement| {
                let tokio = self.of(On::Tokio).find(|other| other.round == measurement.round)?;
                Some(measurement.cpu_micros() / tokio.cpu_micros())
            });
            let ratios = Spread::new(ratios).map_or("–".into(), |ratios| ratios.to_string());
            writeln!(f, "| {on} | {costs} | {ratios} |")?;
        }
        Ok(())
    }
}

impl Report<'_> {
    fn of(&self, on: On) -> impl Iterator<Item = &Measurement> {
        self.0.iter().filter(move |measurement| measurement.on == on)
    }
}

struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    fn new(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Self { min, median, max })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.min, self.max)
    }
}
