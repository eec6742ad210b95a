use super::*;

fn slab<T>(reserved: usize) -> Slab<T> {
    Slab::try_with_capacity(reserved).expect("memory")
}

#[test]
fn cell_without_generations_is_not_reused() {
    let mut slab = slab(0);
    let first = slab.insert(0, 'a');
    slab.cells[0].generation = NonZeroU32::MAX;
    let last = Key {
        generation: NonZeroU32::MAX,
        ..first
    };
    assert_eq!(slab.remove(0), 'a');
    assert!(slab.get(last).is_none());
    let next = slab.insert(0, 'b');
    assert_eq!(next.index, 1, "another cell");
    assert!(slab.get(last).is_none());
    // The same after memory was freed.
    let keys: Vec<_> = (0..4 * MAX_IDLE_CELLS)
        .map(|_| slab.insert(0, 'c'))
        .collect();
    keys.iter().for_each(|key| _ = slab.remove(key.index));
    for _ in 0..2 {
        (0..MAX_IDLE_CELLS).for_each(|_| _ = slab.insert(0, 'd'));
        assert!(slab.get(last).is_none());
        slab.take();
        slab.shrink_to_fit();
    }
}

#[test]
fn old_keys_are_stale_after_the_memory_is_freed() {
    let mut slab = slab(0);
    let keys: Vec<_> = (0..=MAX_IDLE_CELLS)
        .map(|value| slab.insert(0, value))
        .collect();
    for key in &keys {
        slab.remove(key.index);
    }
    assert_eq!(slab.cells.capacity(), MAX_IDLE_CELLS);
    (0..=MAX_IDLE_CELLS).for_each(|value| _ = slab.insert(0, value));
    assert!(keys.iter().all(|key| slab.get(*key).is_none()));
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn cells_after_the_last_used_one_are_freed() {
    ["fifo", "lifo", "random"]
        .into_iter()
        .for_each(check_cells_are_freed);
}

fn check_cells_are_freed(order_of: &str) {
    const CELLS: usize = 4 * MAX_IDLE_CELLS;

    let mut slab = slab(0);
    let keys: Vec<_> = (0..CELLS).map(|value| slab.insert(0, value)).collect();
    // Three entries stay. One of them has a free cell before it.
    let stay = [0, 1, 3];
    let mut order: Vec<_> = (0..CELLS).filter(|at| !stay.contains(at)).collect();
    match order_of {
        "fifo" => {}
        "lifo" => order.reverse(),
        _ => fastrand::Rng::with_seed(1).shuffle(&mut order),
    }
    for at in order {
        assert_eq!(slab.remove(keys[at].index), at);
    }
    assert!(
        slab.cells.capacity() <= MAX_IDLE_CELLS,
        "{order_of}: {} cells",
        slab.cells.capacity()
    );
    let more: Vec<_> = (CELLS..2 * CELLS)
        .map(|value| slab.insert(0, value))
        .collect();
    for (at, &key) in keys.iter().enumerate() {
        assert_eq!(slab.get(key), stay.contains(&at).then_some(&at));
    }
    for (value, &key) in (CELLS..).zip(&more) {
        assert_eq!(slab.get(key), Some(&value));
    }
    assert_eq!(slab.take().len(), CELLS + stay.len());
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn slab_that_grew_again_is_trimmed() {
    const CELLS: usize = 4 * MAX_IDLE_CELLS;

    let mut slab = slab(0);
    let stays = CELLS * 3 / 4;
    (0..CELLS).for_each(|_| _ = slab.insert(0, ()));
    for index in (0..CELLS).filter(|&index| index != stays) {
        slab.remove(index as u32);
    }
    assert_eq!(slab.cells.len(), stays + 1, "the entry is in the last cell");
    assert_eq!(slab.capacity(), CELLS, "no copy for few cells");
    let keys: Vec<_> = (0..2 * CELLS).map(|_| slab.insert(0, ())).collect();
    for key in keys {
        slab.remove(key.index);
    }
    assert!(
        slab.cells.capacity() <= CELLS,
        "{} cells for one entry",
        slab.cells.capacity()
    );
    assert_eq!(slab.take().len(), 1);
}

#[test]
fn cell_that_was_used_too_often_is_not_freed() {
    // So few that memory is freed only once all entries are removed.
    const CELLS: usize = MAX_IDLE_CELLS + MIN_USED;

    let mut slab = slab(0);
    let keys: Vec<_> = (0..CELLS).map(|_| slab.insert(0, ())).collect();
    // As if this cell had been used this many times.
    slab.cells[CELLS - 1].generation = NonZeroU32::new(MAX_FIRST_GENERATION).unwrap();
    for key in &keys {
        slab.remove(key.index);
    }
    assert_eq!(slab.cells.len(), CELLS);
    (0..CELLS).for_each(|_| _ = slab.insert(0, ()));
    assert!(keys.iter().all(|key| slab.get(*key).is_none()));
}

#[test]
fn memory_of_others_is_freed_after_a_cell_was_used_too_often() {
    let mut slab = slab(0);
    slab.insert(0, ());
    slab.cells[0].generation = NonZeroU32::new(MAX_FIRST_GENERATION).unwrap();
    slab.remove(0);
    for _ in 0..3 {
        let keys: Vec<_> = (0..4 * MAX_IDLE_CELLS)
            .map(|_| slab.insert(0, ()))
            .collect();
        for key in &keys {
            slab.remove(key.index);
        }
        assert_eq!(slab.cells.capacity(), MAX_IDLE_CELLS);
        assert!(keys.iter().all(|key| slab.get(*key).is_none()));
    }
    assert_eq!(slab.first_generation.get(), 4);
    slab.shrink_to_fit();
    assert_eq!(slab.cells.len(), 1);
}

#[test]
fn old_keys_are_stale_after_take() {
    let mut slab = slab(0);
    let key = slab.insert(0, 'a');
    assert_eq!(slab.take(), ['a']);
    slab.insert(0, 'b');
    assert!(slab.get(key).is_none());
}

#[test]
fn only_a_slab_with_many_cells_frees_memory() {
    let below = [0, 1, MAX_IDLE_CELLS].map(|cells| trim_below(cells, 0));
    assert_eq!(below, [0; 3]);
    let below = [1, MIN_USED, MIN_USED + 1, 3 * MAX_IDLE_CELLS]
        .map(|more| trim_below(MAX_IDLE_CELLS + more, 0));
    assert_eq!(
        below,
        [1, 1, 2, 3 * MAX_IDLE_CELLS / MIN_USED],
        "a quarter of the cells above the bound"
    );
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn free_list_has_each_free_cell_once() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut slab = slab(0);
    let mut keys = Vec::new();
    let mut freed = 0;
    for step in 0..20_000 {
        // Waves of few and many entries.
        if random.u32(..100) < if step / 2_500 % 2 == 0 { 90 } else { 5 } {
            keys.push(slab.insert(step, ()));
        } else if !keys.is_empty() {
            let cells = slab.cells.len();
            slab.remove(keys.swap_remove(random.usize(..keys.len())).index);
            freed += cells - slab.cells.len();
        }
        if step % 50 == 0 {
            let (mut free, mut listed) = (slab.free, 0);
            while let Some(cell) = slab.cells.get(free as usize) {
                assert!(!cell.is_used());
                (free, listed) = (cell.position, listed + 1);
            }
            assert_eq!(
                (listed, keys.len()),
                (slab.cells.len() - slab.len, slab.len)
            );
        }
        assert!(
            keys.iter()
                .rev()
                .take(3)
                .all(|&key| slab.get(key).is_some())
        );
    }
    assert!(freed > 1_000, "{freed} cells were freed");
}

#[test]
fn cells_are_freed_once_fewer_than_a_quarter_are_used() {
    const CELLS: usize = 4 * MAX_IDLE_CELLS;

    let mut slab = slab(0);
    (0..CELLS).for_each(|_| _ = slab.insert(0, ()));
    let used = trim_below(CELLS, 0);
    (used..CELLS)
        .rev()
        .for_each(|index| slab.remove(index as u32));
    assert_eq!(slab.cells.len(), CELLS);
    slab.remove(used as u32 - 1);
    assert_eq!(slab.cells.len(), MAX_IDLE_CELLS);
}

#[test]
fn half_of_the_cells_are_freed() {
    const CELLS: usize = 4 * MAX_IDLE_CELLS;

    let mut slab = slab(0);
    (0..CELLS).for_each(|_| _ = slab.insert(0, ()));
    for index in (0..CELLS).filter(|&index| index != CELLS / 2 - 1) {
        slab.remove(index as u32);
    }
    assert_eq!((slab.cells.len(), slab.len), (CELLS / 2, 1));
}

#[test]
fn slab_with_the_highest_first_generation_frees_memory() {
    const CELLS: usize = MAX_IDLE_CELLS + MIN_USED;

    let mut slab = slab(0);
    let keys: Vec<_> = (0..CELLS).map(|_| slab.insert(0, ())).collect();
    slab.cells[CELLS - 1].generation = NonZeroU32::new(MAX_FIRST_GENERATION - 1).unwrap();
    for key in &keys {
        slab.remove(key.index);
    }
    assert_eq!(
        (slab.cells.len(), slab.first_generation.get()),
        (MAX_IDLE_CELLS, MAX_FIRST_GENERATION)
    );
}

#[test]
fn take_stops_when_the_cells_are_freed() {
    let mut slab = slab(0);
    let keys: Vec<_> = (0..=MAX_IDLE_CELLS)
        .map(|value| slab.insert(0, value))
        .collect();
    slab.remove(keys[MAX_IDLE_CELLS].index);
    assert!(slab.take().into_iter().eq(0..MAX_IDLE_CELLS));
    assert_eq!(slab.cells.len(), MAX_IDLE_CELLS);
}

#[test]
fn reserved_cells_are_kept_until_the_slab_is_shrunk() {
    const CELLS: usize = 4 * MAX_IDLE_CELLS;

    let mut slab = slab(CELLS);
    let keys: Vec<_> = (0..CELLS).map(|value| slab.insert(0, value)).collect();
    for key in &keys[1..] {
        slab.remove(key.index);
    }
    assert_eq!((slab.cells.len(), slab.capacity()), (CELLS, CELLS));
    slab.shrink_to_fit();
    assert_eq!((slab.cells.len(), slab.capacity()), (1, 1));
    let more: Vec<_> = (0..CELLS).map(|value| slab.insert(0, value)).collect();
    assert!(keys.iter().map(|key| key.index).eq(0..CELLS as u32));
    assert!(
        more.iter()
            .all(|key| keys.get(key.index as usize) != Some(key)),
        "no key is used again"
    );
    for key in more {
        slab.remove(key.index);
    }
    assert!(
        slab.capacity() <= MAX_IDLE_CELLS,
        "nothing is reserved any more"
    );
    assert_eq!(slab.get(keys[0]), Some(&0));
}

#[test]
fn slab_without_generations_for_new_cells_is_not_shrunk() {
    let mut slab = slab(8);
    let key = slab.insert(0, 'a');
    slab.cells[0].generation = NonZeroU32::new(MAX_FIRST_GENERATION).unwrap();
    slab.remove(key.index);
    slab.shrink_to_fit();
    assert_eq!(
        (slab.cells.len(), slab.insert(0, 'b').generation.get()),
        (1, MAX_FIRST_GENERATION + 1)
    );
}
