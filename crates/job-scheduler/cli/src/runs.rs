//! The runs that match a filter: a list of them, and a change of all.

use std::collections::HashMap;

use hashed_wheel_job_scheduler::{Error, Jobs, RunChange, RunFilter, RunSummary};
use tokio_postgres::{Client, GenericClient};

use crate::text::{Runs, print_line};
use crate::{Failure, filter};

/// Reads a field of a filter.
pub(crate) fn field(text: &str) -> Result<(String, String), String> {
    let (name, text) = text
        .split_once('=')
        .filter(|(name, _)| filter::NAMES.contains(name))
        .ok_or_else(|| format!("must be like 'kind=mail', with one of {:?}", filter::NAMES))?;
    if text.is_empty() {
        return Err(format!("must have a text after '{name}='"));
    }
    Ok((name.into(), text.into()))
}

/// Returns the fields of a filter by their names.
pub(crate) fn fields(given: Vec<(String, String)>) -> Result<HashMap<String, String>, String> {
    let mut fields = HashMap::new();
    for (name, text) in given {
        if fields.contains_key(&name) {
            return Err(format!("'{name}=' is given twice: must be given once"));
        }
        fields.insert(name, text);
    }
    Ok(fields)
}

/// How many runs a command changes at most.
const MOST: u32 = 10_000;

/// Returns the runs that match, the latest first, and why these may not be all of them.
async fn matching(
    jobs: &Jobs,
    client: &impl GenericClient,
    filter: &RunFilter,
) -> Result<(Vec<RunSummary>, Option<&'static str>), Error> {
    let (mut runs, mut next) = (Vec::new(), None);
    loop {
        let page = jobs.search_runs(client, filter, next, MOST + 1).await?;
        runs.extend(page.runs);
        next = page.next;
        let why = match page.is_cut {
            _ if runs.len() > MOST as usize => {
                Some("more than 10000 runs match: narrow the filter, as by since= or until=")
            }
            true => Some(
                "only 10000 runs were examined, and others may match: narrow the filter by kind=, \
                 since= or until=",
            ),
            false => None,
        };
        if why.is_some() || next.is_none() {
            return Ok((runs, why));
        }
    }
}

/// Prints the runs that match, at most `limit`, and how many there are.
pub(crate) async fn list(
    jobs: &Jobs,
    client: &Client,
    filter: &RunFilter,
    limit: u32,
) -> Result<(), Error> {
    let (runs, why) = matching(jobs, client, filter).await?;
    for run in runs.iter().take(limit as usize) {
        let time = run.finished.unwrap_or(run.start_at);
        let state = run.state;
        print_line!(
            "{:>8}  job {}  {time:.0}  {state:9}  node {}  attempt {}  {}  {}  {}",
            run.id,
            run.job,
            run.node.unwrap_or(0),
            run.attempt,
            run.handler,
            run.key.as_deref().unwrap_or("-"),
            run.error.as_deref().unwrap_or_default()
        );
    }
    match why {
        None => print_line!("matching: {}", Runs(runs.len() as u64)),
        Some(why) => print_line!("{why}"),
    }
    Ok(())
}

/// Changes exactly this many runs, or none. Those that should be cancelled may have ended, or have
/// started, before: a queue does not stand still.
pub(crate) async fn change(
    jobs: &Jobs,
    client: &mut Client,
    filter: &RunFilter,
    change: RunChange,
    count: usize,
) -> Result<(), Failure> {
    let transaction = client.transaction().await?;
    let (runs, why) = matching(jobs, &transaction, filter).await?;
    if let Some(why) = why {
        return Err(format!("{why}. Nothing is changed").into());
    }
    if runs.len() != count {
        let matching = Runs(runs.len() as u64);
        return Err(
            format!("the filter matches {matching}, not {count}: nothing is changed").into(),
        );
    }
    let runs: Vec<_> = runs.iter().map(|run| run.id).collect();
    let changed = jobs.change_runs(&transaction, change, &runs).await?;
    let may_be_less = matches!(change, RunChange::Cancel(_)) && changed > 0;
    if changed != count as u64 && !may_be_less {
        return Err(format!("only {changed} of them can be changed: nothing is changed").into());
    }
    transaction.commit().await?;
    print_line!("changed: {} of {count}", Runs(changed));
    Ok(())
}
