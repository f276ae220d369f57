//! Cutting away an encoder's priming and padding.

use super::demux::AudioTrack;

/// Cuts away what the container says is not to be heard.
pub struct Trim {
    skip_s: f64,
    keep_s: Option<f64>,
    discard_s: f64,
    skip: u64,
    keep: u64,
    /// The last frames, held back until others follow them.
    tail: Vec<f32>,
    discard: usize,
    /// Opus says in frames what to skip.
    pre_skip: u64,
}

impl Trim {
    pub fn new(track: &AudioTrack, pre_skip: u64, rate: u32) -> Self {
        let mut trim = Self {
            skip_s: track.skip_s,
            keep_s: track.keep_s,
            discard_s: track.discard_s,
            skip: 0,
            keep: 0,
            tail: Vec::new(),
            discard: 0,
            pre_skip,
        };
        trim.rate(rate);
        trim
    }

    /// Starts over at a sample rate.
    pub fn rate(&mut self, rate: u32) {
        let frames = |seconds: f64| (seconds * f64::from(rate)).round() as u64;
        self.skip = frames(self.skip_s) + self.pre_skip;
        self.keep = self.keep_s.map_or(u64::MAX, frames);
        self.discard = frames(self.discard_s) as usize;
    }

    /// Hands on what is to be heard.
    pub fn pass(&mut self, mut samples: &[f32], mut out: impl FnMut(&[f32])) {
        let skipped = self.skip.min(samples.len() as u64);
        self.skip -= skipped;
        samples = &samples[skipped as usize..];
        let kept = self.keep.min(samples.len() as u64);
        self.keep -= kept;
        samples = &samples[..kept as usize];
        if self.discard == 0 {
            return out(samples);
        }
        self.tail.extend_from_slice(samples);
        let ready = self.tail.len().saturating_sub(self.discard);
        out(&self.tail[..ready]);
        self.tail.drain(..ready);
    }
}
