//! `POST /tokenize`: the token ids of a text or a conversation.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::Json;
use serde_json::{json, Value};

use super::error::ApiError;
use super::fields::Fields;
use super::{chat_completions, models, run, App};

pub async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let admission = run::admit(&app)?;
    run::prepared(&app, &admission, request, answer)
        .await
        .map(Json)
}

pub fn answer(app: &App, mut fields: Fields) -> Result<Value, ApiError> {
    let model = models::take(app, &mut fields)?;
    let prompt = fields.string("prompt")?;
    let with_strings = fields.bool("return_token_strs", false)?;
    let (param, text, add_special_tokens) = match prompt {
        Some(text) => ("prompt", text, fields.bool("add_special_tokens", true)?),
        None if !fields.has("messages") => {
            let message = "'prompt' is missing; give a text, or 'messages'";
            return Err(ApiError::invalid("prompt", message));
        }
        None => {
            let add_special_tokens = fields.bool("add_special_tokens", false)?;
            (
                "messages",
                chat_completions::render(&mut fields, &model)?.text,
                add_special_tokens,
            )
        }
    };
    fields.finish()?;
    let ids = model
        .text
        .encode(&text, add_special_tokens)
        .map_err(|e| ApiError::invalid(param, format!("'{param}' could not be tokenized: {e}")))?;
    let strings: Option<Vec<String>> = with_strings.then(|| {
        ids.iter()
            .map(|&id| model.text.pieces.display(id))
            .collect()
    });
    Ok(
        json!({"count": ids.len(), "max_model_len": model.context, "tokens": ids, "token_strs": strings}),
    )
}
