//! What the body of a request for speech asks for.

use std::sync::Arc;

use serde_json::{json, Value};

use super::super::error::ApiError;
use super::super::fields::{expected, Fields};
use super::super::{models, params, App};
use crate::audio::language;
use crate::model::{ModelEntry, Speaker};
use crate::route::{Generate, Utterance};
use crate::sound::Format;

/// Longest `input` and longest `instructions`, as at OpenAI.
const MAX_CHARACTERS: usize = 4096;
const SPEED: std::ops::RangeInclusive<f32> = 0.25..=4.0;

/// How audio reaches the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// A file, once it is finished.
    Whole,
    /// The bytes of a file as they are made.
    Raw,
    /// Server-sent events.
    Events,
}

/// A request, ready to be submitted.
pub struct Job {
    pub generate: Generate,
    /// Hertz.
    pub rate: u32,
    pub format: Format,
    pub delivery: Delivery,
    /// The client chose its `max_tokens`.
    pub bounded: bool,
}

/// Takes CPU time where the input is long.
pub fn prepare(app: &App, mut fields: Fields) -> Result<Job, ApiError> {
    let model = models::named(app, &mut fields)?;
    let speaker = models::speaker(app, &model)?;
    let input = input(&mut fields)?;
    let utterance = Utterance {
        voice: voice(&mut fields, &model, speaker)?,
        language: spoken(&mut fields)?,
        instructions: bounded(&mut fields, "instructions")?.filter(|text| !text.trim().is_empty()),
        speed: fields.number("speed", SPEED)?.unwrap_or(1.0),
    };
    let format = format(&mut fields, speaker.sample_rate)?;
    let delivery = delivery(&mut fields)?;
    fields.refuse("logit_bias", &[json!({})], "speech has no tokens to name")?;
    fields.take("user");
    let sampling = params::sampling(&mut fields, &model)?;
    let asked = params::max_tokens(&mut fields)?;
    fields.finish()?;
    let prompt = model
        .text
        .encode_literally(&input)
        .map_err(|e| ApiError::invalid("input", format!("'input' could not be tokenized: {e}")))?;
    if prompt.is_empty() {
        return Err(nothing_to_say());
    }
    let (max_tokens, _) = params::room(&model, prompt.len(), asked, model.context, "input")?;
    Ok(Job {
        rate: speaker.sample_rate,
        format,
        delivery,
        bounded: asked.is_some(),
        generate: Generate {
            model: model.clone(),
            prompt,
            max_tokens,
            min_tokens: 0,
            // The model knows the end of its own audio.
            stop_ids: Vec::new(),
            sampling,
            prompt_logprobs: None,
            asr: None,
            tts: Some(utterance),
        },
    })
}

fn nothing_to_say() -> ApiError {
    ApiError::invalid("input", "'input' is empty; give the text to speak")
}

fn input(fields: &mut Fields) -> Result<String, ApiError> {
    let input = bounded(fields, "input")?
        .ok_or_else(|| ApiError::invalid("input", "'input' is missing; give the text to speak"))?;
    if input.trim().is_empty() {
        return Err(nothing_to_say());
    }
    Ok(input)
}

/// A string of at most `MAX_CHARACTERS`.
fn bounded(fields: &mut Fields, name: &str) -> Result<Option<String>, ApiError> {
    let text = fields.string(name)?;
    let characters = text.as_ref().map_or(0, |text| text.chars().count());
    if characters > MAX_CHARACTERS {
        let message = format!(
            "'{name}' has {characters} characters; at most {MAX_CHARACTERS} are possible: split it into several requests"
        );
        return Err(ApiError::invalid(name, message).code("string_above_max_length"));
    }
    Ok(text)
}

/// `voice`: a name, or OpenAI's object with an `id`. The model's first one where nothing is said.
fn voice(
    fields: &mut Fields,
    model: &Arc<ModelEntry>,
    speaker: &Speaker,
) -> Result<String, ApiError> {
    let name = match fields.take("voice") {
        None => return Ok(speaker.voices.first().cloned().unwrap_or_default()),
        Some(Value::String(name)) => name,
        Some(Value::Object(mut voice)) if voice.len() == 1 => match voice.remove("id") {
            Some(Value::String(name)) => name,
            _ => return Err(ApiError::invalid("voice.id", "'voice.id' must be a string")),
        },
        Some(other) => return Err(expected("voice", "the name of a voice", &other)),
    };
    if speaker.voices.contains(&name) {
        return Ok(name);
    }
    let offers = if speaker.voices.is_empty() {
        "names no voices; leave 'voice' out".to_owned()
    } else {
        let names: Vec<String> = speaker
            .voices
            .iter()
            .map(|name| format!("'{name}'"))
            .collect();
        format!("has {}", names.join(", "))
    };
    let message = format!(
        "the voice '{name}' does not exist; the model '{}' {offers}",
        model.name
    );
    Err(ApiError::invalid("voice", message).code("voice_not_found"))
}

/// The code of `language`.
fn spoken(fields: &mut Fields) -> Result<Option<&'static str>, ApiError> {
    let Some(given) = fields.string("language")? else {
        return Ok(None);
    };
    language(&given).map(Some).ok_or_else(|| {
        let message = format!(
            "the language '{given}' is unknown; give a code such as 'de', or its English name"
        );
        ApiError::invalid("language", message)
    })
}

fn format(fields: &mut Fields, rate: u32) -> Result<Format, ApiError> {
    let Some(given) = fields.string("response_format")? else {
        return Ok(Format::Wav);
    };
    let mut offered = Format::offered(rate);
    offered
        .find(|format| format.name() == given)
        .ok_or_else(|| {
            let names: Vec<String> = Format::offered(rate)
                .map(|format| format!("'{}'", format.name()))
                .collect();
            let message = format!(
                "'response_format' must be one of {} for this model, not '{given}'",
                names.join(", ")
            );
            ApiError::invalid("response_format", message)
        })
}

/// `stream_format`, and `stream`, which is true where nothing is said: OpenAI always streams.
fn delivery(fields: &mut Fields) -> Result<Delivery, ApiError> {
    let given = fields.string("stream_format")?;
    let delivery = match given.as_deref() {
        None | Some("audio") => Delivery::Raw,
        Some("sse") => Delivery::Events,
        Some(other) => {
            let message = format!("'stream_format' must be 'audio' or 'sse', not '{other}'");
            return Err(ApiError::invalid("stream_format", message));
        }
    };
    if fields.bool("stream", true)? {
        return Ok(delivery);
    }
    if delivery == Delivery::Events {
        let message = "'stream_format' 'sse' needs 'stream' to be true; leave one of them out";
        return Err(ApiError::invalid("stream_format", message));
    }
    Ok(Delivery::Whole)
}
