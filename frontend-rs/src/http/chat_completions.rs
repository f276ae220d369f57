//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{json, Map, Value};

use super::error::ApiError;
use super::fields::{expected, Fields};
use super::job::{Endpoint, Job, Prompt};
use super::params::{Params, MAX_LOGPROBS};
use super::{messages, models, run, App};
use crate::model::ModelEntry;

pub async fn chat_completions(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    run::generate(app, request, prepare).await
}

pub fn prepare(app: &App, mut fields: Fields) -> Result<Job, ApiError> {
    let model = models::take(app, &mut fields)?;
    let mut params = Params::take(&mut fields, &model)?;
    params.sampling.logprobs = logprobs(&mut fields)?;
    refuse_unsupported(&mut fields)?;
    let rendered = render(&mut fields, &model)?;
    fields.finish()?;

    // The template writes the special tokens itself.
    let ids = model.text.encode(&rendered.text, false).map_err(|e| {
        ApiError::invalid(
            "messages",
            format!("the messages could not be tokenized: {e}"),
        )
    })?;
    if ids.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "the messages give an empty prompt",
        ));
    }
    let max_tokens = params.room(&model, ids.len(), model.context, "messages")?;
    Ok(Job {
        endpoint: Endpoint::Chat,
        thinking_prompt: rendered.thinks.then_some(rendered.text),
        model,
        prompts: vec![Prompt {
            ids,
            echo: None,
            max_tokens,
        }],
        params,
        prompt_logprobs: None,
    })
}

pub struct Rendered {
    pub text: String,
    pub thinks: bool,
}

/// Takes `messages` and what goes with them, and renders the model's chat template.
pub fn render(fields: &mut Fields, model: &ModelEntry) -> Result<Rendered, ApiError> {
    let messages = messages::take(fields, &model.name)?;
    let add_generation_prompt = fields.bool("add_generation_prompt", true)?;
    let mut variables: Map<String, Value> = match fields.take("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(variables)) => variables,
        Some(other) => return Err(expected("chat_template_kwargs", "an object", &other)),
    };
    let Some(template) = model.text.chat_template() else {
        let message = format!(
            "model '{}' has no chat template; use /v1/completions, or put a chat_template.jinja into its folder",
            model.name
        );
        return Err(ApiError::unsupported("messages", message));
    };
    if let Some(effort) = fields.string("reasoning_effort")? {
        if !template.reads("reasoning_effort") {
            let message = format!(
                "model '{}' does not know 'reasoning_effort'; leave it out",
                model.name
            );
            return Err(ApiError::unsupported("reasoning_effort", message));
        }
        variables.entry("reasoning_effort").or_insert(json!(effort));
    }
    let text = template
        .render(&messages, add_generation_prompt, &variables)
        .map_err(|e| {
            ApiError::invalid(
                "messages",
                format!(
                    "the chat template of '{}' refused the messages: {e}",
                    model.name
                ),
            )
        })?;
    Ok(Rendered {
        text,
        thinks: template.thinks(),
    })
}

/// `logprobs` and `top_logprobs`: how many alternatives, if any.
fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.bool("logprobs", false)?;
    let top = fields.integer("top_logprobs", 0..=MAX_LOGPROBS)?;
    match (wanted, top) {
        (false, Some(top)) if top > 0 => Err(ApiError::invalid(
            "top_logprobs",
            "'top_logprobs' needs 'logprobs' to be true",
        )),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    let calls = "tool calls are not implemented; describe the tools in a message instead";
    fields.refuse("tools", &[json!([])], calls)?;
    fields.refuse("tool_choice", &[json!("none"), json!("auto")], calls)?;
    fields.refuse("functions", &[json!([])], calls)?;
    fields.refuse("function_call", &[json!("none"), json!("auto")], calls)?;
    let constrained = "output constrained by a grammar or schema is not implemented";
    fields.refuse("response_format", &[json!({"type": "text"})], constrained)?;
    fields.refuse("audio", &[], "there is no audio output")?;
    fields.refuse("modalities", &[json!(["text"])], "the output is text")?;
    fields.refuse("prediction", &[], "predicted output is not implemented")?;
    fields.refuse("web_search_options", &[], "there is no web search")?;
    fields.refuse(
        "chat_template",
        &[],
        "the checkpoint's own template is used",
    )?;
    fields.refuse(
        "continue_final_message",
        &[json!(false)],
        "use /v1/completions to continue a text",
    )?;
    fields.refuse("echo", &[json!(false)], "use /v1/completions")
}
