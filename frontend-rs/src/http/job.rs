//! What a validated request asks for.

use std::sync::Arc;

use crate::chat::Reasoning;
use crate::model::ModelEntry;
use crate::route::Generate;

use super::params::Params;

/// Which endpoint's JSON comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    Chat,
    Completion,
}

/// One prompt; a request for completions may have several.
pub struct Prompt {
    pub ids: Vec<u32>,
    /// The text that `echo` puts in front of the output.
    pub echo: Option<String>,
    pub max_tokens: u32,
}

/// A request, ready to be submitted.
pub struct Job {
    pub endpoint: Endpoint,
    pub model: Arc<ModelEntry>,
    pub prompts: Vec<Prompt>,
    pub params: Params,
    pub prompt_logprobs: Option<u32>,
    /// The rendered conversation of a model that thinks; its end says where the output starts.
    pub thinking_prompt: Option<String>,
}

impl Job {
    /// Choice `index` belongs to prompt `index / n`.
    pub fn choices(&self) -> usize {
        self.prompts.len() * self.params.n as usize
    }

    pub fn prompt_of(&self, choice: usize) -> &Prompt {
        &self.prompts[choice / self.params.n as usize]
    }

    /// What goes to the router for a choice. Choices differ in their seeds.
    pub fn generate(&self, choice: usize) -> Generate {
        let prompt = self.prompt_of(choice);
        let mut sampling = self.params.sampling.clone();
        sampling.seed = sampling
            .seed
            .wrapping_add((choice % self.params.n as usize) as u64);
        Generate {
            model: self.model.clone(),
            prompt: prompt.ids.clone(),
            max_tokens: prompt.max_tokens,
            min_tokens: self.params.min_tokens,
            stop_ids: self.params.stop_ids.clone(),
            sampling,
            prompt_logprobs: self.prompt_logprobs,
            asr: None,
            tts: None,
        }
    }

    /// A reader of one output's reasoning; `None` for a model that does not think.
    pub fn reasoning(&self) -> Option<Reasoning> {
        self.thinking_prompt.as_deref().map(Reasoning::after_prompt)
    }
}
