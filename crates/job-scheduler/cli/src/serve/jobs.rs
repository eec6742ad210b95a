//! The page of all jobs, and the page of one.

use std::collections::HashMap;

use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{Error, Job, JobFilter, JobPage, JobState};

use super::actions::put_notice;
use super::app::App;
use super::database::now;
use super::html::{Cut, Html, InQuery, put, put_exact_time, put_run_state, put_time_or_none};
use super::layout::{Page, Tab};
use super::problem::Problem;
use super::runs::{MAX_TEXT, end_of_page, put_runs};
use crate::filter::in_range;

/// The jobs, or the runs of a job, of a page.
const ROWS: u32 = 50;

const STATES: [JobState; 4] = [
    JobState::Scheduled,
    JobState::NoNextRun,
    JobState::Paused,
    JobState::Disabled,
];

/// The choice of the page of all jobs.
#[derive(Debug, Default)]
struct View {
    filter: JobFilter,
    after: i64,
}

impl View {
    fn parse(query: &HashMap<String, String>) -> Result<Self, Problem> {
        let get = |name| {
            query
                .get(name)
                .map(String::as_str)
                .filter(|value| !value.is_empty())
        };
        let state = |text: &str| {
            let known = STATES.into_iter().find(|state| state.to_string() == text);
            known.ok_or_else(|| {
                Problem::bad("'state' must be 'scheduled', 'no next run', 'paused' or 'disabled'.")
            })
        };
        let after = |text: &str| {
            text.parse()
                .map_err(|_| Problem::bad("'after' must be the number of a job."))
        };
        let mut filter = JobFilter::default();
        filter.handler = get("kind").map(str::to_owned);
        filter.state = get("state").map(state).transpose()?;
        Ok(Self {
            filter,
            after: get("after").map(after).transpose()?.unwrap_or(0),
        })
    }

    fn kind(&self) -> &str {
        self.filter.handler.as_deref().unwrap_or_default()
    }

    /// Appends the address of another page of this view.
    fn put_address(&self, html: &mut Html, after: i64) {
        let state = self.filter.state.map(|state| state.to_string());
        put!(html, "/jobs?kind=" {InQuery(self.kind())}
            "&amp;state=" {InQuery(&state.unwrap_or_default())});
        if after > 0 {
            put!(html, "&amp;after=" {after});
        }
    }
}

/// The page of all jobs. The query may have `kind`, `state` and `after`.
pub(crate) async fn all(app: &App, query: &HashMap<String, String>) -> Result<Page, Problem> {
    let view = View::parse(query)?;
    let mut lease = app.database.lease().await?;
    let reader = lease.read().await?;
    let now = now(&reader).await?;
    let page = app
        .jobs
        .search(&reader, &view.filter, view.after, ROWS)
        .await?;
    reader.rollback().await.map_err(Error::from)?;
    lease.keep();

    let mut body = Html::default();
    put_notice(&mut body, query);
    put!(body, "<section><h1>Jobs</h1>");
    put_forms(&mut body, &view);
    if page.jobs.is_empty() {
        put!(body, "<p class=\"none\">No job matches.</p>");
    } else {
        put_table(&mut body, &page, now);
    }
    put!(body, "</section>");
    put_pages(&mut body, &view, &page);
    // A search reads up to 10 000 jobs, so it is not repeated again and again.
    let refresh = view.filter == JobFilter::default();
    Ok(Page {
        title: "Jobs".into(),
        tab: Tab::Jobs,
        refresh,
        has_fields: true,
        body,
    })
}

fn put_forms(html: &mut Html, view: &View) {
    put!(html, "<div class=\"forms\"><form action=\"/jobs\"><label>Kind <input name=\"kind\" value=\""
        {view.kind()} "\"></label>"
        "<label>State <select name=\"state\"><option value=\"\">any</option>");
    for state in STATES {
        put!(html, "<option");
        if view.filter.state == Some(state) {
            put!(html, " selected");
        }
        put!(html, ">" {state} "</option>");
    }
    put!(html, "</select></label><button>Filter</button></form>"
        "<form action=\"/find\"><label>Number or key <input name=\"job\" required></label>"
        "<button>Go</button></form></div>");
}

fn put_table(html: &mut Html, page: &JobPage, now: Timestamp) {
    put!(html, "<table><thead><tr><th class=\"number\">Job<th>State<th>Kind<th>Key<th>Schedule<th>Last result<th>Next run"
        "</tr></thead><tbody>");
    for job in &page.jobs {
        put!(html, "<tr><td class=\"number\"><a href=\"/jobs/" {job.id} "\">" {job.id} "</a><td>");
        put_state(html, job.state, job.disabled_reason.as_deref());
        put!(html, "<td><a href=\"/jobs?kind=" {InQuery(&job.handler)} "\">" {&job.handler} "</a><td class=\"long\">"
            {Cut(job.key.as_deref().unwrap_or_default(), 60)} "<td>");
        put_schedule(html, &job.schedule, &job.time_zone);
        put!(html, "<td>");
        if let Some(state) = job.last_result {
            put_run_state(html, state);
        }
        put!(html, "<td>");
        put_time_or_none(html, job.next_run, now);
        put!(html, "</tr>");
    }
    put!(html, "</tbody></table>");
}

fn put_pages(html: &mut Html, view: &View, page: &JobPage) {
    put!(html, "<nav class=\"pages\">");
    if view.after > 0 {
        put!(html, "<a href=\"");
        view.put_address(html, 0);
        put!(html, "\">First</a>");
    }
    if let Some(next) = page.next {
        if page.jobs.len() < ROWS as usize {
            put!(html, "<span>Searched to job " {next} ".</span>");
        }
        put!(html, "<a href=\"");
        view.put_address(html, next);
        put!(html, "\">Next</a>");
    }
    put!(html, "</nav>");
}

