//! The requests that change something.

use std::collections::HashMap;

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{Extension, Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use hashed_wheel_job_scheduler::{Cancellation, Error};
use tokio_postgres::Transaction;

use super::app::{App, Shared, number};
use super::guard::Caller;
use super::html::{Html, put};
use super::problem::Problem;

type Fields = Result<Form<HashMap<String, String>>, FormRejection>;

/// Changes a job or a run, at addresses such as `/jobs/7/pause`. Then the browser goes to its page.
pub(crate) async fn act(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((kind, id, action)): Path<(String, String, String)>,
    fields: Fields,
) -> Response {
    let changed = app.limited(async {
        let form = fields
            .as_ref()
            .ok()
            .and_then(|Form(fields)| fields.get("form"));
        app.guard.check_form(caller, form.map(String::as_str))?;
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
        _ => return,
    };
    put!(html, "<p class=\"notice\" role=\"status\">" {notice} "</p>");
}
