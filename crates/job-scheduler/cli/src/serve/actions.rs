//! The requests that change something.

use std::collections::HashMap;

use axum::extract::{Extension, Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use hashed_wheel_job_scheduler::{Cancellation, Error, RunChange};
use tokio_postgres::Transaction;

use super::app::{App, Posted, Shared, number};
use super::database::now;
use super::guard::Caller;
use super::html::{Html, put};
use super::problem::Problem;
use super::runs::{Address, MOST, cursor, numbers};
use crate::filter::{changes, filter};
use crate::text::Runs;

/// Changes a job or a run, at addresses such as `/jobs/7/pause`. Then the browser goes to its page.
pub(crate) async fn act(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((kind, id, action)): Path<(String, String, String)>,
    Posted(fields): Posted,
) -> Response {
    let changed = app.limited_change(async {
        let form = fields.get("form").map(String::as_str);
        app.guard.check_form(caller, form)?;
        let id = number(&id)?;
        let mut lease = app.database.lease().await?;
        let mut transaction = lease.change().await?;
        change(&app, &mut transaction, &kind, id, &action).await?;
        transaction.commit().await.map_err(Error::from)?;
        lease.keep();
        Ok(if action == "delete" {
            "/jobs?done=delete".into()
        } else {
            format!("/{kind}/{id}?done={action}")
        })
    });
    match changed.await {
        Ok(target) => Redirect::to(&target).into_response(),
        Err(problem) => app.problem(&problem),
    }
}

/// Changes exactly the runs that were confirmed, or none. Of those that should be cancelled, it
/// leaves out the ones that have ended or changed meanwhile, because a queue does not stand still.
pub(crate) async fn act_on_all(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Posted(fields): Posted,
) -> Response {
    let changed = app.limited_change(async {
        let field = |name| fields.get(name).map(String::as_str);
        app.guard.check_form(caller, field("form"))?;
        let mut lease = app.database.lease().await?;
        let transaction = lease.change().await?;
        let filter = filter(&fields, now(&transaction).await?).map_err(Problem::bad)?;
        let before = field("before").map(cursor).transpose()?;
        let (name, change) = changes(&filter)
            .into_iter()
            .find(|(name, _)| field("change") == Some(*name))
            .ok_or_else(|| Problem::bad("The state of these runs allows no such 'change'."))?;
        let confirmed = confirmed(field("runs").unwrap_or_default())?;
        // A second search would not find all of them: other runs may come first by now.
        let is_cancellation = matches!(change, RunChange::Cancel(_));
        let is_confirmed = is_cancellation || {
            let page = app.jobs.search_runs(&transaction, &filter, before, MOST);
            numbers(&page.await?) == confirmed
        };
        let mut count = 0;
        if is_confirmed {
            count = app
                .jobs
                .change_runs(&transaction, change, &confirmed)
                .await?;
        }
        if count == 0 || (count != confirmed.len() as u64 && !is_cancellation) {
            return Err(Problem::conflict(
                "These are not the runs that were confirmed: some of them have changed meanwhile. \
                 Nothing was done.",
            ));
        }
        transaction.commit().await.map_err(Error::from)?;
        lease.keep();
        Ok(format!(
            "/runs?{}done={name}&count={count}&of={}",
            Address(&fields),
            confirmed.len()
        ))
    });
    match changed.await {
        Ok(target) => Redirect::to(&target).into_response(),
        Err(problem) => app.problem(&problem),
    }
}

/// Reads the numbers of the runs that a user has confirmed.
fn confirmed(text: &str) -> Result<Vec<i64>, Problem> {
    let mut runs = Vec::new();
    for number in text.split_ascii_whitespace() {
        let run = number.parse();
        runs.push(run.map_err(|_| {
            Problem::bad(format!(
                "'runs' has '{number}', and must be the numbers of the confirmed runs, with spaces \
                 between them."
            ))
        })?);
    }
    runs.sort_unstable();
    runs.dedup();
    if runs.len() > MOST as usize {
        return Err(Problem::bad(format!(
            "'runs' has more than {MOST} numbers."
        )));
    }
    Ok(runs)
}

async fn change(
    app: &App,
    transaction: &mut Transaction<'_>,
    kind: &str,
    id: i64,
    action: &str,
) -> Result<(), Problem> {
    let jobs = &app.jobs;
    let found = match (kind, action) {
        ("jobs", "pause") => jobs.pause(transaction, id).await?,
        ("jobs", "resume") => jobs.resume(transaction, id).await?,
        ("jobs", "run") => jobs.run_now(transaction, id).await?.is_some(),
        ("jobs", "delete") => jobs.delete(transaction, id).await?,
        ("runs", "cancel") => match jobs.cancel(transaction, id).await? {
            Some(Cancellation::Ended) => {
                return Err(Problem::conflict(format!("Run {id} has ended before.")));
            }
            outcome => outcome.is_some(),
        },
        ("runs", "retry") => {
            let is_repeated = jobs.retry(transaction, id).await?;
            if !is_repeated && jobs.get_run(transaction, id).await?.is_some() {
                let why = format!("Run {id} has not ended, or it was done or skipped.");
                return Err(Problem::conflict(why));
            }
            is_repeated
        }
        _ => {
            return Err(Problem::not_found(format!(
                "There is no action '{action}'."
            )));
        }
    };
    let name = kind.trim_end_matches('s');
    if found {
        Ok(())
    } else {
        Err(Problem::not_found(format!("There is no {name} {id}.")))
    }
}

/// Appends what the last action has done, on the page after it.
pub(crate) fn put_notice(html: &mut Html, query: &HashMap<String, String>) {
    let notice = match query.get("done").map(String::as_str) {
        Some("pause") => "The job is paused.",
        Some("resume") => "The job is resumed.",
        Some("run") => "A run of the job is requested.",
        Some("delete") => "The job is deleted.",
        Some("cancel") => "The run is cancelled. If it was executing, its handler is told.",
        Some("retry") => "The run is repeated.",
        Some("limit") => "The limit is set. Runs that wait for it start within a heartbeat.",
        _ => return,
    };
    put!(html, "<p class=\"notice\" role=\"status\">");
    let number = |name| query.get(name)?.parse::<u64>().ok();
    match (number("count"), number("of")) {
        (Some(count), Some(of)) if count != of => {
            put!(html, "Done: " {Runs(count)} " of " {of} ". The others had ended or changed before.");
        }
        (Some(count), _) => put!(html, "Done: " {Runs(count)} "."),
        _ => put!(html, { notice }),
    }
    put!(html, "</p>");
}
