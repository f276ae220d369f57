//! What happens around every request: its id, the API key, the body's size, faults, counting.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{header, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::ApiError;
use super::leftover::Leftover;
use super::{body, App};

const REQUEST_ID: &str = "x-request-id";

/// Routes that answer without a key: whoever runs the probes has none.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// Longest request id that is taken over from a client.
const MAX_REQUEST_ID: usize = 128;

pub async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let request_id = request_id(&request);
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("unmatched", MatchedPath::as_str)
        .to_owned();
    let leftover = Leftover::default();
    let request = request.map(|body| leftover.watch(body));
    let mut response = match admit(&app, &route, request) {
        Ok(request) => match AssertUnwindSafe(next.run(request)).catch_unwind().await {
            Ok(response) => response,
            Err(_) => {
                tracing::error!(%route, "a handler panicked");
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                ApiError::new(
                    status,
                    "internal_error",
                    "a fault in the server; see its log",
                )
                .into_response()
            }
        },
        Err(error) => error.into_response(),
    };
    if !response.status().is_success() {
        // More than the limit, so that a client that is not far over it gets its answer too.
        leftover
            .discard(app.body_limit(&route).saturating_mul(4))
            .await;
    }
    app.counters.request(&route, response.status());
    response.headers_mut().insert(REQUEST_ID, request_id);
    response
}

fn admit(app: &App, route: &str, request: Request) -> Result<Request, ApiError> {
    if let Some(key) = &app.config.api_key {
        if !OPEN.contains(&request.uri().path()) && !authorized(&request, key) {
            let message = "this server needs an API key; send it as 'Authorization: Bearer KEY'";
            return Err(ApiError::new(
                StatusCode::UNAUTHORIZED,
                "invalid_api_key",
                message,
            ));
        }
    }
    let length = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let limit = app.body_limit(route);
    if length.is_some_and(|length| length > limit as u64) {
        return Err(body::too_large(limit));
    }
    Ok(request)
}

/// Compares digests, so that neither the key's bytes nor its length show in the time it takes.
fn authorized(request: &Request, key: &str) -> bool {
    let header = request
        .headers()
        .get(header::AUTHORIZATION)
        .map_or(&[][..], HeaderValue::as_bytes);
    let (scheme, given) = header.split_at(header.len().min(7));
    let equal: bool = Sha256::digest(given)
        .ct_eq(&Sha256::digest(key.as_bytes()))
        .into();
    equal & scheme.eq_ignore_ascii_case(b"bearer ")
}

/// The client's own id where it is usable, else a new one.
fn request_id(request: &Request) -> HeaderValue {
    let usable = |value: &&HeaderValue| {
        !value.is_empty()
            && value.len() <= MAX_REQUEST_ID
            && value.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    request
        .headers()
        .get(REQUEST_ID)
        .filter(usable)
        .cloned()
        .unwrap_or_else(|| {
            HeaderValue::from_str(&format!("req_{:032x}", rand::random::<u128>()))
                .expect("hex is a header value")
        })
}

pub async fn unknown_route(method: Method, uri: Uri) -> ApiError {
    let message = format!(
        "there is no route {method} {}; see docs/http-api.md",
        uri.path()
    );
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

pub async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!(
        "{} does not take {method}; the Allow header says what it takes",
        uri.path()
    );
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        message,
    )
}
