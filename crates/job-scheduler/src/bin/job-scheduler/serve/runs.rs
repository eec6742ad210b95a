//! Runs: lists of them, the page of one, and the page of failures.

use std::collections::HashMap;

use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{Error, RunInfo, RunState, RunSummary};

use super::actions::put_notice;
use super::app::App;
use super::database::now;
use super::html::{
    Cut, Html, InQuery, put, put_exact_time, put_run_state, put_time, put_time_or_none,
};
use super::layout::{Page, Tab};
use super::problem::Problem;
use crate::time::{Rounded, time_between};

/// The runs of a page.
pub(crate) const ROWS: u32 = 50;

/// The characters of a document that a page shows.
pub(crate) const MAX_TEXT: usize = 20_000;

/// The page of all runs that have failed. The query may have `before`: the end and the number of a
/// run.
pub(crate) async fn failures(app: &App, query: &HashMap<String, String>) -> Result<Page, Problem> {
    let before = query.get("before").map(|text| cursor(text)).transpose()?;
    let mut lease = app.database.lease().await?;
    let reader = lease.read().await?;
    let now = now(&reader).await?;
    let runs = app.jobs.failures(&reader, before, ROWS).await?;
    reader.rollback().await.map_err(Error::from)?;
    lease.keep();

    let mut body = Html::default();
    put!(body, "<section><h1>Failures</h1>");
    put_failures(app, &mut body, &runs, now);
    put!(body, "</section><nav class=\"pages\">");
    if before.is_some() {
        put!(body, "<a href=\"/failures\">Latest</a>");
    }
    if let Some((run, finished)) =
        end_of_page(&runs, ROWS).and_then(|run| Some((run, run.finished?)))
    {
        put!(body, "<a href=\"/failures?before=" {InQuery(&format!("{finished}_{}", run.id))} "\">Older</a>");
    }
    put!(body, "</nav>");
    Ok(Page {
        title: "Failures".into(),
        tab: Tab::Failures,
        refresh: before.is_none(),
        body,
    })
}

/// The page of a run.
pub(crate) async fn one(
    app: &App,
    run: i64,
    query: &HashMap<String, String>,
) -> Result<Page, Problem> {
    let mut lease = app.database.lease().await?;
    let reader = lease.read().await?;
    let now = now(&reader).await?;
    let found = app.jobs.get_run(&reader, run).await?;
    reader.rollback().await.map_err(Error::from)?;
    lease.keep();

    let run = found.ok_or_else(|| Problem::not_found(format!("There is no run {run}.")))?;
    let mut body = Html::default();
    put_notice(&mut body, query);
    put!(body, "<section><h1>Run " {run.id} " ");
    put_run_state(&mut body, run.state);
    put!(body, "</h1>");
    put!(body, "<div class=\"actions\">");
    if run.finished.is_none() {
        let question =
            "Cancel this run? If it is executing, its handler is told, and its result is lost.";
        app.put_button_that_asks(
            &mut body,
            &format!("/runs/{}/cancel", run.id),
            "Cancel",
            question,
        );
    } else if is_repeatable(run.state) {
        app.put_button(&mut body, &format!("/runs/{}/retry", run.id), "Retry");
    }
    put!(body, "</div>");
    put_properties(&mut body, &run, now);
    if let Some(error) = &run.error {
        put!(body, "<h2>Error</h2><pre class=\"error\">" {Cut(error, MAX_TEXT)} "</pre>");
    }
    if let Some(output) = &run.output {
        put!(body, "<h2>Output</h2><pre>" {Cut(&format!("{output:#}"), MAX_TEXT)} "</pre>");
    }
    put!(body, "</section>");
    let refresh = run.finished.is_none();
    Ok(Page {
        title: format!("Run {}", run.id),
        tab: Tab::Jobs,
        refresh,
        body,
    })
}

fn is_repeatable(state: RunState) -> bool {
    matches!(
        state,
        RunState::Failed | RunState::Abandoned | RunState::Cancelled
    )
}

