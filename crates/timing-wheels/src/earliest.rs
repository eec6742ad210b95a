//! Finds the entries of a wheel that are due first.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;

/// The rank of an entry: the tick at which it is due, and its place among those of that tick.
pub type Rank = (u64, u64);

/// Returns the `most` entries with the lowest ranks, in that order.
///
/// `rank` returns the rank of an entry, or `None` to leave it out. Each of `buckets` has a tick
/// before which none of its entries is due. The entries of `ready` have no such bound.
///
/// Reads the buckets in the order of these ticks, until no further one can contain an entry with a
/// lower rank. So it reads little more than the entries that it returns, if most entries of a
/// bucket are due at the same tick.
pub(super) fn earliest<B: Iterator<Item = u32>>(
    most: usize,
    ready: impl Iterator<Item = u32>,
    mut buckets: Vec<(u64, B)>,
    rank: impl Fn(u32) -> Option<Rank>,
) -> Vec<(Rank, u32)> {
    // The entry with the highest rank is at the top.
    let mut found = BinaryHeap::new();
    let add = |entry, found: &mut BinaryHeap<_>| {
        let Some(rank) = rank(entry) else { return };
        found.push((rank, entry));
        if found.len() > most {
            found.pop();
        }
    };
    ready.for_each(|entry| add(entry, &mut found));
    buckets.sort_unstable_by_key(|&(first_tick, _)| first_tick);
    for (first_tick, bucket) in buckets {
        if found.len() == most
            && found
                .peek()
                .map_or(true, |&((tick, _), _)| tick < first_tick)
        {
            break;
        }
        bucket.for_each(|entry| add(entry, &mut found));
    }
    found.into_sorted_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_with_entries_of_an_equal_tick_are_read() {
        // Two entries of tick 5 in different buckets, as after a late `advance`. The second one has
        // the lower rank.
        let ranks = [(5, 1), (5, 0)];
        let buckets = vec![(3, vec![0].into_iter()), (5, vec![1].into_iter())];
        let found = earliest(1, [].into_iter(), buckets, |entry| {
            Some(ranks[entry as usize])
        });
        assert_eq!(found, [((5, 0), 1)]);
    }

    #[test]
    fn buckets_of_later_ticks_are_not_read() {
        let buckets = vec![(6, vec![1].into_iter()), (5, vec![0].into_iter())];
        let rank = |entry| {
            assert_eq!(entry, 0, "an entry that cannot be among the first was read");
            Some((5, 0))
        };
        assert_eq!(earliest(1, [].into_iter(), buckets, rank), [((5, 0), 0)]);
    }
}
