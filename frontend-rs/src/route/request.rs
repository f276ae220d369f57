//! What the HTTP side hands to the router, and what it gets back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::asr::{AsrResult, AsrWindow};
use super::tts::Utterance;
use crate::model::ModelEntry;

/// Sampling parameters of one sequence, validated. Field meanings: `docs/design/protocol.md`, SUBMIT.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub seed: u64,
    pub logit_bias: Vec<(u32, f32)>,
    /// `Some(n)`: the sampled token's log-probability and `n` alternatives.
    pub logprobs: Option<u32>,
}

/// One sequence to generate: token ids, and audio for a model that hears, in; token ids out, or audio of a model that
/// speaks. The router never sees text.
#[derive(Debug, Clone)]
pub struct Generate {
    pub model: Arc<ModelEntry>,
    pub prompt: Vec<u32>,
    pub max_tokens: u32,
    pub min_tokens: u32,
    /// End ids; empty with `ignore_eos`.
    pub stop_ids: Vec<u32>,
    pub sampling: Sampling,
    pub prompt_logprobs: Option<u32>,
    /// What a model that hears listens to; `None` for others.
    pub asr: Option<AsrWindow>,
    /// How a model that speaks does so; `None` for others.
    pub tts: Option<Utterance>,
}

/// A token's log-probability with the most likely alternatives.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    pub logprob: f32,
    pub top: Vec<(u32, f32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    Stop,
    Length,
    Abort,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: u32,
    pub completion: u32,
    pub cached: u32,
}

/// What happens to a submitted sequence. Exactly one of `Done` and `Failed` comes, and it comes last.
#[derive(Debug, Clone)]
pub enum Event {
    Token {
        id: u32,
        logprob: Option<TokenLogprob>,
    },
    /// The next stretch of what a model says: mono, at its sample rate, not empty.
    Audio(Vec<f32>),
    Done {
        reason: FinishReason,
        usage: Usage,
        /// One entry a prompt position, the first is `None`; empty unless asked for.
        prompt_logprobs: Vec<Option<TokenLogprob>>,
        /// Of a speech model.
        asr: Option<AsrResult>,
    },
    Failed(Failure),
}

impl Event {
    /// Memory that it takes while it waits for its reader, in bytes, roughly.
    pub fn bytes(&self) -> usize {
        let own = std::mem::size_of::<Self>();
        let top = |logprob: &TokenLogprob| std::mem::size_of_val(&logprob.top[..]);
        match self {
            Self::Token { logprob, .. } => own + logprob.as_ref().map_or(0, top),
            Self::Audio(samples) => own + std::mem::size_of_val(&samples[..]),
            Self::Done { .. } | Self::Failed(_) => own,
        }
    }
}

/// Why a sequence ended without a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Machine-readable, for example `worker_died`, `timeout`, `slow_client`.
    pub code: String,
    pub message: String,
    pub param: Option<String>,
    /// The same request may succeed if it is sent again.
    pub retryable: bool,
}

impl Failure {
    /// The worker ended the sequence though its client is there.
    pub fn aborted() -> Self {
        Self {
            code: "aborted".to_owned(),
            message: "the server gave up this request; send it again".to_owned(),
            param: None,
            retryable: true,
        }
    }

    /// Nobody reads this one: the client has gone.
    pub(super) fn client_left() -> Self {
        Self {
            code: "client_left".to_owned(),
            message: "the client has gone".to_owned(),
            param: None,
            retryable: false,
        }
    }
}

/// Why a sequence was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// 429: the limit on requests in flight or the queue is full.
    #[error("{limit} requests are in flight already; try again in {retry_after_s} s")]
    Busy { limit: usize, retry_after_s: u64 },
    /// 503: no worker that hosts the model is up.
    #[error("no worker is ready for model '{model}'; try again in {retry_after_s} s")]
    NotReady { model: String, retry_after_s: u64 },
    /// 503: the server drains after SIGTERM.
    #[error("the server is shutting down")]
    Draining,
}

/// A running sequence. Dropping it aborts the sequence if it has not ended, so that a client that goes away frees its
/// row and pages at once.
pub struct Generation {
    events: mpsc::UnboundedReceiver<Event>,
    _abort: AbortOnDrop,
    reader: Arc<Reader>,
}

/// What a generation tells whoever sends its events.
#[derive(Debug, Default)]
pub struct Reader {
    /// Bytes of events sent and not taken.
    pub buffered: AtomicUsize,
    /// It has all the output that it wants: a stop string came.
    pub satisfied: AtomicBool,
}

impl Generation {
    /// `abort` runs when the generation is dropped, whether it has ended or not.
    pub fn new(events: mpsc::UnboundedReceiver<Event>, abort: AbortOnDrop) -> Self {
        Self::watched(events, abort, Arc::default())
    }

    /// The same, for a sender that adds each event's [`Event::bytes`] to `reader`, so as to notice one that stands still.
    pub fn watched(
        events: mpsc::UnboundedReceiver<Event>,
        abort: AbortOnDrop,
        reader: Arc<Reader>,
    ) -> Self {
        Self {
            events,
            _abort: abort,
            reader,
        }
    }

    /// Drops it, as one that has what it wants, whether the sequence has ended or not.
    pub fn satisfied(self) {
        self.reader.satisfied.store(true, Ordering::Relaxed);
    }

    /// The next event, or `None` after the terminal one.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await?;
        // Not below zero: a sender need not count.
        let _ = self
            .reader
            .buffered
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
                Some(bytes.saturating_sub(event.bytes()))
            });
        Some(event)
    }
}

/// Calls its function once, on drop.
pub struct AbortOnDrop(Option<Box<dyn FnOnce() + Send + Sync>>);

impl AbortOnDrop {
    pub fn new(f: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(f)))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}
