//! `GET /health`, `GET /ready`, `GET /version`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::Json;
use serde_json::{json, Value};

use super::App;

/// The process is alive. Asks nobody: a busy worker must not look like a dead server.
pub async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// Every worker makes progress and new requests are taken.
pub async fn ready(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let mut reasons = app.backend.not_ready();
    if app.backend.draining() {
        reasons.push("the server is shutting down".into());
    }
    if reasons.is_empty() {
        (StatusCode::OK, Json(json!({"status": "ready"})))
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({"status": "not ready", "reasons": reasons})),
        )
    }
}

pub async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}
