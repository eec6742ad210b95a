//! The page of what all nodes are doing now.

use std::time::Duration;

use hashed_wheel_job_scheduler::{ActiveRun, Error, Minute, Overview, RunFilter};

use super::app::App;
use super::html::{Cut, Html, put, put_run_state, put_time};
use super::layout::{Page, Tab};
use super::problem::Problem;
use super::runs::put_runs_of_all_jobs;
use crate::time::{Rounded, time_between};

/// The length of the lists.
const ROWS: u32 = 20;

/// The latest failures: less than their page has.
const FAILURES: u32 = 5;

/// From this time on, what should have started is late. It is a heartbeat and some time to start.
const LATE: Duration = Duration::from_secs(1);

pub(crate) async fn page(app: &App) -> Result<Page, Problem> {
    let mut lease = app.database.lease().await?;
    let reader = lease.read().await?;
    let overview = app.jobs.overview(&reader, ROWS).await?;
    let filter = RunFilter::default();
    let failures = app
        .jobs
        .search_runs(&reader, &filter, None, FAILURES)
        .await?
        .runs;
    reader.rollback().await.map_err(Error::from)?;
    lease.keep();

    let mut body = Html::default();
    put!(body, "<h1 class=\"hidden\">Overview</h1>");
    put_tiles(&mut body, &overview);
    put_chart(&mut body, &overview.hour);
    put_nodes(&mut body, &overview);
    put_running(&mut body, &overview);
    put!(body, "<section><h2>Latest failures</h2>");
    put_runs_of_all_jobs(app, &mut body, &failures, overview.now);
    put!(body, "</section>");
    put_next(&mut body, &overview);
    put!(body, "<p class=\"faint\">Database time " {format_args!("{:.0}", overview.now)} "</p>");
    Ok(Page {
        title: "Overview".into(),
        tab: Tab::Overview,
        refresh: true,
        has_fields: false,
        body,
    })
}

fn put_tiles(html: &mut Html, overview: &Overview) {
    let running: u64 = overview.nodes.iter().map(|node| node.running).sum();
    let claimed: u64 = overview.nodes.iter().map(|node| node.claimed).sum();
    put!(html, "<div class=\"tiles\">");
    for (name, count, tip) in [
        ("Jobs", overview.jobs, "Stored jobs"),
        ("Running", running, "Executions on all nodes"),
        ("Claimed", claimed, "Read ahead by a node, not yet started"),
        ("Waiting", overview.waiting, "For any node"),
        (
            "Blocked",
            overview.blocked,
            "For the end of other runs, or for a rate",
        ),
    ] {
        put!(html, "<div class=\"tile\" title=\"" {tip} "\"><span>" {name} "</span><b>" {at_most_10_000(count)} "</b></div>");
    }
    put!(html, "</div>");
}

/// Appends a bar for each minute, and a line for the lateness below.
fn put_chart(html: &mut Html, hour: &[Minute]) {
    let most = hour
        .iter()
        .map(|minute| minute.done + minute.failed)
        .max()
        .unwrap_or(0);
    let latest = hour
        .iter()
        .map(|minute| minute.lateness)
        .max()
        .unwrap_or_default();
    let failed: u64 = hour.iter().map(|minute| minute.failed).sum();
    let at_least = |has_more| if has_more { "at least " } else { "" };
    let is_cut = hour.iter().any(|minute| minute.has_more);
    put!(html, "<section><h2>Last hour</h2><svg viewBox=\"0 0 600 130\" role=\"img\" aria-label=\""
        {at_least(is_cut)} {failed} " runs have failed\">");
    let mut line = String::new();
    for (index, minute) in hour.iter().enumerate() {
        let height = |count: u64| 80.0 * count as f64 / most.max(1) as f64;
        let (done, failed) = (height(minute.done), height(minute.failed));
        put!(html, "<g><title>" {59 - index} " minutes ago: " {at_least(minute.has_more)} {minute.done} " done, " {minute.failed}
            " failed, lateness p99 " {Rounded(minute.lateness)} "</title>");
        for (class, from, height) in [("done", failed, done), ("failed", 0.0, failed)] {
            put!(html, "<rect class=\"" {class} "\" width=\"8\" x=\"" {index * 10} "\" y=\"" {format_args!("{:.1}", 80.0 - from - height)}
                "\" height=\"" {format_args!("{height:.1}")} "\"/>");
        }
        put!(html, "</g>");
        let share = minute.lateness.as_secs_f64() / latest.as_secs_f64().max(1e-6);
        line += &format!("{},{:.1} ", index * 10 + 4, 128.0 - 40.0 * share);
    }
    put!(html, "<polyline class=\"" {if latest > LATE { "late" } else { "" }} "\" points=\"" {line} "\"/></svg><p class=\"faint\">"
        "Bars: done and failed per minute, at most " {most} ". ");
    if is_cut {
        put!(html, "Only the last 2000 runs of each minute are counted. ");
    }
    put!(html, "Line: lateness (p99), at most " {Rounded(latest)} ".</p></section>");
}

