//! A model that the server offers.

use std::path::PathBuf;

/// What the front end knows of a model, read from its checkpoint folder at start.
///
/// `text` is loaded once (tokenizer, chat template, end ids) and shared by all requests.
pub struct ModelEntry {
    /// The name that requests use.
    pub name: String,
    pub path: PathBuf,
    /// Unix seconds at which the server loaded it.
    pub created: u64,
    /// Longest prompt + output, in tokens.
    pub context: u32,
    pub vocab: u32,
    pub text: crate::text::TextModel,
}

impl std::fmt::Debug for ModelEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelEntry")
            .field("name", &self.name)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
