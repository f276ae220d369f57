//! `GET /v1/audio/voices`: the voices of the models that speak.

use std::sync::Arc;

use axum::extract::State;
use axum::Json;
use serde_json::{json, Value};

use super::super::App;

pub async fn voices(State(app): State<Arc<App>>) -> Json<Value> {
    let mut data = Vec::new();
    for model in app.backend.models() {
        let voices = model.speaker().map_or(&[][..], |speaker| &speaker.voices);
        data.extend(
            voices
                .iter()
                .map(|voice| json!({"id": voice, "object": "voice", "model": model.name})),
        );
    }
    Json(json!({"object": "list", "data": data}))
}
