//! Safeguards that a run of the trial can omit, to show that it detects that.

use clap::ValueEnum;
use hashed_wheel_job_scheduler::SchedulerBuilder;

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Sabotage {
    /// A node does not check whether it still owns a run before it starts it.
    NoCheck,
    /// The runs of a lost node are not taken over.
    NoTakeover,
    /// An interrupted run is not marked.
    NoMark,
    /// A node waits for a job that another client has locked.
    NoSkip,
    /// A run starts although no place is free.
    NoSlot,
    /// The end of a run does not start the run that waits for it.
    NoHeir,
    /// Runs start although their handler has a rate.
    NoRate,
    /// A failed run is not repeated.
    NoRetry,
    /// A run that its handler postpones counts as failed.
    NoSnooze,
    /// Runs start 50 ms before they are due.
    Early,
    /// A run that a node has given back is not claimed by another one.
    NoReturn,
}

impl Sabotage {
    /// The fragments of statements that it changes, with what they become.
    fn changes(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::NoCheck => &[(
                "AND (run.owner, run.state) IS NOT DISTINCT FROM (the_node, 'claimed')
        AND EXISTS (SELECT FROM @node node WHERE node.id = the_node AND node.alive_until > clock_timestamp())",
                "",
            )],
            Self::NoTakeover => &[("AND run.handler = ANY (the_handlers)
                    ORDER BY run.priority DESC", "AND false ORDER BY run.priority DESC")],
            Self::NoMark => &[("WHEN 'running' THEN 1 ELSE 0", "WHEN 'running' THEN 0 ELSE 0")],
            Self::NoSkip => &[("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE")],
            Self::NoSlot => &[
                ("candidate.free[n] <= COALESCE((used ->> candidate.names[n])::integer, 0)", "false"),
                ("AND slot.place BETWEEN 1 AND needed.places", ""),
            ],
            Self::NoHeir => &[("run.state = 'blocked' AND run.blocked_on = the_name", "false")],
            Self::NoRate => &[
                ("IF has_blocked OR GREATEST(may_start, next_planned - slack) > the_time THEN", "IF false THEN"),
                ("IF may_start > the_time THEN", "IF false THEN"),
            ],
            Self::NoRetry => &[("WHEN result.retry <= the_prefetch THEN 'claimed' ELSE 'waiting'", "ELSE result.state")],
            Self::NoSnooze => &[("OR result.state = 'snoozed' THEN 0 ELSE 1", "THEN 0 ELSE 1")],
            Self::Early => &[("due, start_at, CASE WHEN is_skipped", "due, start_at - interval '50 ms', CASE WHEN is_skipped")],
            Self::NoReturn => &[("WHERE run.state = 'waiting' AND", "WHERE false AND run.state = 'waiting' AND")],
        }
    }

    pub(crate) fn apply(self, builder: SchedulerBuilder) -> SchedulerBuilder {
        let changes = self.changes().iter();
        changes.fold(builder, |builder, (original, replacement)| {
            builder.sabotage(*original, *replacement)
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn each_change_concerns_a_statement() {
        let folders = ["../migrations", "../src/store"]
            .map(|folder| format!("{}/{folder}", env!("CARGO_MANIFEST_DIR")));
        let files = folders
            .iter()
            .flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let texts: String = files
            .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
            .collect();
        for sabotage in Sabotage::value_variants() {
            for (original, _) in sabotage.changes() {
                assert!(texts.contains(original), "{sabotage:?}: {original}");
            }
        }
    }
}
