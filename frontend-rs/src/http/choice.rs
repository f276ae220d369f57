//! One choice of a response: tokens in, text out.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::chat::{Part, Reasoning};
use crate::model::ModelEntry;
use crate::route::{Event, Failure, FinishReason, TokenLogprob, Usage};
use crate::text::{Detokenizer, StopMatcher};

use super::job::Job;

/// A token with its log-probability, and where its text begins.
#[derive(Debug, Clone)]
pub struct TokenInfo {
    pub id: u32,
    /// `None` for the first token of a prompt.
    pub logprob: Option<TokenLogprob>,
    /// Characters of output in front of it.
    pub offset: usize,
}

/// What became known of a choice through one event.
#[derive(Debug, Default)]
pub struct Delta {
    pub reasoning: String,
    pub content: String,
    /// The token that came; its text may come later.
    pub token: Option<u32>,
    pub logprobs: Vec<TokenInfo>,
    pub finish: Option<Finish>,
}

#[derive(Debug, Clone, Default)]
pub struct Finish {
    /// `stop` or `length`.
    pub reason: &'static str,
    pub usage: Usage,
    pub reasoning_tokens: u32,
    pub prompt_logprobs: Vec<Option<TokenLogprob>>,
}

impl Delta {
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty()
            && self.content.is_empty()
            && self.logprobs.is_empty()
            && self.finish.is_none()
    }

    fn add(&mut self, part: Part) {
        self.reasoning.push_str(&part.reasoning);
        self.content.push_str(&part.content);
    }
}

/// The state of a choice while it is generated.
pub struct Choice {
    model: Arc<ModelEntry>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    reasoning: Option<Reasoning>,
    min_tokens: u32,
    prompt_tokens: u32,
    tokens: u32,
    reasoning_tokens: u32,
    /// Bytes and characters that the detokenizer gave out.
    bytes: usize,
    characters: usize,
    /// Bytes of it that are no part of a stop string.
    shown: usize,
    /// Tokens whose text is still held back, with the bytes of output in front of and after each.
    held: VecDeque<(TokenInfo, usize, usize)>,
}

impl Choice {
    pub fn new(job: &Job, index: usize) -> Self {
        Self {
            model: job.model.clone(),
            detokenizer: Detokenizer::default(),
            stop: StopMatcher::new(job.params.stop.clone()),
            reasoning: job.reasoning(),
            min_tokens: job.params.min_tokens,
            prompt_tokens: job.prompt_of(index).ids.len() as u32,
            tokens: 0,
            reasoning_tokens: 0,
            bytes: 0,
            characters: 0,
            shown: 0,
            held: VecDeque::new(),
        }
    }

    /// Takes an event of the choice's generation. After a delta with `finish` the generation is to be dropped.
    pub fn feed(&mut self, event: Event) -> Result<Delta, Failure> {
        match event {
            Event::Token { id, logprob } => {
                let mut delta = self.token(id, logprob);
                delta.token = Some(id);
                Ok(delta)
            }
            Event::Done {
                reason: FinishReason::Abort,
                ..
            } => Err(Failure::aborted()),
            Event::Done {
                reason,
                usage,
                prompt_logprobs,
                asr: _,
            } => {
                let rest = self.stop.finish();
                let mut delta = self.text(rest, false);
                self.end_reasoning(&mut delta);
                let reason = if reason == FinishReason::Length {
                    "length"
                } else {
                    "stop"
                };
                let reasoning_tokens = self.reasoning_tokens;
                delta.finish = Some(Finish {
                    reason,
                    usage,
                    reasoning_tokens,
                    prompt_logprobs,
                });
                Ok(delta)
            }
            // The router lets no audio through to a sequence of text.
            Event::Audio(_) => Ok(Delta::default()),
            Event::Failed(failure) => Err(failure),
        }
    }

    fn token(&mut self, id: u32, logprob: Option<TokenLogprob>) -> Delta {
        self.tokens += 1;
        if self.reasoning.as_ref().is_some_and(Reasoning::is_reasoning) {
            self.reasoning_tokens += 1;
        }
        let text = self.detokenizer.push(&self.model.text.pieces, id);
        if logprob.is_some() {
            let info = TokenInfo {
                id,
                logprob,
                offset: self.characters,
            };
            self.held
                .push_back((info, self.bytes, self.bytes + text.len()));
        }
        self.bytes += text.len();
        self.characters += text.chars().count();
        if self.tokens < self.min_tokens {
            // Stop strings, as end ids, count only once the least length is reached.
            return self.text(text, false);
        }
        let found = self.stop.push(&text);
        if !found.stopped {
            return self.text(found.text, false);
        }
        let mut delta = self.text(found.text, true);
        self.end_reasoning(&mut delta);
        // The worker's own count comes with its DONE, which an aborted sequence is not waited for.
        let usage = Usage {
            prompt: self.prompt_tokens,
            completion: self.tokens,
            cached: 0,
        };
        let reasoning_tokens = self.reasoning_tokens;
        delta.finish = Some(Finish {
            reason: "stop",
            usage,
            reasoning_tokens,
            prompt_logprobs: Vec::new(),
        });
        delta
    }

    /// Text that is certain, with the tokens that it came from. After a stop string the tokens of the match are dropped.
    fn text(&mut self, text: String, stopped: bool) -> Delta {
        self.shown += text.len();
        let mut delta = Delta::default();
        while let Some((info, start, end)) = self.held.pop_front() {
            if end > self.shown && !(stopped && start < self.shown) {
                self.held.push_front((info, start, end));
                break;
            }
            delta.logprobs.push(info);
        }
        match &mut self.reasoning {
            None => delta.content = text,
            Some(reasoning) => {
                let part = reasoning.push(&text);
                delta.add(part);
            }
        }
        delta
    }

    fn end_reasoning(&mut self, delta: &mut Delta) {
        if let Some(reasoning) = &mut self.reasoning {
            delta.add(reasoning.finish());
        }
    }
}
