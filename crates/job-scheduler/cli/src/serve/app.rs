//! The state that all requests share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{FromRequest, Query, Request};
use axum::response::Response;
use hashed_wheel_job_scheduler::Jobs;
use tokio::time::timeout;

use super::database::{Database, REQUEST_LIMIT, WAITING_LIMIT};
use super::guard::Guard;
use super::problem::Problem;

/// The parts of the program that requests use.
pub(crate) struct App {
    pub(crate) jobs: Jobs,
    pub(crate) database: Database,
    pub(crate) guard: Guard,
    /// The name of what is shown.
    pub(crate) place: String,
}

pub(crate) type Shared = Arc<App>;
/// The values in the query of an address.
pub(crate) type Fields = Query<HashMap<String, String>>;

/// The values of a form that was sent. Without a form there are none.
pub(crate) struct Posted(pub(crate) HashMap<String, String>);

impl FromRequest<Shared> for Posted {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Response> {
        let problem = match Form::<HashMap<_, String>>::from_request(request, app).await {
            Ok(Form(fields)) if fields.values().any(|text| text.contains('\0')) => Problem::nul(),
            Ok(Form(fields)) => return Ok(Self(fields)),
            Err(FormRejection::InvalidFormContentType(_)) => return Ok(Self(HashMap::new())),
            Err(error) => Problem {
                status: error.status(),
                ..Problem::bad(error.to_string())
            },
        };
        Err(app.problem(&problem))
    }
}

impl App {
    /// Limits the time of a request that only reads.
    pub(crate) async fn limited<T>(
        &self,
        work: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        within(REQUEST_LIMIT, work, "").await
    }

    /// Limits the time of a request that changes something.
    pub(crate) async fn limited_change<T>(
        &self,
        work: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        let consequence = "A change that was requested may still take effect.";
        within(REQUEST_LIMIT, work, consequence).await
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Problem>>,
    consequence: &'static str,
) -> Result<T, Problem> {
    timeout(limit, work).await.unwrap_or_else(|_| {
        let [all, waiting] = [limit, WAITING_LIMIT].map(|limit| limit.as_secs());
        let text = format!(
            "This was not finished within {all} seconds, of which it has waited for other requests \
             for at most {waiting}."
        );
        Err(Problem::unavailable(text, consequence))
    })
}

/// Parses the number of a job or a run in an address.
pub(crate) fn number(text: &str) -> Result<i64, Problem> {
    text.parse()
        .map_err(|_| Problem::not_found(format!("'{text}' is not the number of a job or a run.")))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn end_of_a_request_says_what_may_still_happen() {
        for consequence in ["", "It may still take effect."] {
            let work = pending::<Result<(), Problem>>();
            let problem = within(Duration::from_secs(1), work, consequence).await;
            let problem = problem.unwrap_err();
            assert_eq!(problem.hint, consequence);
            let text = "not finished within 1 seconds, of which it has waited for other requests";
            assert!(problem.text.contains(text), "{problem:?}");
        }
    }
}
