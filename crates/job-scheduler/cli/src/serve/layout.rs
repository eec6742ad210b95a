//! The frame of all pages.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::app::App;
use super::html::{Html, put};
use super::problem::Problem;

/// The content of a page.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) tab: Tab,
    /// Whether a browser loads it again every few seconds.
    pub(crate) refresh: bool,
    /// Whether users type something on it. Without scripts, it is not loaded again, because that
    /// would discard what they have typed.
    pub(crate) has_fields: bool,
    pub(crate) body: Html,
}

/// The part of the program to which a page belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    Overview,
    Jobs,
    Runs,
    Limits,
    /// Before the login nothing about the database is shown.
    Login,
    None,
}

impl App {
    /// Returns the response with a page, or with the reason why there is none.
    pub(crate) async fn show(&self, page: impl Future<Output = Result<Page, Problem>>) -> Response {
        match self.limited(page).await {
            Ok(page) => self.page(&page),
            Err(problem) => self.no_page(&problem),
        }
    }

    /// Returns the response with a page.
    pub(crate) fn page(&self, page: &Page) -> Response {
        let mut html = Html::default();
        put!(html, "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
            "<meta name=\"color-scheme\" content=\"light dark\">"
            "<title>" {&page.title} " · job-scheduler</title>"
            "<link rel=\"stylesheet\" href=\"/style.css\"><link rel=\"icon\" href=\"/icon.svg\">"
            "<script src=\"/script.js\" defer></script>");
        if page.refresh && !page.has_fields {
            put!(
                html,
                "<noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>"
            );
        }
        put!(html, "</head><body>");
        self.put_header(&mut html, page.tab);
        if page.refresh {
            put!(html, "<main data-page data-refresh=\"3\">");
        } else {
            put!(html, "<main data-page>");
        }
        html.part(&page.body);
        put!(html, "</main></body></html>");
        (
            [(CONTENT_TYPE, "text/html; charset=utf-8")],
            html.into_string(),
        )
            .into_response()
    }

    /// Returns the response with the reason why there is no page. A browser asks again if that may
    /// help.
    pub(crate) fn no_page(&self, problem: &Problem) -> Response {
        self.reason(problem, problem.status.is_server_error())
    }

    /// Returns the response with the reason why something was refused. A browser does not ask
    /// again: that would not repeat a change, and there may be no page at its address.
    pub(crate) fn problem(&self, problem: &Problem) -> Response {
        self.reason(problem, false)
    }

    fn reason(&self, problem: &Problem, refresh: bool) -> Response {
        let mut body = Html::default();
        put!(body, "<section class=\"problem\"><h1>" {problem.title} "</h1><p>" {&problem.text} "</p>");
        if !problem.hint.is_empty() {
            put!(body, "<p class=\"faint\">" {problem.hint} "</p>");
        }
        put!(body, "</section>");
        let page = Page {
            title: problem.title.into(),
            tab: Tab::None,
            refresh,
            has_fields: false,
            body,
        };
        (problem.status, self.page(&page)).into_response()
    }

    fn put_header(&self, html: &mut Html, tab: Tab) {
        put!(
            html,
            "<header><a class=\"name\" href=\"/\">job-scheduler</a>"
        );
        if tab == Tab::Login {
            return put!(html, "</header>");
        }
        put!(html, "<nav>");
        for (name, href, this) in [
            ("Overview", "/", Tab::Overview),
            ("Jobs", "/jobs", Tab::Jobs),
            ("Runs", "/runs", Tab::Runs),
            ("Limits", "/limits", Tab::Limits),
        ] {
            put!(html, "<a href=\"" {href} "\"");
            if this == tab {
                put!(html, " aria-current=\"page\"");
            }
            put!(html, ">" {name} "</a>");
        }
        put!(html, "</nav><span class=\"place\">" {&self.place} "</span>");
        if !self.guard.allows_changes() {
            put!(
                html,
                "<b class=\"badge\" title=\"Started without --allow-changes\">read-only</b>"
            );
        }
        if self.guard.has_token() {
            put!(
                html,
                "<form method=\"post\" action=\"/logout\"><button>Log out</button></form>"
            );
        }
        put!(html, "</header>");
    }

    /// Appends a button that changes something, if that is allowed.
    pub(crate) fn put_button(&self, html: &mut Html, action: &str, label: &'static str) {
        if self.guard.allows_changes() {
            put!(html, "<form method=\"post\" action=\"" {action} "\">"
                "<input type=\"hidden\" name=\"form\" value=\"" {self.guard.form()} "\">"
                "<button>" {label} "</button></form>");
        }
    }

    /// Appends a button that asks first.
    pub(crate) fn put_button_that_asks(
        &self,
        html: &mut Html,
        action: &str,
        label: &'static str,
        question: &'static str,
    ) {
        if self.guard.allows_changes() {
            put!(html, "<details><summary>" {label} "…</summary><div class=\"question\"><p>" {question} "</p>");
            self.put_button(html, action, label);
            put!(html, "</div></details>");
        }
    }
}