/// Returns the number of the job with this number or this key.
pub(crate) async fn find(app: &App, query: &HashMap<String, String>) -> Result<i64, Problem> {
    let text = query.get("job").map(String::as_str).unwrap_or_default();
    let mut lease = app.database.lease().await?;
    let reader = lease.read().await?;
    let mut found = app.jobs.find(&reader, text).await?;
    if let (None, Ok(number)) = (found, text.trim().parse()) {
        found = app.jobs.get(&reader, number).await?.map(|job| job.id);
    }
    reader.rollback().await.map_err(Error::from)?;
    lease.keep();
    found.ok_or_else(|| Problem::not_found(format!("No job has the key or the number '{text}'.")))
}

/// The page of a job. The query may have `before`: the due time of a run.
pub(crate) async fn one(
    app: &App,
    id: i64,
    query: &HashMap<String, String>,
) -> Result<Page, Problem> {
    let time = |text: &String| {
        let time = text.parse();
        let time = time.map_err(|_| "'before' must be a time: 2026-01-31T12:00:00Z".to_owned());
        time.and_then(in_range).map_err(Problem::bad)
    };
    let before = query.get("before").map(time).transpose()?;
    let mut lease = app.database.lease().await?;
    let reader = lease.read().await?;
    let now = now(&reader).await?;
    let found = app.jobs.get(&reader, id).await?;
    let runs = app.jobs.runs(&reader, id, before, ROWS).await?;
    reader.rollback().await.map_err(Error::from)?;
    lease.keep();

    let job = found.ok_or_else(|| Problem::not_found(format!("There is no job {id}.")))?;
    let mut body = Html::default();
    put_notice(&mut body, query);
    put!(body, "<section><h1>Job " {job.id} " ");
    put_state(&mut body, job.state(), None);
    put!(body, "</h1>");
    put_actions(app, &mut body, &job);
    put_properties(&mut body, &job, now);
    put_options(&mut body, &job);
    put!(body, "<h2>Payload</h2><pre>" {Cut(format_args!("{:#}", job.payload), MAX_TEXT)} "</pre></section>"
        "<section><h2>Runs</h2>");
    put_runs(&mut body, &runs, now);
    put!(body, "</section><nav class=\"pages\">");
    if before.is_some() {
        put!(body, "<a href=\"/jobs/" {job.id} "\">Latest</a>");
    }
    if let Some(run) = end_of_page(&runs, ROWS) {
        put!(body, "<a href=\"/jobs/" {job.id} "?before=" {InQuery(&run.due.to_string())} "\">Older</a>");
    }
    put!(body, "</nav>");
    Ok(Page {
        title: format!("Job {}", job.id),
        tab: Tab::Jobs,
        refresh: before.is_none(),
        has_fields: false,
        body,
    })
}

fn put_actions(app: &App, html: &mut Html, job: &Job) {
    let action = |name: &str| format!("/jobs/{}/{name}", job.id);
    put!(html, "<div class=\"actions\">");
    app.put_button(html, &action("run"), "Run now");
    if job.enabled {
        app.put_button(html, &action("pause"), "Pause");
    } else {
        app.put_button(html, &action("resume"), "Resume");
    }
    app.put_button_that_asks(
        html,
        &action("delete"),
        "Delete",
        "Delete this job with its runs and their results?",
    );
    put!(html, "</div>");
}

fn put_properties(html: &mut Html, job: &Job, now: Timestamp) {
    put!(html, "<dl><dt>Kind<dd><a href=\"/jobs?kind=" {InQuery(&job.handler)} "\">" {&job.handler} "</a>");
    if let Some(key) = &job.key {
        put!(html, "<dt>Key<dd>" {key});
    }
    put!(html, "<dt>Schedule<dd>");
    put_schedule(html, &job.schedule, &job.time_zone);
    put!(html, "<dt>Next run<dd>");
    match job.next_run {
        Some(time) => put_exact_time(html, time, now),
        None => put!(html, "<span class=\"faint\">none</span>"),
    }
    if let Some(reason) = &job.disabled_reason {
        put!(html, "<dt>Disabled<dd class=\"error\">" {reason});
    }
    put!(html, "</dl>");
}

/// Appends the options, by the names of the library.
fn put_options(html: &mut Html, job: &Job) {
    put!(html, "<dl><dt>Priority<dd>" {job.priority}
        "<dt>Overlap<dd>" {format_args!("{:?}", job.overlap)}
        "<dt>Misfire<dd>" {format_args!("{:?}", job.misfire)}
        "<dt>Retries<dd>" {job.retries} "<dt>Timeout<dd>");
    match job.timeout {
        Some(timeout) => put!(html, { format_args!("{timeout:?}") }),
        None => put!(html, "<span class=\"faint\">none</span>"),
    }
    for (name, count) in &job.limits {
        put!(html, "<dt>Limit<dd>" {name} ": " {count});
    }
    put!(html, "</dl>");
}

fn put_schedule(html: &mut Html, schedule: &str, time_zone: &str) {
    put!(html, "<code>" {schedule} "</code>");
    if schedule.starts_with("cron ") {
        put!(html, " <span class=\"faint\">" {time_zone} "</span>");
    }
}

fn put_state(html: &mut Html, state: JobState, reason: Option<&str>) {
    let class = match state {
        JobState::Scheduled => " good",
        JobState::Paused => " warn",
        JobState::Disabled => " bad",
        _ => "",
    };
    put!(html, "<b class=\"badge" {class} "\" title=\"" {reason.unwrap_or_default()} "\">" {state} "</b>");
}
