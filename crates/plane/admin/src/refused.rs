//! Errors as answers.

use crate::json::ErrorBody;
use axum::Json;
use axum::response::{IntoResponse, Response};
use fairlead_control::ApiError;
use fairlead_model::ApiCode;
use fairlead_telemetry::RateLimitedLog;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use std::time::Duration;

/// A store that refuses writes is told of at every request.
static FAILED: RateLimitedLog = RateLimitedLog::new(Duration::from_secs(10));

/// An error on its way to the client.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) ApiError);

/// The detail that becomes the header `Retry-After`.
pub(crate) const RETRY_AFTER_DETAIL: &str = "retry_after_seconds";

impl Refused {
    pub(crate) fn new(code: ApiCode, message: impl Into<String>) -> Self {
        Self(ApiError::new(code, message))
    }
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if self.0.code == ApiCode::Internal
            && let Some(suppressed) = FAILED.allow(std::time::Instant::now())
        {
            tracing::error!(error = self.0.message, suppressed, "a request failed");
        }
        let retry_after = self
            .0
            .details
            .get(RETRY_AFTER_DETAIL)
            .and_then(|seconds| HeaderValue::from_str(seconds).ok());
        let unauthenticated = self.0.code == ApiCode::Unauthenticated;
        let mut response = (status, Json(ErrorBody::from(self.0))).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        if unauthenticated {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
