//! Audio of any length to a transcript, by windows of at most 30 s. Pure logic: who listens to a window is a trait.
//!
//! # Layout
//!
//! `sequential` (window after window, each from where the last one ended) or `parallel` (`cuts` at pauses, all pieces at
//! once) → `fallback` (one window, at growing temperatures) → `segments` (tokens to segments, and where to go on) →
//! `words` (times of words).
//!
//! The rules are those of OpenAI's reference implementation; `docs/design/audio.md` says where this differs.

mod cuts;
mod fallback;
mod parallel;
mod segments;
mod sequential;
mod words;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;

pub use cuts::Pauses;

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::audio::{ScoredToken, Segment, Transcript, Voice, Word};
use crate::model::ModelEntry;
use crate::speech::{SpeechModel, Task};
use crate::text::TextModel;

/// Samples of a window: 30 s.
pub const WINDOW: usize = 480_000;
/// Samples of a frame of Whisper's features, 10 ms: windows begin at whole ones.
const HOP: usize = 160;
/// The same as a number of samples a second, for times.
const SAMPLE_RATE_S: f64 = crate::audio::SAMPLE_RATE as f64;
/// Frames of a window.
const WINDOW_FRAMES: usize = WINDOW / HOP;

/// How a file is written down.
#[derive(Debug, Clone)]
pub struct Settings {
    pub task: Task,
    /// Code of the spoken language; `None`: the first window tells.
    pub language: Option<&'static str>,
    /// Ids of the client's prompt.
    pub prompt: Vec<u32>,
    /// Where the fallback ladder starts.
    pub temperature: f32,
    /// Most tokens of a window.
    pub max_tokens: u32,
    /// Each window gives exactly that many: nothing is taken for silence, and nothing is listened to twice.
    pub ignore_eos: bool,
    pub words: bool,
    /// Each text token with its log-probability.
    pub logprobs: bool,
    pub mode: Mode,
    pub seed: u64,
}

/// How long audio is gone through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mode {
    /// Window after window, each with the text before it as its prompt.
    Sequential,
    /// Cut at pauses, and all pieces at once.
    Parallel(Pauses),
}

/// One window to listen to, once.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Samples of the file.
    pub audio: Range<usize>,
    pub prompt: Vec<u32>,
    pub max_tokens: u32,
    /// The end of text does not end it.
    pub ignore_eos: bool,
    /// The first output token is the language, and `forced` follows it.
    pub detect: bool,
    pub forced: Vec<u32>,
    pub temperature: f32,
    pub seed: u64,
    pub words: bool,
    pub logprobs: bool,
}

/// What was heard in a window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heard {
    /// All output tokens, without the end token.
    pub tokens: Vec<u32>,
    pub no_speech: f32,
    pub avg_logprob: f32,
    /// Of each output token; empty unless asked for.
    pub logprobs: Vec<f32>,
    /// Seconds in the window at which the text tokens begin, and at which the last one ends.
    pub times: Vec<f32>,
}

/// Listens to windows: a worker, behind everything that leads there. Dropping the future gives the window up.
pub trait Listener: Sync {
    type Error: Send;
    fn listen(&self, attempt: Attempt) -> impl Future<Output = Result<Heard, Self::Error>> + Send;
}

/// A segment with its words and its scored tokens; these are empty unless asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    pub segment: Segment,
    pub words: Vec<Word>,
    pub logprobs: Vec<ScoredToken>,
}

/// What it took.
#[derive(Debug, Default)]
pub struct Tally {
    pub windows: AtomicU64,
    /// Windows listened to again at a higher temperature.
    pub fallbacks: AtomicU64,
    /// Windows that nobody listened to, or that were dropped, because nobody spoke.
    pub silent: AtomicU64,
}

/// A file to be written down.
pub struct Job<'a, L> {
    pub model: &'a ModelEntry,
    pub speech: &'a SpeechModel,
    pub listener: &'a L,
    pub voice: &'a Voice,
    pub settings: &'a Settings,
    /// Seconds of the original.
    pub duration_s: f64,
    pub tally: &'a Tally,
}

/// Gets passages as they are final, and up to which sample the audio has been gone through.
pub type Report<'r> = &'r mut (dyn FnMut(&[Passage], usize) + Send);

/// What a part of the audio gave.
struct Written {
    passages: Vec<Passage>,
    /// Id of the language, once it is known.
    language: Option<u32>,
}

impl<L: Listener> Job<'_, L> {
    /// Writes down the whole file. `report` gets all passages in order.
    pub async fn run(&self, report: Report<'_>) -> Result<Transcript, L::Error> {
        let settings = self.settings;
        let language = settings
            .language
            .and_then(|code| self.speech.language_id(code));
        let written = match settings.mode {
            Mode::Parallel(pauses) => self.parallel(&pauses, language, report).await?,
            Mode::Sequential => {
                let all = 0..self.voice.samples();
                self.sequential(all, language, true, report).await?
            }
        };
        let detected = written.language.and_then(|id| self.speech.language_of(id));
        let words = written
            .passages
            .iter()
            .flat_map(|passage| passage.words.iter().cloned());
        let logprobs = written
            .passages
            .iter()
            .flat_map(|passage| passage.logprobs.iter().cloned());
        Ok(Transcript {
            task: settings.task.name(),
            // Of the text: a translation is English.
            language: match settings.task {
                Task::Translate => "en",
                Task::Transcribe => settings.language.or(detected).unwrap_or("en"),
            },
            duration_s: self.duration_s,
            words: settings.words.then(|| words.collect()),
            logprobs: settings.logprobs.then(|| logprobs.collect()),
            segments: written
                .passages
                .into_iter()
                .map(|passage| passage.segment)
                .collect(),
        })
    }

    fn text(&self) -> &TextModel {
        &self.model.text
    }

    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
