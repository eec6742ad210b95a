//! Medians, minima and maxima over all repetitions.

use std::collections::BTreeSet;

use crate::command::Answer;
use crate::measure::{Measurements, Repetition};

pub(crate) struct Summary<'a> {
    pub(crate) measurements: &'a Measurements,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// The number of values.
    pub(crate) count: usize,
}

impl Spread {
    /// Returns the reciprocals.
    pub(crate) fn recip(self) -> Self {
        Self {
            median: self.median.recip(),
            min: self.max.recip(),
            max: self.min.recip(),
            count: self.count,
        }
    }

    /// Returns `None` if there are no values. The median of an even number of values is the mean of
    /// the middle two.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let lower = values[(values.len() - 1) / 2];
        let median = f64::midpoint(lower, values[middle]);
        Some(Self {
            median,
            min,
            max,
            count: values.len(),
        })
    }
}

fn figure(repetition: &Repetition, key: &str) -> Option<f64> {
    let Answer::Figures(figures) = &repetition.answer else {
        return None;
    };
    figures.get(key)?.as_f64()
}

impl<'a> Summary<'a> {
    /// Returns the repetitions of a workload and a peer, without warm-ups.
    pub(crate) fn repetitions<'b>(
        &'b self,
        workload: &'b str,
        peer: &'b str,
    ) -> impl Iterator<Item = &'a Repetition> + 'b {
        let is_selected = move |repetition: &&Repetition| {
            repetition.workload == workload
                && repetition.peer == peer
                && repetition.number.is_some()
        };
        self.measurements.repetitions.iter().filter(is_selected)
    }

    pub(crate) fn spread(&self, workload: &str, key: &str, peer: &str) -> Option<Spread> {
        let repetitions = self.repetitions(workload, peer);
        let values = repetitions.filter_map(|repetition| figure(repetition, key));
        Spread::of(values.collect())
    }

    /// Returns the ratios of one value to another. Each ratio compares repetitions with the same
    /// number, because a disturbance is likely to affect both.
    pub(crate) fn ratio(
        &self,
        workload: &str,
        this: (&str, &str),
        other: (&str, &str),
    ) -> Option<Spread> {
        let pair = |repetition: &Repetition| {
            let mut theirs = self.repetitions(workload, other.0);
            let theirs = theirs.find(|theirs| theirs.number == repetition.number)?;
            Some(figure(repetition, this.1)? / figure(theirs, other.1)?)
        };
        // Excludes negative ratios: a timer that fires early has no lateness to compare.
        let is_ratio = |ratio: &f64| ratio.is_finite() && *ratio >= 0.0;
        let ratios = self.repetitions(workload, this.0).filter_map(pair);
        Spread::of(ratios.filter(is_ratio).collect())
    }

    /// Returns the measured numbers of threads.
    pub(crate) fn threads(&self) -> BTreeSet<usize> {
        let repetitions = self.measurements.repetitions.iter();
        let threads = repetitions.filter_map(|one| one.workload.split_once(" threads="));
        let threads = threads.filter_map(|(_, number)| number.parse().ok());
        threads.collect()
    }

    /// Whether the peer supports the workload and has answered.
    pub(crate) fn has_answered(&self, workload: &str, peer: &str) -> bool {
        self.repetitions(workload, peer)
            .any(|repetition| matches!(repetition.answer, Answer::Figures(_)))
    }

    /// Says who did not answer, and why. A workload that a peer does not support is none of these.
    pub(crate) fn failures(&self) -> impl Iterator<Item = String> {
        let Measurements { missing, .. } = self.measurements;
        let missing = missing.iter().map(|(peer, why)| format!("{peer}: {why}"));
        missing.chain(self.measurements.repetitions.iter().filter_map(|one| {
            let Answer::Failed { error: why } = &one.answer else {
                return None;
            };
            Some(format!("{}, {}: {why}", one.peer, one.command))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurements(repetitions: &[(&'static str, usize, f64)]) -> Measurements {
        let repetition = |&(peer, number, ns): &_| Repetition {
            workload: "schedule".into(),
            command: String::new(),
            peer: String::from(peer),
            number: Some(number),
            answer: Answer::new([("ns", ns)]),
        };
        Measurements {
            repetitions: repetitions.iter().map(repetition).collect(),
            ..Measurements::default()
        }
    }

    #[test]
    fn spread_has_median_minimum_and_maximum() {
        assert_eq!(Spread::of(vec![]), None);
        let parts = |one: Spread| (one.median, one.min, one.max, one.count);
        let of = |values: &[f64]| Spread::of(values.to_vec()).map(parts);
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0, 3)));
        assert_eq!(of(&[4.0, 1.0]), Some((2.5, 1.0, 4.0, 2)));
    }

    /// A disturbance affects both timers in the second repetition. The ratio of the medians would
    /// be 2/3.
    #[test]
    fn ratios_are_computed_per_repetition() {
        let measurements = measurements(&[
            ("ours", 0, 10.0),
            ("netty", 0, 20.0),
            ("ours", 1, 30.0),
            ("netty", 1, 60.0),
            ("ours", 2, 10.0),
            ("netty", 2, 30.0),
            ("ours", 3, 99.0),
        ]);
        let summary = Summary {
            measurements: &measurements,
        };
        let ratio = summary.ratio("schedule", ("ours", "ns"), ("netty", "ns"));
        let ratio = ratio.unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (0.5, 1.0 / 3.0, 0.5));
        let missing = summary.ratio("schedule", ("ours", "ns"), ("tokio", "ns"));
        assert_eq!(missing, None);
    }
}
