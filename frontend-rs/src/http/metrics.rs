//! `GET /metrics`: Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use super::App;

pub async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], app.metrics())
}

impl App {
    /// Everything that is counted, in Prometheus' text form.
    pub fn metrics(&self) -> String {
        let mut text = self.backend.metrics();
        // OpenMetrics' end mark, if the backend wrote one, would hide what follows.
        if let Some(rest) = text.strip_suffix("# EOF\n") {
            text.truncate(rest.len());
        }
        let in_flight = self.config.max_in_flight - self.in_flight.available_permits();
        text.push_str(&self.counters.render(in_flight, self.pool.waiting()));
        text.push_str(&self.audio.render());
        text.push_str(&self.clients.render());
        text
    }
}
