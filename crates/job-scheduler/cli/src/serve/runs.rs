//! Runs: lists of them, the page of one, and the page of failures.

use std::collections::HashMap;
use std::fmt::{self, Display};

use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{Error, RunFilter, RunInfo, RunPage, RunState, RunSummary};

use super::actions::put_notice;
use super::app::App;
use super::database::now;
use super::html::{Cut, Html, InQuery, put, put_exact_time, put_run_state, put_time};
use super::layout::{Page, Tab};
use super::problem::Problem;
use crate::filter::{NAMES, STATES, changes, filter, in_range};
use crate::text::Runs;
use crate::time::{Rounded, time_between};

type Fields = HashMap<String, String>;

/// The runs of a page.
pub(crate) const ROWS: u32 = 50;

/// The characters of a document that a page shows.
pub(crate) const MAX_TEXT: usize = 20_000;

/// The runs that one change may have.
pub(crate) const MOST: u32 = 10_000;

/// What a user has asked to change: all runs of a filter, and a confirmation is missing.
struct Question {
    change: &'static str,
    runs: Vec<i64>,
    /// There are later runs on the pages before this one.
    is_later_page: bool,
    /// There may be more that match.
    is_cut: bool,
}

/// The page of the runs that match a filter. The query may have `before`, the time and the number
/// of a run, and `change`, which asks whether all runs of the filter should be changed.
pub(crate) async fn all(app: &App, query: &Fields) -> Result<Page, Problem> {
    let before = query.get("before").map(|text| cursor(text)).transpose()?;
    let mut lease = app.database.lease().await?;
    let reader = lease.read().await?;
    let now = now(&reader).await?;
    let filter = filter(query, now).map_err(Problem::bad)?;
    let page = app.jobs.search_runs(&reader, &filter, before, ROWS).await?;
    let changes = changes(&filter);
    let change = query.get("change").filter(|_| app.guard.allows_changes());
    let asked = change.and_then(|change| {
        let known = changes.iter().find(|(name, _)| name == change);
        known.map(|(name, _)| *name)
    });
    // From the first run on, as a retry and a deletion do: a call examines a limited number of runs.
    let question = match (asked, page.runs.first()) {
        (Some(change), Some(first)) => {
            let from = Some(before_which(first));
            let all = app.jobs.search_runs(&reader, &filter, from, MOST);
            let all = all.await?;
            Some(Question {
                change,
                runs: numbers(&all),
                is_later_page: before.is_some(),
                is_cut: all.next.is_some() || all.is_cut,
            })
        }
        _ => None,
    };
    reader.rollback().await.map_err(Error::from)?;
    lease.keep();

    let mut body = Html::default();
    put_notice(&mut body, query);
    put!(body, "<section><h1>Runs</h1>");
    put_filter(&mut body, query);
    if let (Some(question), Some(first)) = (&question, page.runs.first()) {
        put_question(app, &mut body, query, &filter, question, first);
    } else if app.guard.allows_changes() && !page.runs.is_empty() {
        put!(body, "<div class=\"actions\">");
        for (change, _) in &changes {
            put!(body, "<a href=\"/runs?" {Address(query)});
            if let Some(before) = query.get("before") {
                put!(body, "before=" {InQuery(before)} "&amp;");
            }
            let which = if before.is_some() {
                "all from here on…"
            } else {
                "all…"
            };
            put!(body, "change=" {change} "\">" {change} " " {which} "</a>");
        }
        put!(body, "</div>");
    }
    if page.runs.is_empty() && page.next.is_some() {
        put!(
            body,
            "<p class=\"none\">None of these 10 000 runs matches. There are older ones.</p>"
        );
    } else if !page.is_cut || !page.runs.is_empty() {
        put_runs_of_all_jobs(app, &mut body, &page.runs, now);
    }
    if page.is_cut {
        put!(
            body,
            "<p class=\"none\">Only 10 000 runs were examined. Others may match: filter by Kind, Since or Until.</p>"
        );
    }
    put!(body, "</section><nav class=\"pages\">");
    if before.is_some() {
        put!(body, "<a href=\"/runs?" {Address(query)} "\">Latest</a>");
    }
    if let Some((time, run)) = page.next {
        let next = format!("{time}_{run}");
        put!(body, "<a href=\"/runs?" {Address(query)} "before=" {InQuery(&next)} "\">Older</a>");
    }
    put!(body, "</nav>");
    // A search reads up to 10 000 runs, so only the first page is shown again and again.
    let refresh = before.is_none() && question.is_none() && filter == RunFilter::default();
    Ok(Page {
        title: "Runs".into(),
        tab: Tab::Runs,
        refresh,
        has_fields: true,
        body,
    })
}

