//! Text: tokenizer, chat template, incremental detokenizer, stop strings.

use std::path::Path;

/// Everything text about one checkpoint folder: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`,
/// `generation_config.json`, `config.json`.
pub struct TextModel {
    /// sha256 of `tokenizer.json`, hex.
    pub tokenizer_sha256: String,
    /// Every id that ends a turn: generation config, config, chat format.
    pub stop_ids: Vec<u32>,
    /// Sampling defaults of the checkpoint's generation config.
    pub context: u32,
    pub vocab: u32,
}

/// Why a checkpoint's text side could not be loaded. The message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);

impl TextModel {
    /// Loads from a checkpoint folder. Slow (tens of milliseconds to seconds): never call on the HTTP runtime.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        Err(LoadError(format!("{}: not implemented", folder.display())))
    }
}
