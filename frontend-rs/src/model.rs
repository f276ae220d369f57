//! A model that the server offers.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::speech::SpeechModel;
use crate::text::{LoadError, TextModel};

/// What the front end knows of a model, read from its checkpoint folder at start.
///
/// `text` is loaded once (tokenizer, chat template, end ids) and shared by all requests; a speech model has a tokenizer
/// like any other.
pub struct ModelEntry {
    /// The name that requests use.
    pub name: String,
    pub path: PathBuf,
    /// Unix seconds at which the server loaded it.
    pub created: u64,
    /// Longest prompt + output, in tokens.
    pub context: u32,
    pub vocab: u32,
    pub text: TextModel,
    /// Of a model that hears.
    pub speech: Option<SpeechModel>,
    /// Of a model that speaks: its worker tells, once it is ready.
    speaker: OnceLock<Speaker>,
}

/// What a model that speaks offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Speaker {
    /// Hertz.
    pub sample_rate: u32,
    /// Names, the default first; may be empty.
    pub voices: Vec<String>,
}

impl ModelEntry {
    /// Reads a checkpoint folder. `max_context` lowers the longest prompt + output. Slow: never call on the HTTP runtime.
    pub fn load(name: &str, path: &Path, max_context: Option<u32>) -> Result<Self, LoadError> {
        let mut text = TextModel::load(path)?;
        let speech = SpeechModel::load(path, &mut text)?;
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Ok(Self {
            name: name.to_owned(),
            path: path.to_owned(),
            created,
            context: max_context.map_or(text.context, |limit| limit.min(text.context)),
            vocab: text.vocab,
            text,
            speech,
            speaker: OnceLock::new(),
        })
    }

    /// A worker says that the model speaks. What the first one said counts: all serve the same checkpoint.
    pub fn speaks(&self, speaker: Speaker) {
        let _ = self.speaker.set(speaker);
    }

    /// `None` for a model that does not speak, or whose worker has not been ready yet.
    pub fn speaker(&self) -> Option<&Speaker> {
        self.speaker.get()
    }

    /// `text`, `asr` or `tts`, as workers and `/v1/models` call it.
    pub fn kind(&self) -> &'static str {
        if self.speech.is_some() {
            "asr"
        } else if self.speaker().is_some() {
            "tts"
        } else {
            "text"
        }
    }
}

impl std::fmt::Debug for ModelEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelEntry")
            .field("name", &self.name)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
