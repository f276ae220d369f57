//! OpenAI's JSON for both completion endpoints.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{json, Map, Value};

use super::choice::{Delta, Finish, TokenInfo};
use super::job::{Endpoint, Job};
use super::run::Collected;
use crate::route::TokenLogprob;
use crate::text::Pieces;

/// What stands for minus infinity, which JSON does not have.
const LEAST_LOGPROB: f32 = -9999.0;

/// The identity of a response, the same in each of its chunks.
pub struct Shape {
    id: String,
    created: u64,
}

impl Shape {
    pub fn new(job: &Job) -> Self {
        let prefix = match job.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
        };
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Self {
            id: format!("{prefix}-{:032x}", rand::random::<u128>()),
            created,
        }
    }

    fn envelope(&self, job: &Job, streamed: bool, choices: Vec<Value>) -> Value {
        let object = match (job.endpoint, streamed) {
            (Endpoint::Chat, true) => "chat.completion.chunk",
            (Endpoint::Chat, false) => "chat.completion",
            (Endpoint::Completion, _) => "text_completion",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": job.model.name,
            "choices": choices,
        })
    }

    fn stream_chunk(&self, job: &Job, choices: Vec<Value>, usage: Value) -> String {
        let mut chunk = self.envelope(job, true, choices);
        if job.params.include_usage {
            chunk["usage"] = usage;
        }
        chunk.to_string()
    }

    /// The chunk in front of a choice's first token: its role, or its prompt for `echo`.
    pub fn opening(&self, job: &Job, index: usize) -> Option<String> {
        let choice = match (job.endpoint, &job.prompt_of(index).echo) {
            (Endpoint::Chat, _) => json!({
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": null,
                "finish_reason": null,
            }),
            (Endpoint::Completion, Some(prompt)) => {
                json!({"index": index, "text": prompt, "logprobs": null, "finish_reason": null})
            }
            (Endpoint::Completion, None) => return None,
        };
        Some(self.stream_chunk(job, vec![choice], Value::Null))
    }

    pub fn chunk(&self, job: &Job, index: usize, delta: &Delta) -> String {
        let finish = delta.finish.as_ref().map(|finish| finish.reason);
        let logprobs = delta_logprobs(job, index, delta);
        let choice = match job.endpoint {
            Endpoint::Chat => {
                let mut message = Map::new();
                if !delta.reasoning.is_empty() {
                    message.insert("reasoning_content".into(), json!(delta.reasoning));
                }
                let only_content = delta.reasoning.is_empty() && delta.finish.is_none();
                if !delta.content.is_empty() || only_content {
                    message.insert("content".into(), json!(delta.content));
                }
                json!({
                    "index": index,
                    "delta": message,
                    "logprobs": logprobs,
                    "finish_reason": finish,
                })
            }
            Endpoint::Completion => json!({
                "index": index,
                "text": delta.content,
                "logprobs": logprobs,
                "finish_reason": finish,
            }),
        };
        self.stream_chunk(job, vec![choice], Value::Null)
    }

    pub fn usage_chunk(&self, job: &Job, finishes: &[Finish]) -> String {
        self.stream_chunk(job, Vec::new(), usage(job, finishes.iter()))
    }

    /// What is left to say once everything has been streamed to a client of shared memory.
    pub fn summary(&self, job: &Job, finishes: &[Finish]) -> Value {
        let choices = finishes.iter().enumerate();
        let choices = choices
            .map(|(index, finish)| json!({"index": index, "finish_reason": finish.reason}))
            .collect();
        let mut summary = self.envelope(job, false, choices);
        summary["usage"] = usage(job, finishes.iter());
        summary
    }

    /// The answer to a request without `stream`.
    pub fn response(&self, job: &Job, collected: &[Collected]) -> Value {
        let choices = collected.iter().enumerate();
        let choices = choices.map(|(index, choice)| match job.endpoint {
            Endpoint::Chat => chat_choice(job, index, choice),
            Endpoint::Completion => completion_choice(job, index, choice),
        });
        let mut response = self.envelope(job, false, choices.collect());
        response["usage"] = usage(job, collected.iter().map(|choice| &choice.finish));
        response
    }
}

/// Each prompt counts once, however many choices it has.
fn usage<'a>(job: &Job, finishes: impl Iterator<Item = &'a Finish>) -> Value {
    let prompt: usize = job.prompts.iter().map(|prompt| prompt.ids.len()).sum();
    let mut completion = 0;
    let mut reasoning = 0;
    let mut cached = vec![0; job.prompts.len()];
    for (index, finish) in finishes.enumerate() {
        completion += finish.usage.completion as usize;
        reasoning += finish.reasoning_tokens;
        let cached = &mut cached[index / job.params.n as usize];
        *cached = finish.usage.cached.max(*cached);
    }
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached.iter().sum::<u32>()},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    })
}

