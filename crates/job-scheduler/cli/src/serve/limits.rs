//! The page of limits and rates, and of the runs that wait.

use std::collections::HashMap;
use std::fmt::{self, Display};

use axum::extract::{Extension, Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use hashed_wheel_job_scheduler::{BlockedOn, Error, KindLimits, Queue};

use super::actions::put_notice;
use super::app::{App, Posted, Shared};
use super::database::now;
use super::guard::Caller;
use super::html::{Html, InQuery, put, put_time};
use super::layout::{Page, Tab};
use super::problem::Problem;
use crate::{may_be_cut, rate};

type Fields = HashMap<String, String>;

/// The kinds, and the names, of a page.
const ROWS: usize = 100;

/// The kind after which the list of kinds begins, and the name after which that of names begins.
/// Empty: at the beginning.
#[derive(Clone, Copy)]
struct Place<'a> {
    kind: &'a str,
    name: &'a str,
}

impl<'a> Place<'a> {
    fn of(fields: &'a Fields) -> Self {
        let field = |name| fields.get(name).map_or("", String::as_str);
        Self {
            kind: field("after_kind"),
            name: field("after_name"),
        }
    }
}

/// The fields of an address, each with `&` after it.
impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [("after_kind", self.kind), ("after_name", self.name)];
        let mut fields = fields.iter().filter(|(_, after)| !after.is_empty());
        fields.try_for_each(|(name, after)| write!(f, "{name}={}&", InQuery(after)))
    }
}

/// The page of limits. The query may have a [`Place`].
pub(crate) async fn page(app: &App, query: &Fields) -> Result<Page, Problem> {
    let place = Place::of(query);
    let more = ROWS as u32 + 1;
    let mut lease = app.database.lease().await?;
    let reader = lease.read().await?;
    let now = now(&reader).await?;
    let mut kinds = app.jobs.kinds(&reader, place.kind, more).await?;
    let mut limits = app.jobs.limits(&reader, place.name, more).await?;
    let queues = app.jobs.queues(&reader).await?;
    reader.rollback().await.map_err(Error::from)?;
    lease.keep();

    let mut body = Html::default();
    put_notice(&mut body, query);
    put!(
        body,
        "<section><h1>Limits of kinds</h1><table><thead><tr><th>Kind<th>Running<th>Rate<th>Burst</tr></thead><tbody>"
    );
    let next_kind = next(&mut kinds);
    let none = (String::new(), KindLimits::new());
    for (kind, limits) in kinds.into_iter().chain([none]) {
        let rate = limits
            .interval
            .map(|time| format!("1/{}", humantime::format_duration(time)));
        let running = limits.running.map(|count| count.to_string());
        let burst = limits.burst.map(|count| count.to_string());
        let fields = [
            ("kind", kind),
            ("running", running.unwrap_or_default()),
            ("rate", rate.unwrap_or_default()),
            ("burst", burst.unwrap_or_default()),
        ];
        put_row(app, &mut body, place, &fields);
    }
    put!(body, "</tbody></table>");
    let with_kind = |kind| Place { kind, ..place };
    put_next(&mut body, place.kind, next_kind.as_deref(), with_kind);
    put!(
        body,
        "</section><section><h2>Limits of names</h2><table><thead><tr><th>Name<th>Running</tr></thead><tbody>"
    );
    let next_name = next(&mut limits);
    let none = (String::new(), String::new());
    let limits = limits
        .into_iter()
        .map(|(name, count)| (name, count.to_string()));
    for (name, running) in limits.chain([none]) {
        let fields = [("name", name), ("running", running)];
        put_row(app, &mut body, place, &fields);
    }
    put!(body, "</tbody></table>");
    let with_name = |name| Place { name, ..place };
    put_next(&mut body, place.name, next_name.as_deref(), with_name);
    put!(body, "</section><section><h2>Waiting</h2>");
    if queues.is_empty() {
        put!(body, "<p class=\"none\">Nothing waits.</p></section>");
    } else {
        put!(body, "<table><thead><tr><th>For<th>Name<th class=\"number\">Waiting<th class=\"number\">Running"
            "<th>First</tr></thead><tbody>");
        for queue in &queues {
            put_queue(&mut body, queue);
            put_time(&mut body, queue.first, now);
            put!(body, "</tr>");
        }
        put!(body, "</tbody></table><p class=\"faint\">");
        if may_be_cut(&queues) {
            put!(
                body,
                "There may be more: at most 100 names of each sort are shown. "
            );
        }
        put!(
            body,
            "First: the earliest time of at most 1000 runs of each name.</p></section>"
        );
    }
    Ok(Page {
        title: "Limits".into(),
        tab: Tab::Limits,
        refresh: true,
        has_fields: app.guard.allows_changes(),
        body,
    })
}

/// Leaves what the next page has out. Returns the name after which that page begins.
fn next<T>(rows: &mut Vec<(String, T)>) -> Option<String> {
    let has_more = rows.len() > ROWS;
    rows.truncate(ROWS);
    rows.last()
        .filter(|_| has_more)
        .map(|(name, _)| name.clone())
}

