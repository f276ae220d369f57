//! The whole of this module over a listener that does what a test's script says.

mod windows;
mod words;

use std::sync::Mutex;

use super::toy::{model, text, time, voice};
use super::*;

pub(super) const S: usize = crate::audio::SAMPLE_RATE as usize;

/// Answers each attempt by its number; keeps what it was asked.
struct Scripted<F> {
    script: F,
    asked: Mutex<Vec<Attempt>>,
    answered: AtomicU64,
    /// Most attempts that waited for their answers together.
    at_once: AtomicU64,
}

impl<F: Fn(usize, &Attempt) -> Heard + Sync> Listener for Scripted<F> {
    type Error = std::convert::Infallible;

    async fn listen(&self, attempt: Attempt) -> Result<Heard, Self::Error> {
        let number = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(attempt.clone());
            let waiting = asked.len() as u64 - self.answered.load(Ordering::Relaxed);
            self.at_once.fetch_max(waiting, Ordering::Relaxed);
            asked.len() - 1
        };
        // Lets pieces that run at once take turns.
        tokio::task::yield_now().await;
        self.answered.fetch_add(1, Ordering::Relaxed);
        Ok((self.script)(number, &attempt))
    }
}

pub(super) struct Outcome {
    pub(super) transcript: Transcript,
    pub(super) asked: Vec<Attempt>,
    pub(super) at_once: u64,
    pub(super) tally: Tally,
    pub(super) reported: Vec<String>,
}

pub(super) fn settings() -> Settings {
    Settings {
        task: Task::Transcribe,
        language: Some("en"),
        prompt: Vec::new(),
        temperature: 0.0,
        max_tokens: 224,
        ignore_eos: false,
        words: false,
        logprobs: false,
        mode: Mode::Sequential,
        seed: 1,
    }
}

pub(super) fn run(
    settings: &Settings,
    voice: &Voice,
    script: impl Fn(usize, &Attempt) -> Heard + Sync,
) -> Outcome {
    let model = model();
    let listener = Scripted {
        script,
        asked: Mutex::default(),
        answered: AtomicU64::new(0),
        at_once: AtomicU64::new(0),
    };
    let tally = Tally::default();
    let job = Job {
        model: &model,
        speech: model.speech.as_ref().unwrap(),
        listener: &listener,
        voice,
        settings,
        duration_s: voice.samples() as f64 / S as f64,
        tally: &tally,
    };
    let mut reported = Vec::new();
    let mut report = |passages: &[Passage], _| {
        reported.extend(passages.iter().map(|passage| passage.segment.text.clone()));
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let transcript = runtime.block_on(job.run(&mut report)).unwrap();
    let texts: Vec<_> = transcript.segments.iter().map(|s| s.text.clone()).collect();
    assert_eq!(reported, texts, "what is reported is the transcript");
    check(&transcript);
    let at_once = listener.at_once.into_inner();
    let asked = listener.asked.into_inner().unwrap();
    Outcome {
        transcript,
        asked,
        at_once,
        tally,
        reported,
    }
}

/// What holds for every transcript.
fn check(transcript: &Transcript) {
    let mut at = 0.0;
    for (id, segment) in (0..).zip(&transcript.segments) {
        assert_eq!(segment.id, id);
        assert!(
            segment.start >= at
                && segment.end > segment.start
                && segment.end <= transcript.duration_s,
            "{segment:?}"
        );
        at = segment.start;
    }
}

pub(super) fn all(seconds: f64) -> Voice {
    let samples = (seconds * S as f64).round() as usize;
    voice(std::slice::from_ref(&(0..samples)), samples)
}

/// `(start, text, end)` of each segment, and the last time doubled where more follows.
pub(super) fn said(segments: &[(f64, &str, f64)], more: bool) -> Heard {
    let mut tokens = Vec::new();
    for (start, words, end) in segments {
        tokens.push(time(*start));
        tokens.extend(text(words));
        tokens.push(time(*end));
    }
    if more {
        tokens.push(*tokens.last().unwrap());
    }
    Heard {
        tokens,
        avg_logprob: -0.25,
        no_speech: 0.125,
        logprobs: Vec::new(),
        times: Vec::new(),
    }
}
