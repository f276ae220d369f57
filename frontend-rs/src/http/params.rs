//! The parameters that both completion endpoints share.

use serde_json::{json, Value};

use super::error::ApiError;
use super::fields::{expected, Fields};
use crate::model::ModelEntry;
use crate::route::Sampling;

/// Most stop strings of a request.
const MAX_STOPS: usize = 16;
/// Longest stop string, bytes: this much text may be held back at any time.
const MAX_STOP_BYTES: usize = 1024;
const MAX_LOGIT_BIAS: usize = 1024;
/// Most end ids of a request besides the model's own.
const MAX_STOP_IDS: usize = 1024;
/// Most choices for one prompt.
pub const MAX_N: i64 = 128;
/// Most alternatives for a token's log-probability.
pub const MAX_LOGPROBS: i64 = 20;

/// Validated parameters, the same for each sequence of a request (but for the seed).
pub struct Params {
    /// What the request asked for, and the field that said so.
    pub max_tokens: Option<(u64, &'static str)>,
    pub min_tokens: u32,
    pub stop: Vec<String>,
    pub stop_ids: Vec<u32>,
    /// `logprobs` is set by the endpoint.
    pub sampling: Sampling,
    pub n: u32,
    pub stream: bool,
    pub include_usage: bool,
}

/// Fields that clients send and that change no result here.
const IGNORED: [&str; 9] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "request_id",
];

impl Params {
    pub fn take(fields: &mut Fields, model: &ModelEntry) -> Result<Self, ApiError> {
        for name in IGNORED {
            fields.take(name);
        }
        let off = [json!(false)];
        fields.refuse("use_beam_search", &off, "sample instead")?;
        fields.refuse(
            "include_stop_str_in_output",
            &off,
            "the stop string is never part of the output",
        )?;
        fields.refuse(
            "skip_special_tokens",
            &[json!(true)],
            "special tokens are never part of the output",
        )?;
        fields.refuse(
            "spaces_between_special_tokens",
            &[json!(true), json!(false)],
            "leave it out",
        )?;
        fields.refuse(
            "length_penalty",
            &[json!(1), json!(1.0)],
            "there is no beam search",
        )?;
        let constrained = "output constrained by a grammar or schema is not implemented";
        for name in [
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "structured_outputs",
        ] {
            fields.refuse(name, &[], constrained)?;
        }
        let stream = fields.bool("stream", false)?;
        let include_usage = stream_options(fields, stream)?;
        let ignore_eos = fields.bool("ignore_eos", false)?;
        let mut stop_ids = if ignore_eos {
            Vec::new()
        } else {
            model.text.stop_ids.clone()
        };
        stop_ids.extend(stop_token_ids(fields, model)?);
        Ok(Self {
            max_tokens: max_tokens(fields)?,
            min_tokens: fields
                .integer("min_tokens", 0..=u32::MAX.into())?
                .unwrap_or(0) as u32,
            stop: stop(fields)?,
            stop_ids,
            sampling: sampling(fields, model)?,
            n: fields.integer("n", 1..=MAX_N)?.unwrap_or(1) as u32,
            stream,
            include_usage,
        })
    }

    /// How many tokens each sequence may have after a prompt of `prompt` tokens; `default` where the request does not
    /// say. `param` names the prompt in errors.
    pub fn room(
        &self,
        model: &ModelEntry,
        prompt: usize,
        default: u32,
        param: &str,
    ) -> Result<u32, ApiError> {
        let (max_tokens, param) = room(model, prompt, self.max_tokens, default, param)?;
        if self.min_tokens > max_tokens {
            let message = format!(
                "'min_tokens' is {} but at most {max_tokens} output tokens are possible (see '{param}')",
                self.min_tokens
            );
            return Err(ApiError::invalid("min_tokens", message));
        }
        Ok(max_tokens)
    }
}