fn at_most_10_000(count: u64) -> String {
    if count >= 10_000 {
        "10000+".into()
    } else {
        count.to_string()
    }
}

fn put_nodes(html: &mut Html, overview: &Overview) {
    put!(html, "<section><h2>Nodes</h2>");
    if overview.nodes.is_empty() {
        return put!(html, "<p class=\"none\">No node is running.</p></section>");
    }
    put!(html, "<table><thead><tr><th class=\"number\">Node<th>Name<th>Lease<th class=\"number\">Running"
        "<th class=\"number\">Claimed<th class=\"number\">Ended<th class=\"number\">Failed<th>Median<th>Late"
        "<th>Kinds</tr></thead><tbody>");
    for node in &overview.nodes {
        put!(html, "<tr><td class=\"number\">" {node.id} "<td>" {&node.name} "<td>");
        if node.is_alive {
            put!(html, "<b class=\"badge good\">alive</b> "
                {Rounded(time_between(overview.now, node.alive_until))} " left");
        } else {
            put!(html, "<b class=\"badge bad\">lost</b> "
                {Rounded(time_between(node.alive_until, overview.now))} " ago");
        }
        let handlers = node.handlers.join(", ");
        put!(html, "<td class=\"number\">" {node.running} "<td class=\"number\">" {node.claimed}
            "<td class=\"number\">" {node.ended} "<td class=\"number\"><a href=\"/runs?node=" {node.id} "\">" {node.failed}
            "</a><td>" {Rounded(node.duration)} "<td>" {Rounded(node.lateness)}
            "<td class=\"long\" title=\"" {&handlers} "\">" {Cut(&handlers, 100)} "</tr>");
    }
    put!(html, "</tbody></table><p class=\"faint\">Ended, failed, the median of durations and the lateness (p99): "
        "of the last hour, among the last 10000 runs.</p></section>");
}

fn put_running(html: &mut Html, overview: &Overview) {
    put!(html, "<section><h2>Running</h2>");
    if overview.running.is_empty() {
        return put!(html, "<p class=\"none\">Nothing is running.</p></section>");
    }
    put!(html, "<table><thead><tr><th class=\"number\">Job<th>Kind<th class=\"number\">Run"
        "<th class=\"number\">Node<th>For<th class=\"number\">Attempt<th>Interrupted</tr></thead><tbody>");
    for run in &overview.running {
        let took = run.started.map_or(Duration::ZERO, |started| {
            time_between(started, overview.now)
        });
        put_job_and_kind(html, run);
        put_run_and_node(html, run);
        put!(html, "<td>" {Rounded(took)} "<td class=\"number\">" {run.attempt} "<td>");
        if run.interrupted > 0 {
            put!(html, "<b class=\"badge warn\">" {run.interrupted} "</b>");
        }
        put!(html, "</tr>");
    }
    put!(html, "</tbody></table></section>");
}

fn put_next(html: &mut Html, overview: &Overview) {
    put!(html, "<section><h2>Next</h2>");
    if overview.next.is_empty() {
        return put!(html, "<p class=\"none\">Nothing is due.</p></section>");
    }
    put!(html, "<table><thead><tr><th class=\"number\">Job<th>Kind<th class=\"number\">Run"
        "<th class=\"number\">Node<th>Start<th class=\"number\">Attempt<th>State</tr></thead><tbody>");
    for run in &overview.next {
        put_job_and_kind(html, run);
        put_run_and_node(html, run);
        let is_late = time_between(run.start_at, overview.now) > LATE;
        put!(html, "<td class=\"" {if is_late { "late" } else { "" }} "\">");
        put_time(html, run.start_at, overview.now);
        put!(html, "<td class=\"number\">" {run.attempt} "<td>");
        match run.state {
            Some(state) => put_run_state(html, state),
            None => put!(html, "<b class=\"badge\">not read</b>"),
        }
        put!(html, "</tr>");
    }
    put!(html, "</tbody></table></section>");
}

fn put_job_and_kind(html: &mut Html, run: &ActiveRun) {
    put!(html, "<tr><td class=\"number\"><a href=\"/jobs/" {run.job} "\">" {run.job} "</a><td>" {&run.handler});
}

fn put_run_and_node(html: &mut Html, run: &ActiveRun) {
    put!(html, "<td class=\"number\">");
    if let Some(number) = run.run {
        put!(html, "<a href=\"/runs/" {number} "\">" {number} "</a>");
    }
    put!(html, "<td class=\"number\">");
    if let Some(node) = run.node {
        put!(html, { node });
    }
}
