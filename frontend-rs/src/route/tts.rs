//! What a model that speaks is told besides a text, and what it sends back. `docs/design/protocol.md`, SUBMIT and AUDIO.

/// How a text is spoken.
#[derive(Debug, Clone, PartialEq)]
pub struct Utterance {
    /// One of the model's voices; empty for a model that names none.
    pub voice: String,
    /// ISO 639-1 code; `None` = as the text goes.
    pub language: Option<&'static str>,
    /// How to speak, in words.
    pub instructions: Option<String>,
    /// 1 = as the model speaks by itself, 2 = twice as fast.
    pub speed: f32,
}

/// Samples of an attachment: f32, little endian. `None` if the bytes are no whole samples.
pub(super) fn samples(bytes: &[u8]) -> Option<Vec<f32>> {
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let sample = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    Some(bytes.chunks_exact(4).map(sample).collect())
}