/// Appends the links to other pages of one list. The other list remains where it is.
fn put_next<'a>(
    html: &mut Html,
    after: &str,
    next: Option<&'a str>,
    to: impl Fn(&'a str) -> Place<'a>,
) {
    put!(html, "<nav class=\"pages\">");
    if !after.is_empty() {
        put!(html, "<a href=\"/limits?" {to("")} "\">First</a>");
    }
    if let Some(next) = next {
        put!(html, "<span>There are more than these " {ROWS} ".</span>"
            "<a href=\"/limits?" {to(next)} "\">Next</a>");
    }
    put!(html, "</nav>");
}

fn put_queue(html: &mut Html, queue: &Queue) {
    let (what, field) = match &queue.waits_for {
        None => ("a node", "kind"),
        Some(BlockedOn::Job) => ("another run of job", ""),
        Some(BlockedOn::Kind) => ("the limit of kind", "kind"),
        Some(BlockedOn::Limit(_)) => ("the limit", "limit"),
        _ => ("the rate of kind", "kind"),
    };
    let state = if queue.waits_for.is_some() {
        "blocked"
    } else {
        "waiting"
    };
    put!(html, "<tr><td>" {what} "<td><a href=\"");
    match field {
        "" => put!(html, "/jobs/" {InQuery(&queue.name)}),
        _ => put!(html, "/runs?state=" {state} "&amp;" {field} "=" {InQuery(&queue.name)}),
    }
    put!(html, "\">" {&queue.name} "</a><td class=\"number\">" {queue.waiting});
    put!(html, {if queue.waiting == 1_000 { "+" } else { "" }} "<td class=\"number\">");
    if !matches!(queue.waits_for, None | Some(BlockedOn::Rate)) {
        put!(html, { queue.running });
    }
    put!(html, "<td>");
}

/// Appends limits, as a form if changes are allowed: the last row is for new ones.
fn put_row(app: &App, html: &mut Html, place: Place<'_>, fields: &[(&'static str, String)]) {
    if !app.guard.allows_changes() {
        if !fields[0].1.is_empty() {
            put!(html, "<tr>");
            fields
                .iter()
                .for_each(|(_, value)| put!(html, "<td>" {value}));
            put!(html, "</tr>");
        }
        return;
    }
    let form = format!("{}-{}", fields[0].0, fields[0].1);
    put!(html, "<tr>");
    for (index, (name, value)) in fields.iter().enumerate() {
        let is_fixed = index == 0 && !value.is_empty();
        put!(html, "<td><input form=\"" {&form} "\" aria-label=\"" {name} "\" name=\"" {name} "\" value=\"" {value} "\"");
        if is_fixed {
            put!(html, " readonly");
        }
        put!(html, ">");
    }
    put!(html, "<td><form id=\"" {&form} "\" method=\"post\" action=\"/limits?" {place});
    // A field has no line breaks, and the name may have some.
    let (what, name) = &fields[0];
    if !name.is_empty() {
        put!(html, {what} "=" {InQuery(name)});
    }
    put!(html, "\"><input type=\"hidden\" name=\"form\" value=\"" {app.guard.form()} "\"><button>Set</button></form></tr>");
}

/// Sets the limits of a kind or of a name, which may be in the address. Empty fields: no limit. The
/// browser goes back to the same place.
pub(crate) async fn set(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(address): Query<Fields>,
    Posted(mut fields): Posted,
) -> Response {
    fields.extend(address);
    let set = app.limited_change(async {
        // Names as they are written: a space may be a part of them.
        let field = |name| fields.get(name).filter(|text| !text.is_empty());
        let trimmed = |name| {
            let text = field(name).map(|text| text.trim());
            text.filter(|text| !text.is_empty())
        };
        app.guard.check_form(caller, trimmed("form"))?;
        let number = |name| {
            let bad = |_| Problem::bad(format!("'{name}' must be a whole number."));
            trimmed(name)
                .map(|text| text.parse::<u32>().map_err(bad))
                .transpose()
        };
        let mut limits = KindLimits::new();
        (limits.running, limits.burst) = (number("running")?, number("burst")?);
        if let Some(text) = trimmed("rate") {
            let (count, period) =
                rate(text).map_err(|why| Problem::bad(format!("The rate {why}.")))?;
            limits = limits.rate(count, period);
        }
        let mut lease = app.database.lease().await?;
        let transaction = lease.change().await?;
        if let Some(kind) = field("kind") {
            app.jobs.set_kind(&transaction, kind, limits).await?;
        } else if let Some(name) = field("name") {
            let running = limits.running;
            app.jobs.set_limit(&transaction, name, running).await?;
        } else {
            return Err(Problem::bad("The name is missing."));
        }
        transaction.commit().await.map_err(Error::from)?;
        lease.keep();
        Ok(())
    });
    match set.await {
        Ok(()) => {
            let target = format!("/limits?{}done=limit", Place::of(&fields));
            Redirect::to(&target).into_response()
        }
        Err(problem) => app.problem(&problem),
    }
}
