//! Where a streamed answer goes: the body of an HTTP response, or a client over shared memory.

use std::future::Future;

use serde_json::json;

use super::choice::{Delta, Finish};
use super::error::ApiError;
use super::job::Job;
use super::shape::Shape;
use super::sse::{Sink, Unsendable};
use crate::audio::Transcript;
use crate::transcribe::Passage;

/// Output to one reader, bounded in bytes.
pub trait Outlet: Send + Sync {
    /// Waits until there is room for more.
    fn room(&self) -> impl Future<Output = Result<(), Unsendable>> + Send;
    /// Waits until the reader has taken everything.
    fn drained(&self) -> impl Future<Output = Result<(), Unsendable>> + Send;
    /// Returns once the reader has gone.
    fn gone(&self) -> impl Future<Output = ()> + Send;
    /// Ends the answer with an error.
    fn fail(&self, error: &ApiError);
    /// Drops what the reader has not taken.
    fn discard(&self);
}

/// An outlet for the answer of a text endpoint.
pub trait TextOutlet: Send + Sync {
    type Lane: Outlet;
    fn lane(&self) -> &Self::Lane;
    /// What comes in front of the first token of choice `index`.
    fn opening(&self, job: &Job, index: usize);
    /// What became known of choice `index`.
    fn delta(&self, job: &Job, index: usize, delta: &Delta);
    /// The end; `finishes` has one entry a choice.
    fn finished(&self, job: &Job, finishes: &[Finish]);
}

/// An outlet for a transcript.
pub trait TranscriptOutlet: Send + Sync {
    type Lane: Outlet;
    fn lane(&self) -> &Self::Lane;
    /// The next passage; `text` is what it adds to the whole, if it adds anything. `logprobs`: its log-probabilities are
    /// wanted.
    fn passage(&self, passage: &Passage, text: Option<&str>, logprobs: bool);
    fn finished(&self, transcript: &Transcript);
}

/// An HTTP response that is a stream of events.
impl Outlet for Sink {
    fn room(&self) -> impl Future<Output = Result<(), Unsendable>> + Send {
        Sink::room(self)
    }

    fn drained(&self) -> impl Future<Output = Result<(), Unsendable>> + Send {
        self.complete();
        Sink::drained(self)
    }

    fn gone(&self) -> impl Future<Output = ()> + Send {
        Sink::gone(self)
    }

    fn fail(&self, error: &ApiError) {
        self.send(&error.body().to_string());
    }

    fn discard(&self) {
        Sink::discard(self);
    }
}

/// OpenAI's events over such a response.
impl TranscriptOutlet for Sink {
    type Lane = Sink;

    fn lane(&self) -> &Sink {
        self
    }

    fn passage(&self, passage: &Passage, text: Option<&str>, logprobs: bool) {
        let Some(text) = text else { return };
        let mut event = json!({"type": "transcript.text.delta", "delta": text});
        if logprobs {
            event["logprobs"] = json!(passage.logprobs);
        }
        self.send(&event.to_string());
    }

    fn finished(&self, transcript: &Transcript) {
        self.send(&transcript.done_event().to_string());
    }
}

/// OpenAI's chunks over such a response.
pub struct Chunks {
    pub sink: Sink,
    pub shape: Shape,
}

impl TextOutlet for Chunks {
    type Lane = Sink;

    fn lane(&self) -> &Sink {
        &self.sink
    }

    fn opening(&self, job: &Job, index: usize) {
        if let Some(data) = self.shape.opening(job, index) {
            self.sink.send(&data);
        }
    }

    fn delta(&self, job: &Job, index: usize, delta: &Delta) {
        if !delta.is_empty() {
            self.sink.send(&self.shape.chunk(job, index, delta));
        }
    }

    fn finished(&self, job: &Job, finishes: &[Finish]) {
        if job.params.include_usage {
            self.sink.send(&self.shape.usage_chunk(job, finishes));
        }
        self.sink.send("[DONE]");
    }
}
