//! Why a page cannot be shown, or an action is refused.

use axum::http::StatusCode;

/// A reason, with a status for programs.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) title: &'static str,
    pub(crate) text: String,
    pub(crate) hint: &'static str,
}

impl Problem {
    /// Something in the request is invalid.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            title: "Invalid request",
            text: text.into(),
            hint: "",
        }
    }

    /// PostgreSQL would refuse such a text, as if the database had failed.
    pub(crate) fn nul() -> Self {
        Self::bad("The request contains the character NUL, which no text has.")
    }

    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            title: "Not found",
            text: text.into(),
            hint: "",
        }
    }

    /// The method is not the one of this address.
    pub(crate) fn wrong_method() -> Self {
        let text = "This address does not support the method of the request.".into();
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            title: "Method not allowed",
            text,
            hint: "",
        }
    }

    /// The state of a job or a run does not allow this.
    pub(crate) fn conflict(text: impl Into<String>) -> Self {
        Self {
            status: StatusCode::CONFLICT,
            title: "Not possible",
            text: text.into(),
            hint: "",
        }
    }

    /// The caller may not do this.
    pub(crate) fn refused(text: impl Into<String>, hint: &'static str) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            title: "Refused",
            text: text.into(),
            hint,
        }
    }

    /// The database does not answer as it should.
    pub(crate) fn unavailable(text: impl Into<String>, hint: &'static str) -> Self {
        let title = "The database cannot be read";
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            title,
            text: text.into(),
            hint,
        }
    }
}
