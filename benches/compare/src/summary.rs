//! Medians, with the least and the most, of what all rounds have brought.

use crate::command::Answer;
use crate::measure::{Measured, Round};

pub(crate) struct Summary<'a> {
    pub(crate) measured: &'a Measured,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// None of nothing. Of an even number the mean of the two in the middle.
    pub(crate) fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_by(f64::total_cmp);
        let (&least, &most) = (figures.first()?, figures.last()?);
        let middle = figures.len() / 2;
        let lower = figures[(figures.len() - 1) / 2];
        Some(Self { median: f64::midpoint(lower, figures[middle]), least, most })
    }
}

fn figure(round: &Round, key: &str) -> Option<f64> {
    let Answer::Figures(figures) = &round.answer else { return None };
    figures.get(key)?.as_f64()
}

impl<'a> Summary<'a> {
    /// The rounds that count.
    pub(crate) fn rounds<'b>(
        &'b self,
        workload: &'b str,
        peer: &'b str,
    ) -> impl Iterator<Item = &'a Round> + 'b {
        let of =
            move |round: &&Round| round.workload == workload && round.peer == peer && round.number.is_some();
        self.measured.rounds.iter().filter(of)
    }

    pub(crate) fn spread(&self, workload: &str, key: &str, peer: &str) -> Option<Spread> {
        Spread::of(self.rounds(workload, peer).filter_map(|round| figure(round, key)).collect())
    }

    /// Of one to another, each round to the round of the same number: what disturbs one is likely to disturb both.
    pub(crate) fn ratio(&self, workload: &str, this: (&str, &str), other: (&str, &str)) -> Option<Spread> {
        let pair = |round: &Round| {
            let theirs = self.rounds(workload, other.0).find(|theirs| theirs.number == round.number)?;
            Some(figure(round, this.1)? / figure(theirs, other.1)?)
        };
        // A timer that is early has no lateness to compare.
        let is_ratio = |ratio: &f64| ratio.is_finite() && *ratio >= 0.0;
        let ratios = self.rounds(workload, this.0).filter_map(pair).filter(is_ratio);
        Spread::of(ratios.collect())
    }

    /// Why there are no figures: the text, and whether that is a failure.
    pub(crate) fn absence(&self, workload: &str, peer: &str) -> Option<(&str, bool)> {
        if let Some(why) = self.measured.missing.get(peer) {
            return Some((why, true));
        }
        let rounds = self.measured.rounds.iter();
        let mut answers = rounds.filter(|round| round.workload == workload && round.peer == peer);
        answers.find_map(|round| match &round.answer {
            Answer::Figures(_) => None,
            Answer::Unsupported(why) => Some((&**why, false)),
            Answer::Failed(why) => Some((&**why, true)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rounds: &[(&'static str, usize, f64)]) -> Measured {
        let round = |&(peer, number, ns): &_| Round {
            workload: "W1".into(),
            command: String::new(),
            peer,
            number: Some(number),
            answer: Answer::new([("ns", ns)]),
            seconds: 1.0,
            others: 0.0,
        };
        Measured { rounds: rounds.iter().map(round).collect(), ..Measured::default() }
    }

    #[test]
    fn a_median_has_the_least_and_the_most_beside_it() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(Spread::of(vec![4.0, 1.0]), Some(Spread { median: 2.5, least: 1.0, most: 4.0 }));
    }

    /// The second round hit both: the ratio of the medians would be 2/3.
    #[test]
    fn a_ratio_is_taken_round_by_round() {
        let measured = measured(&[
            ("ours", 0, 10.0),
            ("netty", 0, 20.0),
            ("ours", 1, 30.0),
            ("netty", 1, 60.0),
            ("ours", 2, 10.0),
            ("netty", 2, 30.0),
            ("ours", 3, 99.0),
        ]);
        let summary = Summary { measured: &measured };
        let ratio = summary.ratio("W1", ("ours", "ns"), ("netty", "ns")).unwrap();
        assert_eq!((ratio.median, ratio.least, ratio.most), (0.5, 1.0 / 3.0, 0.5));
        assert_eq!(summary.ratio("W1", ("ours", "ns"), ("tokio", "ns")), None);
    }
}