fn put_properties(html: &mut Html, run: &RunInfo, now: Timestamp) {
    put!(html, "<dl><dt>Job<dd><a href=\"/jobs/" {run.job} "\">" {run.job} "</a>");
    let times = [
        ("Due", Some(run.due)),
        ("Not before", Some(run.start_at)),
        ("Started", run.started),
        ("Ended", run.finished),
        ("Stands for all due times before", run.misses_until),
    ];
    for (name, time) in times
        .into_iter()
        .filter_map(|(name, time)| Some((name, time?)))
    {
        put!(html, "<dt>" {name} "<dd>");
        put_exact_time(html, time, now);
    }
    put!(html, "<dt>Duration<dd>" {duration(run.started, run.finished)}
        "<dt>Attempt<dd>" {run.attempt} "<dt>Interrupted<dd>" {run.interrupted}
        "<dt>Taken over<dd>" {run.taken_over});
    if let Some(what) = &run.blocked_on {
        put!(html, "<dt>Waits for<dd>" {what});
    }
    if run.is_cancelled {
        put!(html, "<dt>Cancelled<dd>while it was running");
    }
    if let Some(node) = run.node {
        put!(html, "<dt>Node<dd>" {node});
    }
    put!(html, "</dl>");
}

/// Appends the table of the runs of a job.
pub(crate) fn put_runs(html: &mut Html, runs: &[RunSummary], now: Timestamp) {
    if runs.is_empty() {
        return put!(html, "<p class=\"none\">There are no runs.</p>");
    }
    put!(html, "<table><thead><tr><th class=\"number\">Run<th>State<th>Due<th>Late<th>Duration"
        "<th class=\"number\">Attempt<th class=\"number\">Node<th>Error</tr></thead><tbody>");
    for run in runs {
        put!(html, "<tr><td class=\"number\"><a href=\"/runs/" {run.id} "\">" {run.id} "</a><td>");
        put_run_state(html, run.state);
        put!(html, "<td>");
        put_time(html, run.due, now);
        let late = run
            .started
            .map(|started| Rounded(time_between(run.start_at, started)).to_string());
        put!(html, "<td>" {late.as_deref().unwrap_or_default()} "<td>" {duration(run.started, run.finished)}
            "<td class=\"number\">" {run.attempt} "<td class=\"number\">");
        if let Some(node) = run.node {
            put!(html, { node });
        }
        put_error(html, run);
        put!(html, "</tr>");
    }
    put!(html, "</tbody></table>");
}

/// Appends the table of runs that have failed.
pub(crate) fn put_failures(app: &App, html: &mut Html, runs: &[RunSummary], now: Timestamp) {
    if runs.is_empty() {
        return put!(html, "<p class=\"none\">There are no failures.</p>");
    }
    put!(html, "<table><thead><tr><th class=\"number\">Job<th>Kind<th class=\"number\">Run<th>State<th>Ended"
        "<th class=\"number\">Attempt<th>Error");
    if app.guard.allows_changes() {
        put!(html, "<th>");
    }
    put!(html, "</tr></thead><tbody>");
    for run in runs {
        put!(html, "<tr><td class=\"number\"><a href=\"/jobs/" {run.job} "\">" {run.job} "</a><td>" {&run.handler}
            "<td class=\"number\"><a href=\"/runs/" {run.id} "\">" {run.id} "</a><td>");
        put_run_state(html, run.state);
        put!(html, "<td>");
        put_time_or_none(html, run.finished, now);
        put!(html, "<td class=\"number\">" {run.attempt});
        put_error(html, run);
        if app.guard.allows_changes() {
            put!(html, "<td class=\"number\">");
            app.put_button(html, &format!("/runs/{}/retry", run.id), "Retry");
        }
        put!(html, "</tr>");
    }
    put!(html, "</tbody></table>");
}

fn put_error(html: &mut Html, run: &RunSummary) {
    let error = run.error.as_deref().unwrap_or_default();
    put!(html, "<td class=\"long\" title=\"" {error} "\">" {Cut(error, 100)});
}

/// Returns the last run of a page that may have a successor.
pub(crate) fn end_of_page(runs: &[RunSummary], rows: u32) -> Option<&RunSummary> {
    runs.last().filter(|_| runs.len() == rows as usize)
}

fn duration(started: Option<Timestamp>, finished: Option<Timestamp>) -> String {
    let took = started
        .zip(finished)
        .map(|(started, finished)| time_between(started, finished));
    took.map(|took| Rounded(took).to_string())
        .unwrap_or_default()
}

fn cursor(text: &str) -> Result<(Timestamp, i64), Problem> {
    let parts = text
        .split_once('_')
        .and_then(|(time, run)| Some((time.parse().ok()?, run.parse().ok()?)));
    parts.ok_or_else(|| {
        Problem::bad("'before' must be a time and the number of a run: 2026-01-31T12:00:00Z_7")
    })
}