/// How many tokens fit after a prompt of `prompt` tokens, and which field that comes from: what was `asked` for, else
/// `default`. `param` names the prompt.
pub fn room<'a>(
    model: &ModelEntry,
    prompt: usize,
    asked: Option<(u64, &'a str)>,
    default: u32,
    param: &'a str,
) -> Result<(u32, &'a str), ApiError> {
    let context = model.context as usize;
    let too_long = |message: String, param: &str| {
        Err(ApiError::invalid(param, message).code("context_length_exceeded"))
    };
    if prompt >= context {
        let asked = match asked {
            Some((asked, name)) => format!("'{name}' asks for {asked} output tokens"),
            None => "no number of output tokens was asked for".into(),
        };
        let message = format!(
            "this model's maximum context length is {context} tokens, but the prompt alone has {prompt} tokens \
             ({asked}), which leaves no room for output; shorten the prompt",
        );
        return too_long(message, param);
    }
    let room = context - prompt;
    let Some((asked, name)) = asked else {
        return Ok((default.min(room as u32), param));
    };
    if asked > room as u64 {
        let message = format!(
            "this model's maximum context length is {context} tokens, but the prompt has {prompt} tokens and \
             '{name}' asks for {asked} output tokens, {} in total; lower '{name}' to at most {room} or shorten \
             the prompt",
            prompt as u128 + u128::from(asked),
        );
        return too_long(message, name);
    }
    Ok((asked as u32, name))
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(false);
    };
    if !stream {
        return Err(ApiError::invalid(
            "stream_options",
            "'stream_options' needs 'stream' to be true",
        ));
    }
    let include_usage = options.bool("include_usage", false)?;
    options.bool("include_obfuscation", false)?;
    options.refuse(
        "continuous_usage_stats",
        &[json!(false)],
        "usage comes once, at the end",
    )?;
    options.finish()?;
    Ok(include_usage)
}

/// `max_tokens` or `max_completion_tokens`, with the name that was used.
pub fn max_tokens(fields: &mut Fields) -> Result<Option<(u64, &'static str)>, ApiError> {
    let mut given = None;
    for name in ["max_tokens", "max_completion_tokens"] {
        let Some(value) = fields.integer(name, 1..=i64::MAX)? else {
            continue;
        };
        if given.is_some_and(|(other, _)| other != value as u64) {
            let message = "'max_tokens' and 'max_completion_tokens' differ; give one of them";
            return Err(ApiError::invalid(name, message));
        }
        given = Some((value as u64, name));
    }
    Ok(given)
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let values = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) => values,
        Some(value @ Value::String(_)) => vec![value],
        Some(other) => return Err(expected("stop", "a string or a list of strings", &other)),
    };
    if values.len() > MAX_STOPS {
        let message = format!(
            "'stop' holds {} strings; at most {MAX_STOPS} are possible",
            values.len()
        );
        return Err(ApiError::invalid("stop", message));
    }
    let check = |(i, value): (usize, Value)| match value {
        Value::String(text) if text.is_empty() => Err(ApiError::invalid(
            "stop",
            "'stop' holds an empty string; remove it",
        )),
        Value::String(text) if text.len() > MAX_STOP_BYTES => Err(ApiError::invalid(
            "stop",
            format!("'stop' holds a string of over {MAX_STOP_BYTES} bytes"),
        )),
        Value::String(text) => Ok(text),
        other => Err(expected(format!("stop[{i}]"), "a string", &other)),
    };
    values.into_iter().enumerate().map(check).collect()
}

/// A token id below the model's vocabulary.
pub fn token_id(value: &Value, model: &ModelEntry, param: &str) -> Result<u32, ApiError> {
    let id = value.as_u64().ok_or_else(|| match value {
        Value::Number(_) => {
            ApiError::invalid(param, format!("'{param}' must be a token id, not {value}"))
        }
        _ => expected(param, "a token id", value),
    })?;
    if id >= u64::from(model.vocab) {
        let message = format!(
            "'{param}' is token id {id}, but the vocabulary of '{}' ends at {}",
            model.name,
            model.vocab - 1
        );
        return Err(ApiError::invalid(param, message));
    }
    Ok(id as u32)
}

