//! One live sequence: where it is, what it has sent, and the way back to its client.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::envelope::Submit;
use super::request::{Event, FinishReason, Generate, Reader, TokenLogprob};
use crate::metrics::SequenceMetrics;

/// Bytes of events that may wait for a sequence's reader. The HTTP side bounds what waits for a client; this is the
/// second line, for a reader that stands still while its worker goes on.
pub const MAX_BUFFERED: usize = 16 << 20;

/// Why an output cannot be handed on.
#[derive(Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The reader has fallen too far behind.
    Behind,
    /// The worker broke the protocol; how.
    Wrong(String),
}

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
    /// Output tokens, or stretches of audio, received.
    pub received: u32,
    /// Of a sequence that is spoken: hertz.
    rate: Option<u32>,
    /// Samples of audio received.
    samples: u64,
    pub reader: Arc<Reader>,
    pub prompt_tokens: u32,
    events: UnboundedSender<Event>,
    metrics: SequenceMetrics,
    submitted: Instant,
    last_output: Option<Instant>,
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
            rate: generate
                .tts
                .as_ref()
                .and(generate.model.speaker())
                .map(|speaker| speaker.sample_rate),
            samples: 0,
            reader: Arc::default(),
            prompt_tokens: u32::try_from(generate.prompt.len()).unwrap_or(u32::MAX),
            events,
            metrics,
            submitted: Instant::now(),
            last_output: None,
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
            tts: generate.tts.as_ref(),
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

    /// A token has come.
    pub fn token(
        &mut self,
        index: u32,
        id: u32,
        logprob: Option<TokenLogprob>,
    ) -> Result<(), Unfit> {
        if self.rate.is_some() {
            return Err(Unfit::Wrong("the worker sent tokens as speech".to_owned()));
        }
        self.count("token", index)?;
        self.metrics.output_tokens.inc();
        self.forward(Event::Token { id, logprob })
    }

    /// A stretch of audio has come.
    pub fn audio(&mut self, index: u32, samples: Vec<f32>) -> Result<(), Unfit> {
        let Some(rate) = self.rate else {
            return Err(Unfit::Wrong("the worker sent audio as text".to_owned()));
        };
        self.count("audio", index)?;
        self.samples += samples.len() as u64;
        self.metrics
            .speech_seconds
            .inc_by(samples.len() as f64 / f64::from(rate));
        self.forward(Event::Audio(samples))
    }

    /// What a worker's end of a sequence leaves out, in words.
    pub fn missing(&self, reason: FinishReason, samples: Option<u64>) -> Option<String> {
        let whole = self.rate.is_none() || reason == FinishReason::Abort;
        let sent = samples.unwrap_or_default();
        (!whole && sent != self.samples).then(|| {
            format!(
                "the worker says that it sent {sent} samples of audio, but {} have come",
                self.samples
            )
        })
    }

    /// Output number `index` of this sequence has come.
    fn count(&mut self, what: &str, index: u32) -> Result<(), Unfit> {
        if index != self.received {
            return Err(Unfit::Wrong(format!(
                "the worker sent {what} {index} where {what} {} was due",
                self.received
            )));
        }
        let now = Instant::now();
        match self.last_output.replace(now) {
            None => {
                self.metrics
                    .ttft
                    .observe((now - self.submitted).as_secs_f64());
                // No other worker takes it over from here on, so nobody needs the prompt or the audio.
                self.generate.prompt = Vec::new();
                self.generate.asr = None;
                self.generate.tts = None;
            }
            Some(last) => self.metrics.itl.observe((now - last).as_secs_f64()),
        }
        self.received += 1;
        Ok(())
    }

    fn forward(&self, event: Event) -> Result<(), Unfit> {
        if self.aborted {
            return Ok(());
        }
        let waiting = self
            .reader
            .buffered
            .fetch_add(event.bytes(), Ordering::Relaxed);
        // A reader that has gone has had its abort sent.
        let _ = self.events.send(event);
        if waiting < MAX_BUFFERED {
            Ok(())
        } else {
            Err(Unfit::Behind)
        }
    }

    /// Label of `denizen_requests_total`.
    pub fn outcome(&self, terminal: &Event) -> &'static str {
        match terminal {
            // A stop string, which the worker does not know: for the client the output ended like any other.
            _ if self.reader.satisfied.load(Ordering::Relaxed) => "stop",
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
        if let (Some(_), Event::Done { usage, .. }) = (self.rate, &terminal) {
            // Tokens of text are counted as they come.
            self.metrics.output_tokens.inc_by(usage.completion.into());
        }
        let _ = self.events.send(terminal);
    }
}
