//! From validated token-id requests to workers and back.

mod again;
mod asr;
pub mod envelope;
mod gauges;
mod receive;
mod request;
mod router;
mod sequence;
mod table;
mod tts;
mod worker;

pub use asr::{AsrResult, AsrWindow, Pcm};
pub use receive::Notice;
pub use request::*;
pub use router::Router;
pub use tts::Utterance;
pub use worker::{Link, SendError, WorkerState};

use std::sync::Arc;

use crate::model::ModelEntry;

/// The HTTP side's only view of the workers. The real one routes to worker processes over the arena; tests of HTTP
/// behaviour may use one that misbehaves on purpose.
pub trait Backend: Send + Sync + 'static {
    /// Hands a sequence to the least loaded worker that hosts its model.
    fn submit(&self, request: Generate) -> Result<Generation, SubmitError>;
    /// Work of several sequences has begun, and goes on until what is returned is dropped: a server that drains waits for
    /// it as for a sequence.
    fn hold(&self) -> AbortOnDrop {
        AbortOnDrop::new(|| ())
    }
    fn models(&self) -> Vec<Arc<ModelEntry>>;
    /// One line per worker that does not make progress; empty = ready.
    fn not_ready(&self) -> Vec<String>;
    /// True after SIGTERM.
    fn draining(&self) -> bool;
    /// The Prometheus text exposition of everything.
    fn metrics(&self) -> String;
}
