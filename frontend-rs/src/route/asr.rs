//! What a speech model gets besides a prompt, and what it says besides tokens. `docs/design/protocol.md`, SUBMIT and DONE.

use std::ops::Range;
use std::sync::Arc;

/// A stretch of decoded audio, mono at 16 kHz; all windows of a file share its samples.
#[derive(Debug, Clone)]
pub struct Pcm {
    samples: Arc<Vec<f32>>,
    range: Range<usize>,
}

impl Pcm {
    /// The samples of `range`, which is cut to what there is.
    pub fn new(samples: Arc<Vec<f32>>, range: Range<usize>) -> Self {
        let end = range.end.min(samples.len());
        let range = range.start.min(end)..end;
        Self { samples, range }
    }

    pub fn samples(&self) -> &[f32] {
        &self.samples[self.range.clone()]
    }

    /// The attachment of a SUBMIT: little endian, as every machine that Denizen runs on stores it.
    pub fn bytes(&self) -> &[u8] {
        const { assert!(cfg!(target_endian = "little")) };
        bytemuck::cast_slice(self.samples())
    }
}

/// One window of at most 30 s for a speech model.
#[derive(Debug, Clone)]
pub struct AsrWindow {
    pub audio: Pcm,
    /// Not the first window of its file: taken even while the server drains.
    pub continues: bool,
    /// Tokens of time are sampled, under Whisper's rules.
    pub timestamps: bool,
    /// The first output token is the language; `forced` follows it.
    pub detect: bool,
    pub forced: Vec<u32>,
    /// Times of the text tokens are wanted.
    pub words: bool,
}

/// What DONE says of a window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AsrResult {
    /// Probability that nobody speaks.
    pub no_speech: f32,
    /// Mean natural logarithm of the sampled tokens' probabilities, the end token's included.
    pub avg_logprob: f32,
    /// Seconds in the window at which each text token begins, and at which the last one ends; empty unless asked for.
    pub times: Vec<f32>,
}
