//! `GET /metrics`: Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use super::App;

pub async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let mut text = app.backend.metrics();
    // OpenMetrics' end mark, if the backend wrote one, would hide what follows.
    if let Some(rest) = text.strip_suffix("# EOF\n") {
        text.truncate(rest.len());
    }
    let in_flight = app.config.max_in_flight - app.in_flight.available_permits();
    text.push_str(&app.counters.render(in_flight, app.pool.waiting()));
    text.push_str(&app.audio.render());
    text.push_str(&app.clients.render());
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
}
