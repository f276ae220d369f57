//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::Json;
use serde_json::{json, Value};

use super::error::ApiError;
use super::App;
use crate::model::ModelEntry;

pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(listing(&app))
}

pub fn listing(app: &App) -> Value {
    let models: Vec<Value> = app
        .backend
        .models()
        .iter()
        .map(|model| object(model))
        .collect();
    json!({"object": "list", "data": models})
}

pub async fn one(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.model(&id).map(|model| Json(object(&model)))
}

fn object(model: &ModelEntry) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "denizen",
        "root": model.name,
        "parent": null,
        "max_model_len": model.context,
        "kind": model.kind(),
    })
}

pub fn find(models: &[Arc<ModelEntry>], name: &str) -> Result<Arc<ModelEntry>, ApiError> {
    models
        .iter()
        .find(|model| model.name == name)
        .cloned()
        .ok_or_else(|| {
            let names: Vec<String> = models
                .iter()
                .map(|model| format!("'{}'", model.name))
                .collect();
            let message = format!(
                "the model '{name}' does not exist; this server offers {}",
                names.join(", ")
            );
            ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).param("model")
        })
}

/// Refuses a model that hears.
pub fn text(model: Arc<ModelEntry>) -> Result<Arc<ModelEntry>, ApiError> {
    if model.speech.is_none() {
        return Ok(model);
    }
    let message = format!(
        "the model '{}' writes down speech and continues no text; send audio to /v1/audio/transcriptions, or name a \
         text model",
        model.name
    );
    Err(ApiError::invalid("model", message).code("unsupported_model"))
}

/// The model that the field `model` of a request names.
pub fn take(app: &App, fields: &mut super::fields::Fields) -> Result<Arc<ModelEntry>, ApiError> {
    match fields.string("model")? {
        Some(name) => app.text_model(&name),
        None => {
            let names: Vec<String> = app
                .backend
                .models()
                .iter()
                .map(|m| format!("'{}'", m.name))
                .collect();
            let message = format!(
                "'model' is missing; this server offers {}",
                names.join(", ")
            );
            Err(ApiError::invalid("model", message))
        }
    }
}