/// The log-probabilities of a part of choice `index`, as the endpoint shows them; `None` if there are none.
pub fn delta_logprobs(job: &Job, index: usize, delta: &Delta) -> Option<Value> {
    if delta.logprobs.is_empty() {
        return None;
    }
    let pieces = &job.model.text.pieces;
    Some(match job.endpoint {
        Endpoint::Chat => chat_logprobs(pieces, &delta.logprobs),
        Endpoint::Completion => {
            let echo = job.prompt_of(index).echo.as_deref();
            let before = echo.map_or(0, |echo| echo.chars().count());
            completion_logprobs(pieces, &delta.logprobs, before)
        }
    })
}

fn chat_choice(job: &Job, index: usize, choice: &Collected) -> Value {
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    let only_reasoning = choice.content.is_empty() && !choice.reasoning.is_empty();
    message.insert(
        "content".into(),
        if only_reasoning {
            Value::Null
        } else {
            json!(choice.content)
        },
    );
    if !choice.reasoning.is_empty() {
        message.insert("reasoning_content".into(), json!(choice.reasoning));
    }
    message.insert("refusal".into(), Value::Null);
    let logprobs = job
        .params
        .sampling
        .logprobs
        .map(|_| chat_logprobs(&job.model.text.pieces, &choice.logprobs));
    json!({
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": choice.finish.reason,
    })
}

fn completion_choice(job: &Job, index: usize, choice: &Collected) -> Value {
    let pieces = &job.model.text.pieces;
    let prompt = job.prompt_of(index);
    let echo = prompt.echo.as_deref().unwrap_or_default();
    let logprobs = job.params.sampling.logprobs.map(|_| {
        let mut tokens = Vec::new();
        if job.prompt_logprobs.is_some() {
            tokens = prompt_tokens(pieces, &prompt.ids, &choice.finish.prompt_logprobs);
        }
        let before = echo.chars().count();
        tokens.extend(choice.logprobs.iter().map(|token| TokenInfo {
            offset: before + token.offset,
            ..token.clone()
        }));
        completion_logprobs(pieces, &tokens, 0)
    });
    json!({
        "index": index,
        "text": format!("{echo}{}", choice.content),
        "logprobs": logprobs,
        "finish_reason": choice.finish.reason,
    })
}

fn prompt_tokens(
    pieces: &Pieces,
    ids: &[u32],
    logprobs: &[Option<TokenLogprob>],
) -> Vec<TokenInfo> {
    let mut offset = 0;
    let mut detokenizer = crate::text::Detokenizer::showing_special_tokens();
    let token = |(i, &id): (usize, &u32)| {
        let info = TokenInfo {
            id,
            logprob: logprobs.get(i).cloned().flatten(),
            offset,
        };
        offset += detokenizer.push(pieces, id).chars().count();
        info
    };
    ids.iter().enumerate().map(token).collect()
}

fn finite(logprob: f32) -> f32 {
    logprob.max(LEAST_LOGPROB)
}

fn chat_logprobs(pieces: &Pieces, tokens: &[TokenInfo]) -> Value {
    let entry = |id: u32, logprob: f32| json!({"token": pieces.display(id), "logprob": finite(logprob), "bytes": pieces.bytes(id)});
    let content = tokens.iter().filter_map(|token| {
        let logprob = token.logprob.as_ref()?;
        let mut value = entry(token.id, logprob.logprob);
        value["top_logprobs"] = logprob
            .top
            .iter()
            .map(|&(id, logprob)| entry(id, logprob))
            .collect();
        Some(value)
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// `before` is added to the tokens' offsets.
fn completion_logprobs(pieces: &Pieces, tokens: &[TokenInfo], before: usize) -> Value {
    let top = |token: &TokenInfo| {
        let logprob = token.logprob.as_ref()?;
        // OpenAI lists the sampled token even where it is not among the most likely.
        let all = logprob
            .top
            .iter()
            .copied()
            .chain([(token.id, logprob.logprob)]);
        let map: Map<String, Value> = all
            .map(|(id, logprob)| (pieces.display(id), json!(finite(logprob))))
            .collect();
        Some(map)
    };
    json!({
        "tokens": tokens.iter().map(|token| pieces.display(token.id)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob.as_ref().map(|l| finite(l.logprob))).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": tokens.iter().map(|token| before + token.offset).collect::<Vec<_>>(),
    })
}
