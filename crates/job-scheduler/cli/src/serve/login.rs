//! The login with the token.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::app::{App, Posted, Shared};
use super::html::{Html, put};
use super::layout::{Page, Tab};

/// Returns the form. After the login, the browser goes to this address.
pub(crate) fn form(app: &App, to: &str, error: &'static str) -> Response {
    let mut html = Html::default();
    put!(
        html,
        "<section class=\"login\"><h1>Log in</h1><form method=\"post\" action=\"/login\">"
    );
    if !error.is_empty() {
        put!(html, "<p class=\"error\" role=\"alert\">" {error} "</p>");
    }
    put!(html, "<label for=\"token\">Token of this page</label>"
        "<input id=\"token\" name=\"token\" type=\"password\" autocomplete=\"current-password\" required autofocus>"
        "<input name=\"to\" type=\"hidden\" value=\"" {to} "\"><button>Log in</button></form></section>");
    let page = Page {
        title: "Log in".into(),
        tab: Tab::Login,
        refresh: false,
        has_fields: true,
        body: html,
    };
    (StatusCode::UNAUTHORIZED, app.page(&page)).into_response()
}

/// Compares the token.
pub(crate) async fn log_in(
    State(app): State<Shared>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Posted(fields): Posted,
) -> Response {
    let to = fields.get("to").map_or("/", |to| local(to));
    let token = fields.get("token").map_or("", String::as_str);
    match app.guard.is_token(peer.ip(), token) {
        Ok(true) => go(to, app.guard.set_cookie(true, &headers)),
        Ok(false) => form(&app, to, "This is not the token."),
        Err(problem) => app.problem(&problem),
    }
}

/// Removes the cookie.
pub(crate) async fn log_out(State(app): State<Shared>, headers: HeaderMap) -> Response {
    go("/", app.guard.set_cookie(false, &headers))
}

fn go(to: &str, cookie: String) -> Response {
    (
        StatusCode::SEE_OTHER,
        [(LOCATION, to.to_owned()), (SET_COOKIE, cookie)],
    )
        .into_response()
}

/// Returns an address of this page. Browsers take `//example.com` and `/\example.com` for other
/// sites.
fn local(to: &str) -> &str {
    let is_local = to.starts_with('/')
        && !to[1..].starts_with(['/', '\\'])
        && to.bytes().all(|byte| byte.is_ascii_graphic());
    if is_local { to } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_does_not_lead_to_other_sites() {
        assert_eq!(
            local("/jobs?after=7&kind=a%20b"),
            "/jobs?after=7&kind=a%20b"
        );
        for to in [
            "//example.com",
            "/\\example.com",
            "https://example.com",
            "",
            "/a\r\nb",
            "/\tb",
            "jobs",
        ] {
            assert_eq!(local(to), "/", "{to}");
        }
    }
}
