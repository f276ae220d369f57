//! Reading request bodies.

use axum::extract::Request;
use axum::http::{header, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::error::ApiError;

/// The whole body of a JSON request, at most `limit` bytes.
pub async fn read_json(request: Request, limit: usize) -> Result<Bytes, ApiError> {
    if let Some(given) = request.headers().get(header::CONTENT_TYPE) {
        let essence = given
            .as_bytes()
            .split(|&b| b == b';')
            .next()
            .unwrap_or_default()
            .trim_ascii();
        let essence = essence.to_ascii_lowercase();
        if essence != b"application/json" && !essence.ends_with(b"+json") {
            let message =
                format!("send the body as 'Content-Type: application/json', not {given:?}");
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                message,
            ));
        }
    }
    let mut body = request.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                "incomplete_body",
                format!("the request body broke off: {e}"),
            )
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

pub fn too_large(limit: usize) -> ApiError {
    let message = format!("the request body is larger than the server's limit of {limit} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
}
