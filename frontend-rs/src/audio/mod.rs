//! Uploaded audio files to PCM for speech recognition, and transcripts to text formats.
//!
//! # Layout
//!
//! `sniff` (which container) → `demux` (its packets; `wav` for WAV files, `edits` for what Symphonia leaves out) →
//! `codec` (packets to samples; `opus` for Opus) → `trim` (priming and padding) → `resample` (to 16 kHz). `decoder` runs
//! it all, a packet a step; `cut` is whether a file ends too early; `error` is everything that can be wrong with a file; `voice` is where somebody speaks. On the way back: `transcript` (OpenAI's
//! shapes) and `subtitles` (SRT, WebVTT). `language` knows the languages' codes and names.
//!
//! Decoding takes CPU time and blocks: run it on a thread for that.

mod aac;
mod budget;
mod codec;
mod cut;
mod decoder;
mod demux;
mod edits;
mod error;
mod language;
mod opus;
mod resample;
mod sniff;
mod subtitles;
mod transcript;
mod trim;
mod voice;
mod wav;

pub use budget::{Budget, Share};
pub use decoder::Decoder;
pub use error::AudioError;
pub use language::{language, language_name, LANGUAGES};
pub use resample::Resampler;
pub use sniff::BUILT_IN;
pub use transcript::{ScoredToken, Segment, Transcript, Word};
pub use voice::{Voice, FRAME, POSSIBLE};

/// Samples per second of decoded audio.
pub const SAMPLE_RATE: u32 = 16_000;

/// What a file may ask of the server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    pub max_bytes: usize,
    /// Longest audio; checked while decoding, so that a small file cannot unfold into gigabytes.
    pub max_seconds: f64,
    pub max_channels: usize,
    /// Sample rates of the file, hertz.
    pub min_rate: u32,
    pub max_rate: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 32 << 20,
            max_seconds: 2.0 * 3600.0,
            max_channels: 8,
            min_rate: 4000,
            max_rate: 192_000,
        }
    }
}

/// Decoded audio.
#[derive(Debug, Clone, PartialEq)]
pub struct Audio {
    /// Mono at `SAMPLE_RATE`, within ±1; never empty. The mean of the file's channels.
    pub pcm: Vec<f32>,
    /// Seconds of the original.
    pub duration_s: f64,
    pub source: Source,
}

/// What the file was; for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub container: &'static str,
    pub codec: String,
    pub rate: u32,
    pub channels: usize,
}

/// Decodes a whole file. Its format is told by its content.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Audio, AudioError> {
    let mut decoder = Decoder::open(bytes, limits)?;
    while decoder.step()? {}
    decoder.finish()
}
