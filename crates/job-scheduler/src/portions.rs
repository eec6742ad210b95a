//! How much the duties of the connection that reads do at a time.

use crate::settings::Settings;
use crate::store::Portion;

/// The maximum number of results that are removed at a time.
const CLEANING_BATCH: usize = 2_000;

/// The number of places that are settled at a time. With zero, a name is passed over.
const SETTLING_BATCH: usize = 1_000;

/// How much each of these duties does at a time. It outlives a session.
#[derive(Debug)]
pub(crate) struct Portions {
    pub(crate) claim: Portion,
    pub(crate) read: Portion,
    pub(crate) plan: Portion,
    pub(crate) settle: Portion,
    pub(crate) clean: Portion,
}

impl Portions {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            claim: Portion::new(1, settings.batch),
            read: Portion::new(1, settings.batch),
            plan: Portion::new(1, settings.batch),
            settle: Portion::new(0, SETTLING_BATCH),
            clean: Portion::new(1, CLEANING_BATCH),
        }
    }

    /// A session has failed, perhaps because of one of them. The next one begins with less.
    pub(crate) fn failed(&mut self) {
        for portion in [
            &mut self.claim,
            &mut self.read,
            &mut self.plan,
            &mut self.settle,
            &mut self.clean,
        ] {
            portion.learn(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_after_a_failure_begins_with_less() {
        let mut portions = Portions::new(&Settings {
            batch: 1_000,
            ..Settings::default()
        });
        portions.failed();
        portions.failed();
        assert_eq!((portions.read.rows, portions.clean.rows), (250, 500));
        portions.read.learn(false);
        assert_eq!(portions.read.rows, 282);
    }
}