fn put_filter(html: &mut Html, query: &Fields) {
    put!(html, "<div class=\"forms\"><form action=\"/runs\"><label>State <select name=\"state\">"
        "<option value=\"\">failed or abandoned</option>");
    for state in STATES.map(|state| state.to_string()) {
        put!(html, "<option");
        if query.get("state").is_some_and(|chosen| *chosen == state) {
            put!(html, " selected");
        }
        put!(html, ">" {&state} "</option>");
    }
    put!(html, "</select></label>");
    for (name, label, tip) in [
        ("kind", "Kind", "The name of the handler"),
        ("node", "Node", "The number of the last node"),
        ("key", "Key", "The beginning of the key of the job"),
        ("limit", "Limit", "The name of a limit of the job"),
        (
            "since",
            "Since",
            "A date or a time (UTC), or 8h for eight hours ago",
        ),
        (
            "until",
            "Until",
            "A date or a time (UTC), or 8h for eight hours ago",
        ),
        ("error", "Error", "A part of the error"),
    ] {
        let value = query.get(name).map_or("", String::as_str);
        put!(html, "<label title=\"" {tip} "\">" {label} " <input name=\"" {name} "\" size=\"12\" value=\"" {value} "\"></label>");
    }
    put!(html, "<button>Filter</button></form></div>");
}

/// The `before` of a search in which this run is the first one.
fn before_which(first: &RunSummary) -> (Timestamp, i64) {
    (first.finished.unwrap_or(first.start_at), first.id + 1)
}

/// Appends the form that changes all runs of the filter, up to this first one.
fn put_question(
    app: &App,
    html: &mut Html,
    query: &Fields,
    filter: &RunFilter,
    question: &Question,
    first: &RunSummary,
) {
    let Question { change, runs, .. } = question;
    let (time, id) = before_which(first);
    let count = Runs(runs.len() as u64);
    put!(html, "<form class=\"question\" method=\"post\" action=\"/runs\"><p>" {change} " " {&count} "? ");
    if question.is_later_page {
        put!(html, "Those of the pages before this one are not changed. ");
    }
    if question.is_cut {
        put!(html, "More may match: at most 10 000 runs are examined. ");
    }
    put!(html, "Later runs are not changed. ");
    put!(html, {match *change {
        "cancel" => "Those that have ended or changed meanwhile are left out.",
        "delete" => "Their jobs are deleted, too, if they have no further due time and no other run. \
            If one has changed meanwhile, nothing is done.",
        _ => "If one has changed meanwhile, nothing is done.",
    }} "</p>");
    let runs: Vec<_> = runs.iter().map(ToString::to_string).collect();
    let mut hidden = vec![
        ("form", app.guard.form().to_owned()),
        ("change", (*change).to_owned()),
        ("runs", runs.join(" ")),
        ("before", format!("{time}_{id}")),
    ];
    for name in NAMES {
        // A time that is relative would be another one after the confirmation.
        let text = match name {
            "since" => filter.since.map(|time| time.to_string()),
            "until" => filter.until.map(|time| time.to_string()),
            _ => query.get(name).cloned(),
        };
        hidden.push((name, text.unwrap_or_default()));
    }
    for (name, value) in hidden {
        put!(html, "<input type=\"hidden\" name=\"" {name} "\" value=\"" {value} "\">");
    }
    put!(html, "<button>" {change} " " {count} "</button></form>");
}

