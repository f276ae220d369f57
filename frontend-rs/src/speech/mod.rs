//! What the ids of a Whisper checkpoint mean, and the prompts that its decoder gets.
//!
//! # Layout
//!
//! `load` (the ids, from `generation_config.json`, the tokenizer, or the known layout) → this file (prompts, text).

mod load;

use crate::audio::LANGUAGES;
use crate::text::{Detokenizer, LoadError, TextModel};

/// What is to be written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// What is said, in its own language.
    Transcribe,
    /// What is said, in English.
    Translate,
}

impl Task {
    pub fn name(self) -> &'static str {
        match self {
            Self::Transcribe => "transcribe",
            Self::Translate => "translate",
        }
    }
}

/// Ids and abilities of a Whisper checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeechModel {
    pub eot: u32,
    pub sot: u32,
    pub sot_prev: u32,
    pub transcribe: u32,
    pub translate: u32,
    pub no_timestamps: u32,
    /// The token of 0.00 s; each further one is 20 ms later.
    pub timestamp_begin: u32,
    /// False for the English-only sizes, which take neither a language nor a task.
    pub multilingual: bool,
    /// Language tokens with the codes of their languages, in the order of their ids.
    pub languages: Vec<(u32, &'static str)>,
}

impl SpeechModel {
    /// Reads the speech side of a checkpoint folder; `None` if its architecture is none that hears. From then on `text`
    /// takes special tokens in a prompt for text.
    pub fn load(folder: &std::path::Path, text: &mut TextModel) -> Result<Option<Self>, LoadError> {
        load::load(folder, text)
    }

    pub fn language_id(&self, code: &str) -> Option<u32> {
        let found = self.languages.iter().find(|(_, known)| *known == code);
        found.map(|(id, _)| *id)
    }

    pub fn language_of(&self, id: u32) -> Option<&'static str> {
        let found = self.languages.iter().find(|(known, _)| *known == id);
        found.map(|(_, code)| *code)
    }

    pub fn task_id(&self, task: Task) -> u32 {
        match task {
            Task::Transcribe => self.transcribe,
            Task::Translate => self.translate,
        }
    }

    /// Whether it is a token of time.
    pub fn is_timestamp(&self, id: u32) -> bool {
        id >= self.timestamp_begin
    }

    /// The ids of a prompt or of earlier text; ids that are no text are left out.
    pub fn encode(&self, text: &TextModel, prompt: &str) -> Result<Vec<u32>, String> {
        // With a space in front, as text within an utterance is tokenized.
        let mut ids = text.encode(&format!(" {}", prompt.trim()), false)?;
        ids.retain(|id| *id < self.eot);
        Ok(ids)
    }

    /// The text of `ids`, without tokens of time and other special ones.
    pub fn decode(&self, text: &TextModel, ids: &[u32]) -> String {
        let mut detokenizer = Detokenizer::default();
        ids.iter()
            .filter(|id| **id < self.eot)
            .map(|id| detokenizer.push(text.pieces(), *id))
            .collect()
    }

    /// The decoder's prompt: the end of `previous`, and what starts a transcript. With `language` unknown it ends where
    /// the language is detected.
    pub fn prompt(
        &self,
        previous: &[u32],
        language: Option<u32>,
        task: Task,
        context: u32,
    ) -> Vec<u32> {
        let mut ids = Vec::new();
        let keep = (context as usize / 2).saturating_sub(1);
        if !previous.is_empty() && keep > 0 {
            ids.push(self.sot_prev);
            ids.extend_from_slice(&previous[previous.len().saturating_sub(keep)..]);
        }
        ids.push(self.sot);
        if let (true, Some(language)) = (self.multilingual, language) {
            ids.extend([language, self.task_id(task)]);
        }
        ids
    }
}

/// Codes of Whisper's language tokens, in the order of their ids.
fn codes() -> impl Iterator<Item = &'static str> {
    LANGUAGES.iter().map(|(code, _)| *code)
}
