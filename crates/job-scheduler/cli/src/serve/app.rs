//! The state that all requests share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{FromRequest, Query, Request};
use axum::response::Response;
use hashed_wheel_job_scheduler::Jobs;

use super::database::Database;
use super::guard::Guard;
use super::problem::Problem;

/// How long a request may take.
const TIME_LIMIT: Duration = Duration::from_secs(10);

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
    /// Limits the time of a request. Its connection is closed then.
    pub(crate) async fn limited<T>(
        &self,
        work: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        tokio::time::timeout(TIME_LIMIT, work)
            .await
            .unwrap_or_else(|_| {
                let seconds = TIME_LIMIT.as_secs();
                Err(Problem::unavailable(
                    format!("The database did not answer within {seconds} seconds."),
                    "A change that was requested may still take effect.",
                ))
            })
    }
}

/// Parses the number of a job or a run in an address.
pub(crate) fn number(text: &str) -> Result<i64, Problem> {
    text.parse()
        .map_err(|_| Problem::not_found(format!("'{text}' is not the number of a job or a run.")))
}
