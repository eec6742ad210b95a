//! When a container gives room back.

/// A container gives room back if it has room for more items than this, and for this many times the
/// items that it has.
pub(super) const MAX_IDLE: usize = 64;
const MAX_ROOM: usize = 8;

/// Returns the room for which a container shrinks; `None` if it does not shrink.
///
/// Most items were removed since the container grew, so the cost per removal is constant.
pub(super) fn smaller_room(count: usize, room: usize) -> Option<usize> {
    (room > MAX_IDLE && count < room / MAX_ROOM).then_some(2 * count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_container_keeps_its_room() {
        assert_eq!(
            (smaller_room(0, MAX_IDLE), smaller_room(0, MAX_IDLE + 1)),
            (None, Some(0))
        );
        let room = MAX_ROOM * MAX_IDLE;
        assert_eq!(smaller_room(MAX_IDLE - 1, room), Some(2 * (MAX_IDLE - 1)));
        assert_eq!(smaller_room(MAX_IDLE, room), None);
    }
}
