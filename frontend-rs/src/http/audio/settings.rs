//! What a form asks for, checked against what its model can do.

use super::super::error::ApiError;
use super::super::models;
use super::super::multipart::{Chunking, Transcription};
use crate::model::ModelEntry;
use crate::speech::Task;
use crate::transcribe::{Mode, Pauses, Settings};

/// Takes CPU time where the prompt is long.
pub fn settle<F>(form: &Transcription<F>, model: &ModelEntry) -> Result<Settings, ApiError> {
    let speech = model.speech.as_ref().ok_or_else(|| deaf(model))?;
    if form.task == Task::Translate && !speech.multilingual {
        let message = format!(
            "the model '{}' knows English alone and cannot translate",
            model.name
        );
        return Err(ApiError::invalid("model", message).code("unsupported_model"));
    }
    if let Some(code) = form.language {
        let known = if speech.multilingual {
            speech.language_id(code).is_some()
        } else {
            code == "en"
        };
        if !known {
            let message = format!(
                "the model '{}' does not know the language '{code}'",
                model.name
            );
            return Err(ApiError::invalid("language", message));
        }
    }
    let most = model.context / 2;
    if let Some(asked) = form.max_tokens.filter(|asked| *asked > most) {
        let message = format!(
            "'max_tokens' is {asked}, but a window of this model has at most {most} tokens"
        );
        return Err(ApiError::invalid("max_tokens", message));
    }
    let prompt = form
        .prompt
        .as_deref()
        .map(|prompt| speech.encode(&model.text, prompt));
    let prompt = prompt.transpose().map_err(|e| {
        ApiError::invalid("prompt", format!("'prompt' could not be tokenized: {e}"))
    })?;
    Ok(Settings {
        task: form.task,
        language: form.language,
        prompt: prompt.unwrap_or_default(),
        temperature: form.temperature.unwrap_or(0.0),
        max_tokens: form.max_tokens.unwrap_or(most),
        ignore_eos: form.ignore_eos,
        words: form.granularities.word,
        logprobs: form.logprobs,
        mode: mode(form.chunking),
        seed: rand::random(),
    })
}

fn mode(chunking: Chunking) -> Mode {
    let fallback = Pauses::default();
    match chunking {
        Chunking::Unsaid => Mode::Sequential,
        Chunking::Auto => Mode::Parallel(fallback),
        Chunking::VoiceActivity(vad) => Mode::Parallel(Pauses {
            threshold: vad.threshold.unwrap_or(fallback.threshold),
            padding_ms: vad.prefix_padding_ms.unwrap_or(fallback.padding_ms),
            silence_ms: vad.silence_duration_ms.unwrap_or(fallback.silence_ms),
        }),
    }
}

/// The model is none that hears.
pub fn deaf(model: &ModelEntry) -> ApiError {
    let what = "does not hear; name a model that does, /v1/models shows the 'kind' of each";
    models::unable(model, what)
}
