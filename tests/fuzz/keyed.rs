//! Timeouts by key, beside a map from each key to its timeout.

use hashed_wheel::KeyedTimeouts;

use super::{Kind, MOST_TIMEOUTS, Phase, Script, State, Task, World};

const KEYS: u64 = 4;

impl World {
    /// An executor that is given the task of one without a handle cannot tell which, so there is one at a time.
    pub(super) fn has_room_for_unseen(&self, most: usize, key: Option<u8>) -> bool {
        let is_other = |id: &&usize| match self.records[**id].kind {
            Kind::Periodic(_) => true,
            Kind::Keyed(other) => self.has_executor && Some(other) != key,
            _ => false,
        };
        let most = if self.has_executor { 1 } else { most };
        self.pending.iter().filter(is_other).count() < most && self.records.len() < MOST_TIMEOUTS
    }

    /// Takes out what is under a key, which then does not begin to run any more. Says whether anything was.
    fn take_out(&mut self, key: u8) -> bool {
        let Some(id) = self.keys.remove(&key) else { return false };
        // If it is in an executor's queue it has expired.
        self.withdraw(id);
        self.records[id].state = State::Cancelled;
        true
    }

    fn take_all_out(&mut self) {
        let keys: Vec<_> = self.keys.keys().copied().collect();
        keys.into_iter().for_each(|key| _ = self.take_out(key));
    }

    /// The key is free, if it was this one's.
    pub(super) fn free_key(&mut self, id: usize) -> bool {
        let Kind::Keyed(key) = self.records[id].kind else { return false };
        let is_there = self.keys.get(&key) == Some(&id);
        is_there && self.keys.remove(&key).is_some()
    }
}

impl Script {
    /// `choice` is up to 11.
    pub(super) fn use_key(&self, choice: u64) {
        let mut world = self.world();
        // (While the timer is being stopped, nobody knows how many keys are free already.)
        let Some(keyed) = world.keyed.clone().filter(|_| world.phase != Phase::Draining) else { return };
        let key = world.bytes.up_to(KEYS - 1) as u8;
        match choice {
            0..6 => {
                drop(world);
                self.schedule_by_key(&keyed, key);
            }
            6 | 7 => {
                let delay = world.delay();
                let id = world.keys.get(&key).copied().filter(|id| world.pending.contains(id));
                if let Some(id) = id {
                    let deadline = world.deadline(delay);
                    world.rearm(id, deadline);
                }
                drop(world);
                assert_eq!(keyed.reset(&key, delay), id.is_some());
            }
            8 | 9 => {
                let id = world.keys.get(&key).copied();
                let is_elsewhere = id.is_some_and(|id| world.records[id].state == State::Handed);
                let wins = world.take_out(key);
                drop(world);
                assert_eq!(keyed.cancel(&key), wins);
                let world = self.world();
                assert!(id.is_none_or(|id| world.records[id].task_is_gone != is_elsewhere));
            }
            10 => {
                assert_eq!(keyed.contains(&key), world.keys.contains_key(&key));
                assert_eq!((keyed.len(), keyed.is_empty()), (world.keys.len(), world.keys.is_empty()));
            }
            _ if key == 0 => {
                drop((world, keyed));
                self.drop_keyed();
            }
            _ => {
                world.take_all_out();
                drop(world);
                keyed.clear();
            }
        }
    }

    fn schedule_by_key(&self, keyed: &KeyedTimeouts<u8>, key: u8) {
        let mut world = self.world();
        if !world.has_room_for_unseen(usize::MAX, Some(key)) {
            return;
        }
        let (delay, temper) = (world.delay(), world.bytes.up_to(255));
        let deadline = world.deadline(delay);
        let id = world.schedule(Kind::Keyed(key), deadline);
        let is_refused = world.records[id].state == State::Refused;
        let was_there = !is_refused && world.take_out(key);
        if !is_refused {
            world.keys.insert(key, id);
        }
        drop(world);

        let task = Task { id, temper, script: self.clone() };
        match keyed.schedule(key, move |key| task.notify(key), delay) {
            Ok(replaced) => assert_eq!((replaced, is_refused), (was_there, false)),
            Err(error) => self.world().expect_refusal(&error),
        }
        assert_eq!(self.world().records[id].task_is_gone, is_refused);
    }

    /// Ends all that is under a key.
    pub(super) fn drop_keyed(&self) {
        let mut world = self.world();
        world.take_all_out();
        let keyed = world.keyed.take();
        drop(world);
        drop(keyed);
    }
}

impl Task {
    /// The run of one that has a key.
    fn notify(self, key: u8) {
        {
            let mut world = self.script.world();
            if !world.has_executor {
                world.fire(self.id);
            }
            let record = &mut world.records[self.id];
            assert_eq!(record.state, State::Handed);
            assert!(matches!(record.kind, Kind::Keyed(own) if own == key));
            record.state = State::Ran;
            assert!(world.free_key(self.id), "{} runs and was replaced", self.id);
        }
        if self.temper >= 128 {
            self.script.nested(7);
        }
    }
}
