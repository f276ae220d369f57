//! The envelopes between the front end and a worker. The contract is `docs/design/protocol.md`; the Python twin is
//! `worker/protocol.py`; the files in `tests/golden/envelope` hold both to it.
//!
//! This side encodes what it sends ([`ToWorker`]) and decodes what it receives ([`FromWorker`]).

use std::collections::BTreeMap;

mod decode;
mod encode;
pub(crate) mod wire;

use super::asr::{AsrResult, AsrWindow};
use super::request::{FinishReason, Sampling, TokenLogprob, Usage};
use super::tts::Utterance;

pub use decode::decode;
pub use encode::encode;
pub use wire::DecodeError;

pub const VERSION: u64 = 1;
/// Version of the bodies' meaning, carried by HELLO; it grows when a peer must know of a change.
pub const SCHEMA: u64 = 1;
/// Longest envelope that is decoded.
pub const MAX_BYTES: usize = 32 << 20;

/// A request's place in the front end's table. `0` as a whole means "no request".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub slot: u32,
    pub generation: u32,
}

impl RequestId {
    pub fn to_wire(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    pub fn from_wire(wire: u64) -> Self {
        Self {
            slot: wire as u32,
            generation: (wire >> 32) as u32,
        }
    }
}

/// What the front end sends.
#[derive(Debug)]
pub enum ToWorker<'a> {
    Hello {
        abi: &'a str,
        version: &'a str,
        pid: u32,
        tokenizers: &'a BTreeMap<String, String>,
    },
    Submit(Submit<'a>),
    Abort,
    Drain,
    Bye {
        why: &'a str,
    },
}

/// A sequence to generate; meanings as in [`Generate`](super::Generate).
#[derive(Debug, Clone, Copy)]
pub struct Submit<'a> {
    pub model: &'a str,
    pub prompt: &'a [u32],
    pub max_tokens: u32,
    pub min_tokens: u32,
    pub stop_ids: &'a [u32],
    pub sampling: &'a Sampling,
    pub prompt_logprobs: Option<u32>,
    /// Its audio is the envelope's attachment.
    pub asr: Option<&'a AsrWindow>,
    pub tts: Option<&'a Utterance>,
}

/// A received envelope; `body` is `None` for a kind that a newer worker has and this side does not know.
#[derive(Debug, PartialEq)]
pub struct Envelope {
    pub request: u64,
    pub sequence: u64,
    pub body: Option<FromWorker>,
    /// Bytes that came beside it, copied out of the arena.
    pub attachment: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq)]
pub enum FromWorker {
    Hello(WorkerHello),
    Ready {
        models: Vec<ReadyModel>,
        credits: u32,
    },
    Tokens(Vec<TokenRow>),
    Audio(AudioChunk),
    Done(Done),
    Error(WorkerError),
    Stats(Stats),
    Bye {
        why: String,
    },
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct WorkerHello {
    pub abi: String,
    pub schema: u64,
    pub version: String,
    pub pid: u32,
    pub python: String,
    pub torch: String,
    pub device: String,
}

/// A model as the worker loaded it. `context` and `kv_tokens` are in positions.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ReadyModel {
    pub name: String,
    pub family: String,
    pub kind: String,
    pub context: u32,
    pub vocab: u32,
    pub rows: u32,
    pub kv_tokens: u64,
    pub fingerprint: String,
    /// Hertz of what it says; models of kind `tts` only.
    pub sample_rate: u32,
    /// Names of its voices; the same.
    pub voices: Vec<String>,
}

/// One output token of one request; `index` counts the request's output tokens from 0.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRow {
    pub request: u64,
    pub index: u32,
    pub token: u32,
    pub logprob: Option<TokenLogprob>,
}

/// The next stretch of a request's audio; the samples are the attachment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct AudioChunk {
    /// Counts the request's chunks from 0.
    pub index: u32,
    pub samples: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    pub reason: FinishReason,
    pub stop_id: Option<u32>,
    pub usage: Usage,
    /// One entry a prompt position; empty unless asked for.
    pub prompt_logprobs: Vec<Option<TokenLogprob>>,
    /// Of a model that hears.
    pub asr: Option<AsrResult>,
    /// Samples that were sent; of a model that speaks.
    pub samples: Option<u64>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct WorkerError {
    pub code: String,
    pub message: String,
    pub param: Option<String>,
    pub retryable: bool,
}

/// A worker's gauges and counters; `load` is set while weights load.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Stats {
    pub load: Option<Load>,
    pub waiting: u64,
    pub running: u64,
    pub rows: u64,
    pub rows_total: u64,
    pub kv_pages: u64,
    pub kv_pages_total: u64,
    pub state_slots: u64,
    pub state_slots_total: u64,
    pub preemptions: u64,
    pub steps: u64,
    pub prefill_tokens: u64,
    pub decode_tokens: u64,
}

/// How far the weights of `model` are, in bytes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Load {
    pub model: String,
    pub done: u64,
    pub total: u64,
}
