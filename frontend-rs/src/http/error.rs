//! Errors in OpenAI's shape.

use std::time::Duration;

use axum::http::{header, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{json, Value};

use crate::route::{Failure, SubmitError};
use crate::text::PoolError;

/// An error as a client sees it: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The parameter to change, as a path such as `messages[0].content[1]`.
    pub param: Option<String>,
    /// Machine-readable.
    pub code: Option<String>,
    pub retry_after_s: Option<u64>,
}

/// Most characters of a message or a parameter's name: either may quote what the client sent.
const MAX_QUOTED: usize = 2000;

fn clipped(text: String) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl ApiError {
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: clipped(message.into()),
            param: None,
            code: Some(code.into()),
            retry_after_s: None,
        }
    }

    /// 400: a parameter that cannot be used.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let (param, message) = (Some(clipped(param.into())), clipped(message.into()));
        Self {
            status: StatusCode::BAD_REQUEST,
            message,
            param,
            code: None,
            retry_after_s: None,
        }
    }

    /// 400: a parameter that would change the result and is not implemented.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(param, message).code("unsupported_parameter")
    }

    pub fn timeout(limit: Duration) -> Self {
        let message = format!("the request took longer than the server's limit of {limit:?}");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
    }

    pub fn slow_body(limit: Duration) -> Self {
        let message =
            format!("the request's body did not arrive within the server's limit of {limit:?}");
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    }

    pub fn slow_client(patience: Duration) -> Self {
        let seconds = patience.as_secs();
        let message = format!("the client took nothing for {seconds} s while its buffer was full");
        Self::new(StatusCode::REQUEST_TIMEOUT, "slow_client", message)
    }

    pub fn code(mut self, code: &str) -> Self {
        self.code = Some(code.into());
        self
    }

    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(clipped(param.into()));
        self
    }

    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The error's JSON, for a response's body or an event of a stream.
    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Busy { retry_after_s, .. } => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_exceeded",
                message,
            )
            .retry_after(retry_after_s),
            SubmitError::NotReady { retry_after_s, .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message)
                    .retry_after(retry_after_s)
            }
            SubmitError::Draining => Self::draining(),
        }
    }
}

impl ApiError {
    /// 503: the server stops; another instance, or this one after its restart, may take the request.
    pub fn draining() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "shutting_down",
            SubmitError::Draining.to_string(),
        )
        .retry_after(5)
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        // A worker names a parameter only where the request was at fault.
        let status = match (&failure.param, failure.retryable) {
            (Some(_), false) => StatusCode::BAD_REQUEST,
            (_, true) => StatusCode::SERVICE_UNAVAILABLE,
            (None, false) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let status = if failure.code == "timeout" {
            StatusCode::GATEWAY_TIMEOUT
        } else {
            status
        };
        let error = Self::new(status, &failure.code, failure.message);
        Self {
            param: failure.param,
            retry_after_s: failure.retryable.then_some(1),
            ..error
        }
    }
}

impl From<PoolError> for ApiError {
    fn from(error: PoolError) -> Self {
        let message = error.to_string();
        match error {
            PoolError::Full(_) => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_exceeded",
                message,
            )
            .retry_after(1),
            PoolError::Panicked => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
            }
        }
    }
}