fn stop_token_ids(fields: &mut Fields, model: &ModelEntry) -> Result<Vec<u32>, ApiError> {
    match fields.take("stop_token_ids") {
        None => Ok(Vec::new()),
        Some(Value::Array(ids)) if ids.len() > MAX_STOP_IDS => {
            let message = format!(
                "'stop_token_ids' holds {} ids; at most {MAX_STOP_IDS} are possible",
                ids.len()
            );
            Err(ApiError::invalid("stop_token_ids", message))
        }
        Some(Value::Array(ids)) => {
            let ids = ids.iter().enumerate();
            ids.map(|(i, id)| token_id(id, model, &format!("stop_token_ids[{i}]")))
                .collect()
        }
        Some(other) => Err(expected("stop_token_ids", "a list of token ids", &other)),
    }
}

/// How tokens are drawn; `logprobs` is not set.
pub fn sampling(fields: &mut Fields, model: &ModelEntry) -> Result<Sampling, ApiError> {
    let defaults = model.text.defaults;
    let mut temperature = fields
        .number("temperature", 0.0..=2.0)?
        .unwrap_or(defaults.temperature);
    let top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(defaults.top_p);
    if top_p == 0.0 {
        // The smallest set of tokens whose probability exceeds 0 is the most likely one alone.
        temperature = 0.0;
    }
    let top_k = fields
        .integer("top_k", -1..=i64::from(u32::MAX))?
        .unwrap_or(defaults.top_k.into());
    let repetition_penalty = fields
        .number("repetition_penalty", 0.0..=10.0)?
        .unwrap_or(defaults.repetition_penalty);
    if repetition_penalty == 0.0 {
        return Err(ApiError::invalid(
            "repetition_penalty",
            "'repetition_penalty' must be above 0",
        ));
    }
    Ok(Sampling {
        temperature,
        top_k: top_k.max(0) as u32,
        top_p: if top_p == 0.0 { 1.0 } else { top_p },
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(defaults.min_p),
        repetition_penalty,
        presence_penalty: fields
            .number("presence_penalty", -2.0..=2.0)?
            .unwrap_or(0.0),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0..=2.0)?
            .unwrap_or(0.0),
        seed: seed(fields)?,
        logit_bias: logit_bias(fields, model)?,
        logprobs: None,
    })
}

fn seed(fields: &mut Fields) -> Result<u64, ApiError> {
    match fields.take("seed") {
        None => Ok(rand::random()),
        Some(value) => match (value.as_i64(), value.as_u64()) {
            (Some(seed), _) => Ok(seed as u64),
            (None, Some(seed)) => Ok(seed),
            (None, None) => Err(ApiError::invalid(
                "seed",
                format!("'seed' must be a 64-bit integer, not {value}"),
            )),
        },
    }
}

fn logit_bias(fields: &mut Fields, model: &ModelEntry) -> Result<Vec<(u32, f32)>, ApiError> {
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(other) => {
            return Err(expected(
                "logit_bias",
                "an object of token ids and numbers",
                &other,
            ))
        }
    };
    if map.len() > MAX_LOGIT_BIAS {
        let message = format!(
            "'logit_bias' has {} entries; at most {MAX_LOGIT_BIAS} are possible",
            map.len()
        );
        return Err(ApiError::invalid("logit_bias", message));
    }
    let invalid = |message: String| ApiError::invalid("logit_bias", message);
    let entry = |(key, value): (String, Value)| {
        let id: u32 = key.parse().map_err(|_| {
            invalid(format!(
                "'logit_bias' has the key {key:?}, which is not a token id"
            ))
        })?;
        if id >= model.vocab {
            let last = model.vocab - 1;
            return Err(invalid(format!(
                "'logit_bias' has token id {id}, but the vocabulary ends at {last}"
            )));
        }
        let bias = value
            .as_f64()
            .filter(|bias| (-100.0..=100.0).contains(bias))
            .ok_or_else(|| {
                invalid(format!(
                    "'logit_bias' of token {id} must be a number between -100 and 100, not {value}"
                ))
            })?;
        Ok((id, bias as f32))
    };
    let mut bias: Vec<(u32, f32)> = map.into_iter().map(entry).collect::<Result<_, _>>()?;
    bias.sort_unstable_by_key(|(id, _)| *id);
    // "7" and "07" name the same token.
    bias.dedup_by_key(|(id, _)| *id);
    Ok(bias)
}
