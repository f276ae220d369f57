//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{json, Value};

use super::error::ApiError;
use super::fields::{expected, Fields};
use super::job::{Endpoint, Job, Prompt};
use super::params::{token_id, Params, MAX_LOGPROBS};
use super::{models, run, App};
use crate::model::ModelEntry;

/// Output tokens where the request does not say, as at OpenAI.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// Most choices of a request, over all its prompts.
const MAX_CHOICES: usize = 256;

pub async fn completions(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    run::generate(app, request, prepare).await
}

pub fn prepare(app: &App, mut fields: Fields) -> Result<Job, ApiError> {
    let model = models::take(app, &mut fields)?;
    let mut params = Params::take(&mut fields, &model)?;
    params.sampling.logprobs = fields
        .integer("logprobs", 0..=MAX_LOGPROBS)?
        .map(|n| n as u32);
    let echo = fields.bool("echo", false)?;
    fields.refuse(
        "suffix",
        &[json!("")],
        "the models here only continue a text",
    )?;
    fields.refuse("best_of", &[json!(params.n)], "it may only equal 'n'")?;
    fields.refuse(
        "response_format",
        &[json!({"type": "text"})],
        "constrained output is not implemented",
    )?;
    let add_special_tokens = fields.bool("add_special_tokens", true)?;
    let sources = sources(&mut fields, &model)?;
    fields.finish()?;

    let prompt_logprobs = params.sampling.logprobs.filter(|_| echo);
    if prompt_logprobs.is_some() && params.stream {
        let message = "'echo' with 'logprobs' is not supported in a stream; set 'stream' to false";
        return Err(ApiError::unsupported("echo", message));
    }
    if sources.len() * params.n as usize > MAX_CHOICES {
        let message = format!(
            "{} prompts with 'n' = {} are more than the {MAX_CHOICES} choices that a request may have",
            sources.len(),
            params.n
        );
        return Err(ApiError::invalid("n", message));
    }
    let mut prompts = Vec::with_capacity(sources.len());
    for (param, source) in sources {
        let (ids, echo) = match source {
            Source::Text(text) => {
                let ids = model.text.encode(&text, add_special_tokens).map_err(|e| {
                    ApiError::invalid(&param, format!("'{param}' could not be tokenized: {e}"))
                })?;
                (ids, echo.then_some(text))
            }
            Source::Ids(ids) => {
                let text = echo.then(|| model.text.decode(&ids));
                (ids, text)
            }
        };
        if ids.is_empty() {
            return Err(ApiError::invalid(
                &param,
                format!("'{param}' is empty; give at least one token"),
            ));
        }
        let max_tokens = params.room(&model, ids.len(), DEFAULT_MAX_TOKENS, &param)?;
        prompts.push(Prompt {
            ids,
            echo,
            max_tokens,
        });
    }
    let echoed: usize = prompts
        .iter()
        .filter_map(|p| p.echo.as_ref())
        .map(String::len)
        .sum();
    let (echoed, limit) = (echoed * params.n as usize, app.config.max_body);
    if echoed > limit {
        let message = format!(
            "'echo' would repeat {echoed} bytes of prompt in {} choices; at most {limit} are possible; lower 'n'",
            prompts.len() * params.n as usize
        );
        return Err(ApiError::invalid("echo", message));
    }
    Ok(Job {
        endpoint: Endpoint::Completion,
        model,
        prompts,
        params,
        prompt_logprobs,
        thinking_prompt: None,
    })
}

enum Source {
    Text(String),
    Ids(Vec<u32>),
}

/// The four forms of `prompt`, each prompt with its name in errors.
fn sources(fields: &mut Fields, model: &ModelEntry) -> Result<Vec<(String, Source)>, ApiError> {
    let list = match fields.take("prompt") {
        None => {
            return Err(ApiError::invalid(
                "prompt",
                "'prompt' is missing; give a string or token ids",
            ))
        }
        Some(Value::String(text)) => return Ok(vec![("prompt".into(), Source::Text(text))]),
        Some(Value::Array(list)) => list,
        Some(other) => {
            return Err(expected(
                "prompt",
                "a string, a list of strings, or token ids",
                &other,
            ))
        }
    };
    match list.first() {
        None => Err(ApiError::invalid(
            "prompt",
            "'prompt' is an empty list; give at least one prompt",
        )),
        Some(Value::Number(_)) => Ok(vec![(
            "prompt".into(),
            Source::Ids(ids(&list, model, "prompt")?),
        )]),
        Some(_) => {
            let prompts = list.into_iter().enumerate();
            prompts
                .map(|(i, prompt)| {
                    let param = format!("prompt[{i}]");
                    let source = match prompt {
                        Value::String(text) => Source::Text(text),
                        Value::Array(list) => Source::Ids(ids(&list, model, &param)?),
                        other => {
                            return Err(expected(param, "a string or a list of token ids", &other))
                        }
                    };
                    Ok((param, source))
                })
                .collect()
        }
    }
}

fn ids(list: &[Value], model: &ModelEntry, param: &str) -> Result<Vec<u32>, ApiError> {
    list.iter()
        .enumerate()
        .map(|(i, id)| token_id(id, model, &format!("{param}[{i}]")))
        .collect()
}
