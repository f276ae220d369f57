//! What can be wrong with an uploaded audio file.

use super::sniff::BUILT_IN;

/// One sentence a client can act on. Everything here is the file's fault, but for `TooLarge`, `TooLong`,
/// `BeyondMemory` and `NoMemory`, which are the server's limits.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AudioError {
    #[error("the audio file is empty; upload a file that holds audio")]
    Empty,
    #[error("the audio file has {bytes} bytes, more than the server's limit of {limit}; split it, or upload it in a \
             compressed format such as Opus or MP3")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the file is not audio that this server knows: it {found}; upload one of {BUILT_IN}")]
    NotAudio { found: String },
    #[error("{what} is not built in; convert the file to one of {BUILT_IN}")]
    NotBuiltIn { what: String },
    #[error("the {container} file holds {codec} audio, which is not built in; convert it to one of {BUILT_IN}")]
    UnsupportedCodec {
        container: &'static str,
        codec: String,
    },
    #[error("the {container} file has no audio track; upload one that has")]
    NoAudioTrack { container: &'static str },
    #[error("the {container} file ends inside its header, before any audio; it was cut off: upload the complete file")]
    CutHeader { container: &'static str },
    #[error("the {container} file is cut off: its header promises {promised_s:.2} s of audio, but only {found_s:.2} s \
             are there; upload the complete file")]
    Truncated {
        container: &'static str,
        promised_s: f64,
        found_s: f64,
    },
    #[error("the {container} file is cut off: it ends inside {inside}, after {found_s:.2} s of audio; upload the complete \
             file, or encode again what is there of it")]
    CutInside {
        container: &'static str,
        /// "a page" or the like.
        inside: &'static str,
        found_s: f64,
    },
    #[error("the {container} file is damaged: {what}; encode or upload it again")]
    Damaged {
        container: &'static str,
        what: String,
    },
    #[error("the {container} file is damaged at {at_s:.2} s, and {lost_s:.2} s of audio are lost; encode or upload it \
             again")]
    Corrupt {
        container: &'static str,
        at_s: f64,
        lost_s: f64,
    },
    #[error("the {container} file declares zero channels; encode it again")]
    ZeroChannels { container: &'static str },
    #[error(
        "the {container} file has {channels} channels; at most {limit} are possible: mix it down"
    )]
    Channels {
        container: &'static str,
        channels: usize,
        limit: usize,
    },
    #[error("the {container} file declares a sample rate of zero; encode it again")]
    ZeroRate { container: &'static str },
    #[error("the {container} file declares a sample rate of {rate} Hz; rates from {min} to {max} Hz are possible: \
             resample it, or encode it again if the rate is wrong")]
    Rate {
        container: &'static str,
        rate: u32,
        min: u32,
        max: u32,
    },
    #[error(
        "the audio is longer than the server's limit of {limit_s} s; split it into shorter files"
    )]
    TooLong { limit_s: f64 },
    #[error("the file and its decoded audio take more than the {} MiB that the server has for audio \
             (--max-audio-memory); split it into shorter files", limit >> 20)]
    BeyondMemory { limit: usize },
    #[error("the audio of other requests fills the {} MiB that the server has for it (--max-audio-memory); send the file \
             again later", limit >> 20)]
    NoMemory { limit: usize },
    #[error("the {container} file holds no audio samples; upload one that does")]
    NoSamples { container: &'static str },
}
