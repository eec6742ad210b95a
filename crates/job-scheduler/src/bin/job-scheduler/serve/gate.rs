//! The way of each request to its page, and the headers of each response.

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use super::app::Shared;
use super::guard::Denied;
use super::login;

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
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Answers a request, or says why not. Adds the headers of each response.
pub(crate) async fn check(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let admitted = app.guard.admit(request.method(), request.uri().path(), request.headers());
    let mut response = match admitted {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(Denied::NeedsLogin) => login::form(&app, request.uri(), ""),
        Err(Denied::Refused(problem)) => app.problem(&problem),
    };
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}
