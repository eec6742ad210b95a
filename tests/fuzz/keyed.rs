//! Compares timeouts by key with a map from each key to its timeout.

use hashed_wheel::KeyedTimeouts;

use super::{Kind, Model, Phase, Script, State, Task};

const KEYS: u64 = 4;

impl Model {
    /// With an executor, at most one timeout without a handle may be pending. The executor's model
    /// could not tell two of them apart.
    ///
    /// `replaced` is the timeout whose place a new one takes.
    pub(super) fn has_room_for_hidden(&self, max: usize, replaced: Option<usize>) -> bool {
        let is_other = |id: &&usize| {
            let record = &self.records[**id];
            record.is_periodic() || self.has_executor && record.is_hidden() && Some(**id) != replaced
        };
        let max = if self.has_executor { 1 } else { max };
        self.pending.iter().filter(is_other).count() < max && self.has_room()
    }

    /// Removes the timeout of a key, so that its task does not begin any more. Returns whether
    /// there was one.
    fn remove_key(&mut self, key: u8) -> bool {
        let Some(id) = self.keys.remove(&key) else { return false };
        // A timeout whose task is in the executor's queue has expired, so there is nothing to
        // cancel.
        self.cancel_record(id);
        self.records[id].state = State::Cancelled;
        true
    }

    fn remove_all_keys(&mut self) {
        let keys: Vec<_> = self.keys.keys().copied().collect();
        keys.into_iter().for_each(|key| _ = self.remove_key(key));
    }

    /// Frees the key of this timeout, if the key is still its own.
    pub(super) fn free_key(&mut self, id: usize) -> bool {
        match self.records[id].kind {
            Kind::Keyed(key) => self.keys.get(&key) == Some(&id) && self.keys.remove(&key).is_some(),
            Kind::Value { key, .. } => self.values.as_mut().is_some_and(|values| values.free_key(key, id)),
            _ => false,
        }
    }
}

impl Script {
    /// `choice` is at most 11.
    pub(super) fn use_key(&self, choice: u64) {
        let mut model = self.model();
        // While the timer is being stopped, the number of free keys is not specified.
        let Some(keyed) = model.keyed.clone().filter(|_| model.phase != Phase::Draining) else { return };
        let key = model.bytes.up_to(KEYS - 1) as u8;
        match choice {
            0..6 => {
                drop(model);
                self.schedule_by_key(&keyed, key);
            }
            6 | 7 => {
                let delay = model.delay();
                let id = model.keys.get(&key).copied().filter(|id| model.pending.contains(id));
                if let Some(id) = id {
                    let deadline = model.deadline(delay);
                    model.reset_record(id, deadline);
                }
                drop(model);
                assert_eq!(keyed.reset(&key, delay), id.is_some());
            }
            8 | 9 => {
                let id = model.keys.get(&key).copied();
                let is_in_executor = id.is_some_and(|id| model.records[id].state == State::HandedOver);
                let succeeds = model.remove_key(key);
                drop(model);
                assert_eq!(keyed.cancel(&key), succeeds);
                let model = self.model();
                assert!(id.is_none_or(|id| model.records[id].task_is_dropped != is_in_executor));
            }
            10 => {
                assert_eq!(keyed.contains(&key), model.keys.contains_key(&key));
                assert_eq!((keyed.len(), keyed.is_empty()), (model.keys.len(), model.keys.is_empty()));
            }
            _ if key == 0 => {
                drop((model, keyed));
                self.drop_keyed();
            }
            _ => {
                let count = model.keys.len();
                model.remove_all_keys();
                drop(model);
                assert_eq!(keyed.clear(), count);
            }
        }
    }

    fn schedule_by_key(&self, keyed: &KeyedTimeouts<u8>, key: u8) {
        let mut model = self.model();
        let replaced = model.keys.get(&key).copied();
        if !model.has_room_for_hidden(usize::MAX, replaced) {
            return;
        }
        let (delay, behaviour) = (model.delay(), model.bytes.up_to(255));
        let deadline = model.deadline(delay);
        let id = model.schedule(Kind::Keyed(key), deadline);
        let is_rejected = model.records[id].state == State::Rejected;
        let was_present = !is_rejected && model.remove_key(key);
        if !is_rejected {
            model.keys.insert(key, id);
        }
        drop(model);

        let task = Task { id, behaviour, script: self.clone() };
        match keyed.schedule(key, move |key| task.run_keyed(key), delay) {
            Ok(replaced) => assert_eq!((replaced, is_rejected), (was_present, false)),
            Err(error) => self.model().expect_rejection(&error),
        }
        assert_eq!(self.model().records[id].task_is_dropped, is_rejected);
    }

    /// Cancels all timeouts by key.
    pub(super) fn drop_keyed(&self) {
        let mut model = self.model();
        model.remove_all_keys();
        let keyed = model.keyed.take();
        drop(model);
        drop(keyed);
    }
}

impl Task {
    /// A run of a task with a key.
    fn run_keyed(self, key: u8) {
        {
            let mut model = self.script.model();
            if !model.has_executor {
                model.fire(self.id);
            }
            let record = &mut model.records[self.id];
            assert_eq!(record.state, State::HandedOver);
            assert!(matches!(record.kind, Kind::Keyed(own) if own == key));
            record.state = State::Ran;
            assert!(model.free_key(self.id), "task {} runs although it was replaced", self.id);
        }
        self.act();
    }
}
