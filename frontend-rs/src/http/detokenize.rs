//! `POST /detokenize`: the text of token ids.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::Json;
use serde_json::{json, Value};

use super::error::ApiError;
use super::fields::{expected, Fields};
use super::params::token_id;
use super::{models, run, App};

pub async fn detokenize(
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
    let ids: Vec<u32> = match fields.take("tokens") {
        None => {
            return Err(ApiError::invalid(
                "tokens",
                "'tokens' is missing; give a list of token ids",
            ))
        }
        Some(Value::Array(ids)) => {
            let ids = ids.iter().enumerate();
            ids.map(|(i, id)| token_id(id, &model, &format!("tokens[{i}]")))
                .collect::<Result<_, _>>()?
        }
        Some(other) => return Err(expected("tokens", "a list of token ids", &other)),
    };
    fields.finish()?;
    Ok(json!({"prompt": model.text.decode(&ids)}))
}
