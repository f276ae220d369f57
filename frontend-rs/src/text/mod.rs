//! Text: tokenizer, incremental detokenizer, stop strings, and the threads that the heavy parts run on.

mod detokenizer;
mod load;
mod pieces;
mod pool;
mod stop;

pub use detokenizer::Detokenizer;
pub use pieces::Pieces;
pub use pool::{PoolError, TextPool};
pub use stop::{StopMatch, StopMatcher};

use std::path::Path;
use std::sync::OnceLock;

use crate::chat::ChatTemplate;

/// Everything text about one checkpoint folder: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`,
/// `generation_config.json`, `config.json`.
pub struct TextModel {
    /// sha256 of `tokenizer.json`, hex.
    pub tokenizer_sha256: String,
    /// Every id that ends a turn: generation config, config, tokenizer, chat format. Sorted.
    pub stop_ids: Vec<u32>,
    /// Longest prompt + output, in tokens.
    pub context: u32,
    /// Rows of the embedding; every id in a request is below it.
    pub vocab: u32,
    /// What a request gets for the sampling parameters that it leaves out.
    pub defaults: SamplingDefaults,
    pub(crate) pieces: Pieces,
    pub(crate) template: Option<ChatTemplate>,
    tokenizer: tokenizers::Tokenizer,
    /// The same, to which special tokens in a text are text; made when it is needed.
    literal: OnceLock<tokenizers::Tokenizer>,
}

/// Sampling defaults: the checkpoint's `generation_config.json` where it names them, else OpenAI's.
///
/// An explicit `"do_sample": false` there is a default temperature of 0. Its absence, which means the same to
/// `transformers`, does not count: OpenAI's clients expect temperature 1 unless they ask for another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingDefaults {
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

/// Why a checkpoint's text side could not be loaded. The message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);

impl TextModel {
    /// Loads from a checkpoint folder. Slow (tens of milliseconds to seconds): never call on the HTTP runtime.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        load::load(folder)
    }

    /// Token ids of `text`. Special tokens written in the text become their ids, as in `transformers`;
    /// `add_special_tokens` adds what the tokenizer's post-processor adds (a BOS for Llama). Slow for long texts:
    /// call on the [`TextPool`].
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids of `text` with nothing added, and no special tokens: those written in the text are text. Slow for long
    /// texts, and the first time.
    pub fn encode_literally(&self, text: &str) -> Result<Vec<u32>, String> {
        let tokenizer = self.literal.get_or_init(|| {
            let mut tokenizer = self.tokenizer.clone();
            tokenizer.set_encode_special_tokens(true);
            tokenizer
        });
        let encoding = tokenizer
            .encode_fast(text, false)
            .map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids` at once, special tokens shown. Bytes that are no UTF-8 are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut detokenizer = Detokenizer::showing_special_tokens();
        ids.iter()
            .map(|&id| detokenizer.push(&self.pieces, id))
            .collect()
    }

    /// The checkpoint's chat template, if it has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// From now on special tokens written in a text are text.
    pub(crate) fn take_special_tokens_literally(&mut self) {
        self.tokenizer.set_encode_special_tokens(true);
    }

    /// The id of a token, by its text.
    pub(crate) fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }
}
