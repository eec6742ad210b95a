//! The page of what all nodes are doing now.

use std::time::Duration;

use hashed_wheel_job_scheduler::{ActiveRun, Error, NodeLoad, Overview};

use super::app::App;
use super::html::{Html, put, put_run_state, put_time};
use super::layout::{Page, Tab};
use super::problem::Problem;
use super::runs::put_failures;
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
    let failures = app.jobs.failures(&reader, None, FAILURES).await?;
    reader.rollback().await.map_err(Error::from)?;
    lease.keep();

    let mut body = Html::default();
    put!(body, "<h1 class=\"hidden\">Overview</h1>");
    put_tiles(&mut body, &overview);
    put_nodes(&mut body, &overview);
    put_running(&mut body, &overview);
    put!(body, "<section><h2>Latest failures</h2>");
    put_failures(app, &mut body, &failures, overview.now);
    put!(body, "</section>");
    put_next(&mut body, &overview);
    put!(body, "<p class=\"faint\">Database time " {format_args!("{:.0}", overview.now)} "</p>");
    Ok(Page {
        title: "Overview".into(),
        tab: Tab::Overview,
        refresh: true,
        body,
    })
}

fn put_tiles(html: &mut Html, overview: &Overview) {
    let running: u64 = overview.nodes.iter().map(|load| load.running).sum();
    let claimed: u64 = overview.nodes.iter().map(|load| load.claimed).sum();
    let [p50, p99, max] = overview.lateness.map(Rounded);
    put!(html, "<div class=\"tiles\">");
    put_tile(
        html,
        "Jobs",
        &at_most_10_000(overview.jobs),
        "",
        "Stored jobs",
    );
    put_tile(
        html,
        "Running",
        &running.to_string(),
        "",
        "Executions on all nodes",
    );
    put_tile(
        html,
        "Claimed",
        &claimed.to_string(),
        "",
        "Read ahead by a node, not yet started",
    );
    put_tile(
        html,
        "Waiting",
        &at_most_10_000(overview.waiting),
        "",
        "For any node",
    );
    put_tile(
        html,
        "Blocked",
        &at_most_10_000(overview.blocked),
        "",
        "For the end of other runs, or for a rate",
    );
    put!(
        html,
        "</div><h2 class=\"tiles\">Last 10 seconds</h2><div class=\"tiles\">"
    );
    put_tile(html, "Done", &overview.done.to_string(), "", "Succeeded");
    let is_bad = if overview.failed > 0 { "bad" } else { "" };
    put_tile(
        html,
        "Failed",
        &overview.failed.to_string(),
        is_bad,
        "Failed without a retry left, or abandoned",
    );
    put_tile(
        html,
        "Skipped",
        &overview.omitted.to_string(),
        "",
        "Skipped or cancelled",
    );
    for (name, lateness) in [("Lateness p50", p50), ("p99", p99), ("max", max)] {
        let is_late = if lateness.0 > LATE { "warn" } else { "" };
        put_tile(
            html,
            name,
            &lateness.to_string(),
            is_late,
            "How much later than due the runs have started",
        );
    }
    put!(html, "</div>");
}

fn put_tile(
    html: &mut Html,
    name: &'static str,
    value: &str,
    class: &'static str,
    tip: &'static str,
) {
    put!(html, "<div class=\"tile " {class} "\" title=\"" {tip} "\"><span>" {name} "</span><b>" {value} "</b></div>");
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
    put!(html, "<table><thead><tr><th class=\"number\">Node<th>Name<th>Lease"
        "<th class=\"number\">Running<th class=\"number\">Claimed</tr></thead><tbody>");
    for NodeLoad {
        node,
        running,
        claimed,
        ..
    } in &overview.nodes
    {
        put!(html, "<tr><td class=\"number\">" {node.id} "<td>" {&node.name} "<td>");
        if node.is_alive {
            put!(html, "<b class=\"badge good\">alive</b> "
                {Rounded(time_between(overview.now, node.alive_until))} " left");
        } else {
            put!(html, "<b class=\"badge bad\">lost</b> "
                {Rounded(time_between(node.alive_until, overview.now))} " ago");
        }
        put!(html, "<td class=\"number\">" {running} "<td class=\"number\">" {claimed} "</tr>");
    }
    put!(html, "</tbody></table></section>");
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
