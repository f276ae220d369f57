//! One live sequence: where it is, what it has sent, and the way back to its client.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::envelope::Submit;
use super::request::{Event, FinishReason, Generate, TokenLogprob};
use crate::metrics::SequenceMetrics;

/// Bytes of events that may wait for a sequence's reader. The HTTP side bounds what waits for a client; this is the
/// second line, for a reader that stands still while its worker goes on.
pub const MAX_BUFFERED: usize = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Queue,
    /// Sent to the worker with this index.
    Worker(usize),
}

pub struct Sequence {
    pub generate: Generate,
    pub place: Place,
    /// Given to a second worker already.
    pub moved: bool,
    /// ABORT was sent.
    pub aborted: bool,
    /// Output tokens received.
    pub received: u32,
    /// Bytes of events that the reader has not taken.
    pub buffered: Arc<AtomicUsize>,
    pub prompt_tokens: u32,
    events: UnboundedSender<Event>,
    metrics: SequenceMetrics,
    submitted: Instant,
    last_token: Option<Instant>,
}

impl Sequence {
    pub fn new(
        generate: Generate,
        events: UnboundedSender<Event>,
        metrics: SequenceMetrics,
    ) -> Self {
        Self {
            place: Place::Queue,
            moved: false,
            aborted: false,
            received: 0,
            buffered: Arc::default(),
            prompt_tokens: u32::try_from(generate.prompt.len()).unwrap_or(u32::MAX),
            events,
            metrics,
            submitted: Instant::now(),
            last_token: None,
            generate,
        }
    }

    /// What goes to the worker.
    pub fn submit(&self) -> Submit<'_> {
        let generate = &self.generate;
        Submit {
            model: &generate.model.name,
            prompt: &generate.prompt,
            max_tokens: generate.max_tokens,
            min_tokens: generate.min_tokens,
            stop_ids: &generate.stop_ids,
            sampling: &generate.sampling,
            prompt_logprobs: generate.prompt_logprobs,
            asr: generate.asr.as_ref(),
        }
    }

    /// What goes beside it.
    pub fn attachment(&self) -> Option<&[u8]> {
        self.generate
            .asr
            .as_ref()
            .map(|window| window.audio.bytes())
    }

    /// Whether another worker may take it over: nothing of it was seen yet, and it was not moved before.
    pub fn may_move(&self) -> bool {
        self.received == 0 && !self.moved && !self.aborted
    }

    /// A token has come. False if the reader has fallen too far behind.
    pub fn token(&mut self, id: u32, logprob: Option<TokenLogprob>) -> bool {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => {
                self.metrics
                    .ttft
                    .observe((now - self.submitted).as_secs_f64());
                // No other worker takes it over from here on, so nobody needs the prompt or the audio.
                self.generate.prompt = Vec::new();
                self.generate.asr = None;
            }
            Some(last) => self.metrics.itl.observe((now - last).as_secs_f64()),
        }
        self.received += 1;
        self.metrics.output_tokens.inc();
        if self.aborted {
            return true;
        }
        let event = Event::Token { id, logprob };
        let waiting = self.buffered.fetch_add(event.bytes(), Ordering::Relaxed);
        // A reader that has gone has had its abort sent.
        let _ = self.events.send(event);
        waiting < MAX_BUFFERED
    }

    /// Label of `denizen_requests_total`.
    pub fn outcome(&self, terminal: &Event) -> &'static str {
        match terminal {
            _ if self.aborted => "abort",
            Event::Done {
                reason: FinishReason::Stop,
                ..
            } => "stop",
            Event::Done {
                reason: FinishReason::Length,
                ..
            } => "length",
            Event::Done {
                reason: FinishReason::Abort,
                ..
            } => "abort",
            _ => "failed",
        }
    }

    /// Sends the terminal event. The sequence is consumed, so nothing can follow.
    pub fn end(self, terminal: Event) {
        self.metrics
            .e2e
            .observe(self.submitted.elapsed().as_secs_f64());
        let _ = self.events.send(terminal);
    }
}