/// The fields of a filter in an address, each with `&` after it.
pub(crate) struct Address<'a>(pub(crate) &'a Fields);

impl Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = NAMES
            .iter()
            .filter_map(|name| Some((name, self.0.get(*name)?)));
        fields
            .filter(|(_, text)| !text.is_empty())
            .try_for_each(|(name, text)| write!(f, "{name}={}&", InQuery(text)))
    }
}

/// The numbers of the runs, in their order. A confirmation contains them.
pub(crate) fn numbers(page: &RunPage) -> Vec<i64> {
    let mut runs: Vec<_> = page.runs.iter().map(|run| run.id).collect();
    runs.sort_unstable();
    runs
}

/// The page of a run.
pub(crate) async fn one(app: &App, run: i64, query: &Fields) -> Result<Page, Problem> {
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
    if !run.failures.is_empty() {
        put!(body, "<h2>Failed attempts</h2><table><thead><tr><th class=\"number\">Attempt<th class=\"number\">Node"
            "<th>Ended<th>Duration<th>Error</tr></thead><tbody>");
    }
    for failure in &run.failures {
        put!(body, "<tr><td class=\"number\">" {failure.attempt} "<td class=\"number\">" {failure.node} "<td>");
        put_exact_time(&mut body, failure.ended, now);
        put!(body, "<td>" {Rounded(time_between(failure.started, failure.ended))}
            "<td class=\"wrap\">" {&failure.error} "</tr>");
    }
    if !run.failures.is_empty() {
        put!(body, "</tbody></table>");
    }
    if let Some(output) = &run.output {
        put!(body, "<h2>Output</h2><pre>" {Cut(format_args!("{output:#}"), MAX_TEXT)} "</pre>");
    }
    put!(body, "</section>");
    let refresh = run.finished.is_none();
    Ok(Page {
        title: format!("Run {}", run.id),
        tab: Tab::Jobs,
        refresh,
        has_fields: false,
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

/// Appends the table of runs of all jobs.
pub(crate) fn put_runs_of_all_jobs(
    app: &App,
    html: &mut Html,
    runs: &[RunSummary],
    now: Timestamp,
) {
    if runs.is_empty() {
        return put!(html, "<p class=\"none\">No run matches.</p>");
    }
    put!(html, "<table><thead><tr><th class=\"number\">Job<th>Kind<th>Key<th class=\"number\">Run<th>State<th>Time"
        "<th class=\"number\">Node<th class=\"number\">Attempt<th>Error");
    if app.guard.allows_changes() {
        put!(html, "<th>");
    }
    put!(html, "</tr></thead><tbody>");
    for run in runs {
        put!(html, "<tr><td class=\"number\"><a href=\"/jobs/" {run.job} "\">" {run.job} "</a><td>" {&run.handler}
            "<td>" {Cut(run.key.as_deref().unwrap_or_default(), 40)}
            "<td class=\"number\"><a href=\"/runs/" {run.id} "\">" {run.id} "</a><td>");
        put_run_state(html, run.state);
        put!(html, "<td>");
        put_time(html, run.finished.unwrap_or(run.start_at), now);
        put!(html, "<td class=\"number\">" {run.node.map_or_else(String::new, |node| node.to_string())}
            "<td class=\"number\">" {run.attempt});
        put_error(html, run);
        if app.guard.allows_changes() {
            put!(html, "<td class=\"number\">");
            if is_repeatable(run.state) {
                app.put_button(html, &format!("/runs/{}/retry", run.id), "Retry");
            }
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

pub(crate) fn cursor(text: &str) -> Result<(Timestamp, i64), Problem> {
    let parts = text
        .split_once('_')
        .and_then(|(time, run)| Some((time.parse().ok()?, run.parse().ok()?)));
    let (time, run) = parts.ok_or_else(|| {
        Problem::bad("'before' must be a time and the number of a run: 2026-01-31T12:00:00Z_7")
    })?;
    Ok((in_range(time).map_err(Problem::bad)?, run))
}
