//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::Json;
use serde_json::{json, Value};

use super::error::ApiError;
use super::fields::Fields;
use super::App;
use crate::model::{ModelEntry, Speaker};
use crate::route::SubmitError;

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
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) =
        id.map_err(|_| ApiError::invalid("model", "the model's name in the path is not UTF-8"))?;
    app.model(&id).map(|model| Json(object(&model)))
}

fn object(model: &ModelEntry) -> Value {
    let mut object = json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "denizen",
        "root": model.name,
        "parent": null,
        "max_model_len": model.context,
        "kind": model.kind(),
    });
    if let Some(speaker) = model.speaker() {
        object["sample_rate"] = json!(speaker.sample_rate);
        object["voices"] = json!(speaker.voices);
    }
    object
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

/// The model that the field `model` of a request names.
pub fn named(app: &App, fields: &mut Fields) -> Result<Arc<ModelEntry>, ApiError> {
    let Some(name) = fields.string("model")? else {
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
        return Err(ApiError::invalid("model", message));
    };
    app.model(&name)
}

/// The same, for a request that wants text continued.
pub fn take(app: &App, fields: &mut Fields) -> Result<Arc<ModelEntry>, ApiError> {
    let model = named(app, fields)?;
    let remedy = match model.kind() {
        "asr" => "send audio to /v1/audio/transcriptions",
        "tts" => "send the text to /v1/audio/speech",
        _ => return Ok(model),
    };
    let what = format!("continues no text; {remedy}, or name a text model");
    Err(unable(&model, &what))
}

/// What a model that speaks offers. Others are refused.
pub fn speaker<'a>(app: &App, model: &'a ModelEntry) -> Result<&'a Speaker, ApiError> {
    if let Some(speaker) = model.speaker() {
        return Ok(speaker);
    }
    if model.speech.is_none() && !app.backend.not_ready().is_empty() {
        // Whether it speaks is not known before its worker has been ready.
        return Err(SubmitError::NotReady {
            model: model.name.clone(),
            retry_after_s: 5,
        }
        .into());
    }
    let what = "does not speak; name a model that does, /v1/models shows the 'kind' of each";
    Err(unable(model, what))
}

/// 400: the model is of another kind. `what` says what it does not do, and the remedy.
pub fn unable(model: &ModelEntry, what: &str) -> ApiError {
    let does = match model.kind() {
        "asr" => "writes down speech",
        "tts" => "speaks",
        _ => "continues text",
    };
    let message = format!("the model '{}' {does} and {what}", model.name);
    ApiError::invalid("model", message).code("unsupported_model")
}
