//! Windows of audio through the router to a worker and back, and files made ready for that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::audio::{AudioError, Decoder, Limits, Resampler, Share, Voice, SAMPLE_RATE};
use crate::model::ModelEntry;
use crate::route::{
    AbortOnDrop, AsrWindow, Backend, Event, Failure, FinishReason, Generate, Pcm, Sampling,
    SubmitError,
};
use crate::transcribe::{Attempt, Heard, Listener};

/// How long a window of a file that is being written down waits when the server has no place for it.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// A decoded file.
#[derive(Debug)]
pub struct Recording {
    pub pcm: Arc<Vec<f32>>,
    pub voice: Voice,
    /// Seconds of the original.
    pub duration_s: f64,
    _share: Share,
}

impl Recording {
    /// Decodes a file and finds the speech in it. Blocks, for seconds if the file is long; `None` soon after `go_on` has
    /// said no. What it takes is counted in `share` as it grows, beside what that has for the file itself; in the end
    /// `share` has the decoded audio alone.
    pub fn open(
        bytes: &[u8],
        limits: &Limits,
        mut share: Share,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<Self>, AudioError> {
        let file = share.bytes();
        let mut decoder = Decoder::open(bytes, limits)?;
        while decoder.step()? {
            if !go_on() {
                return Ok(None);
            }
            share.set(file + decoder.bytes())?;
        }
        let audio = decoder.finish()?;
        let decoded = audio.pcm.capacity() * size_of::<f32>();
        share.set(file + decoded)?;
        let voice = Voice::detect(&audio.pcm, go_on);
        share.set(decoded)?;
        Ok(voice.map(|voice| Self {
            pcm: Arc::new(audio.pcm),
            voice,
            duration_s: audio.duration_s,
            _share: share,
        }))
    }
}

impl Recording {
    /// Takes samples as they are: mono, finite, at `rate` hertz. What exceeds ±1 is clipped, as in a file. Blocks like
    /// [`Recording::open`]. `share` has the samples' memory already.
    pub fn of_samples(
        samples: Vec<f32>,
        rate: u32,
        mut share: Share,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<Self>, AudioError> {
        let duration_s = samples.len() as f64 / f64::from(rate);
        let mut pcm = if rate == SAMPLE_RATE {
            samples
        } else {
            let mut resampler = Resampler::new(rate);
            let mut pcm = Vec::new();
            // A second a step, so that it can be given up.
            for second in samples.chunks(rate as usize) {
                if !go_on() {
                    return Ok(None);
                }
                resampler.push(second, &mut pcm);
                share.set((samples.capacity() + pcm.capacity()) * size_of::<f32>())?;
            }
            resampler.finish(&mut pcm);
            pcm
        };
        share.set(pcm.capacity() * size_of::<f32>())?;
        // Behind the resampler, whose filter overshoots.
        for sample in &mut pcm {
            *sample = sample.clamp(-1.0, 1.0);
        }
        let voice = Voice::detect(&pcm, go_on);
        Ok(voice.map(|voice| Self {
            pcm: Arc::new(pcm),
            voice,
            duration_s,
            _share: share,
        }))
    }
}

/// Why a window was not heard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    #[error("{0}")]
    Refused(#[from] SubmitError),
    #[error("{0}")]
    Failed(#[from] Failure),
}

/// Sends the windows of one recording to whatever serves its model.
pub struct Windows {
    backend: Arc<dyn Backend>,
    model: Arc<ModelEntry>,
    pcm: Arc<Vec<f32>>,
    /// A window was taken: the file is being written down, and waits rather than fails where there is no room.
    begun: AtomicBool,
    _hold: AbortOnDrop,
}

impl Windows {
    pub fn new(backend: Arc<dyn Backend>, model: Arc<ModelEntry>, pcm: Arc<Vec<f32>>) -> Self {
        Self {
            _hold: backend.hold(),
            backend,
            model,
            pcm,
            begun: AtomicBool::new(false),
        }
    }

    fn generate(&self, attempt: Attempt) -> Generate {
        let speech = self.model.speech.as_ref();
        Generate {
            model: self.model.clone(),
            prompt: attempt.prompt,
            max_tokens: attempt.max_tokens,
            min_tokens: 0,
            stop_ids: speech
                .filter(|_| !attempt.ignore_eos)
                .map(|speech| vec![speech.eot])
                .unwrap_or_default(),
            sampling: Sampling {
                temperature: attempt.temperature,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
                repetition_penalty: 1.0,
                presence_penalty: 0.0,
                frequency_penalty: 0.0,
                seed: attempt.seed,
                logit_bias: Vec::new(),
                logprobs: attempt.logprobs.then_some(0),
            },
            prompt_logprobs: None,
            asr: Some(AsrWindow {
                audio: Pcm::new(self.pcm.clone(), attempt.audio),
                continues: self.begun.load(Ordering::Relaxed),
                timestamps: true,
                detect: attempt.detect,
                forced: attempt.forced,
                words: attempt.words,
            }),
            tts: None,
        }
    }
}

impl Listener for Windows {
    type Error = ListenError;

    async fn listen(&self, attempt: Attempt) -> Result<Heard, ListenError> {
        let request = self.generate(attempt);
        let mut generation = loop {
            match self.backend.submit(request.clone()) {
                Err(SubmitError::Busy { .. }) if self.begun.load(Ordering::Relaxed) => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                outcome => break outcome?,
            }
        };
        self.begun.store(true, Ordering::Relaxed);
        let mut heard = Heard::default();
        loop {
            match generation.next().await {
                Some(Event::Token { id, logprob }) => {
                    heard.tokens.push(id);
                    heard.logprobs.extend(logprob.map(|known| known.logprob));
                }
                Some(Event::Done {
                    reason: FinishReason::Stop | FinishReason::Length,
                    asr: Some(asr),
                    ..
                }) => {
                    heard.no_speech = asr.no_speech;
                    heard.avg_logprob = asr.avg_logprob;
                    heard.times = asr.times;
                    return Ok(heard);
                }
                Some(Event::Failed(failure)) => return Err(failure.into()),
                Some(Event::Done {
                    reason: FinishReason::Abort,
                    ..
                }) => return Err(Failure::aborted().into()),
                // The router lets no audio through to a sequence of text.
                Some(Event::Done { .. } | Event::Audio(_)) | None => {
                    return Err(Failure {
                        code: "worker_protocol".to_owned(),
                        message: "the worker ended a window without its result".to_owned(),
                        param: None,
                        retryable: true,
                    }
                    .into());
                }
            }
        }
    }
}
