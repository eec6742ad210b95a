//! The way of each request to its page, and the headers of each response.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::Method;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::uri::PathAndQuery;
use axum::middleware::Next;
use axum::response::Response;

use super::app::Shared;
use super::guard::Denied;
use super::login;
use super::problem::Problem;

/// Sent with each response. With `no-referrer`, browsers would send forms with `Origin: null`.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (header::CACHE_CONTROL, "no-store"),
];

/// Where the browser goes after a login: to the page that it wanted. A login does not repeat an
/// action, and there is no page at the address of one.
fn target(request: &Request) -> &str {
    let page = request
        .uri()
        .path_and_query()
        .filter(|_| [Method::GET, Method::HEAD].contains(request.method()));
    page.map_or("/", PathAndQuery::as_str)
}

/// Answers a request, or says why not. Adds the headers of each response.
pub(crate) async fn check(
    State(app): State<Shared>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let admitted = app.guard.admit(
        peer.ip(),
        request.method(),
        request.uri().path(),
        request.headers(),
    );
    let mut response = match admitted {
        Ok(_)
            if request
                .uri()
                .query()
                .is_some_and(|query| query.contains("%00")) =>
        {
            app.problem(&Problem::nul())
        }
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(Denied::NeedsLogin) => login::form(&app, target(&request), ""),
        Err(Denied::Refused(problem)) => app.problem(&problem),
    };
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}
