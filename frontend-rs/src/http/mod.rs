//! HTTP: one file an endpoint.

use std::sync::Arc;

use crate::route::Backend;

/// What the HTTP side is told by the command line.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    pub api_key: Option<String>,
    /// Largest request body, bytes.
    pub max_body: usize,
    /// Requests handled at once; more get 429.
    pub max_in_flight: usize,
    pub request_timeout: std::time::Duration,
}

/// The whole HTTP surface over a backend.
pub fn app(_config: HttpConfig, _backend: Arc<dyn Backend>) -> axum::Router {
    axum::Router::new()
}
