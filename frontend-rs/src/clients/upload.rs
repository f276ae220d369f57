//! What a call brings with it: its body and its audio, whole or in parts.

use tokio::sync::mpsc;
use tokio::time::{timeout_at, Instant};

use super::envelope::Call;
use crate::audio::{AudioError, Share};
use crate::http::audio::limits;
use crate::http::body::too_large;
use crate::http::{ApiError, App};

/// Takes the attachments of one call.
pub struct Upload {
    body: Vec<u8>,
    body_due: u64,
    audio: Audio,
    audio_due: u64,
    parts: mpsc::UnboundedReceiver<Vec<u8>>,
}

/// Where the session hands them over.
pub struct Intake {
    parts: mpsc::UnboundedSender<Vec<u8>>,
    due: u64,
}

impl Intake {
    /// False for more than was announced.
    pub fn push(&mut self, part: Vec<u8>) -> bool {
        match self.due.checked_sub(part.len() as u64) {
            None => false,
            Some(due) => {
                self.due = due;
                // A call that has failed takes nothing more.
                let _ = self.parts.send(part);
                true
            }
        }
    }
}

/// Samples of which bytes come piece by piece.
#[derive(Default)]
struct Audio {
    samples: Vec<f32>,
    /// The beginning of a sample.
    rest: Vec<u8>,
}

impl Audio {
    fn extend(&mut self, mut bytes: &[u8]) {
        if !self.rest.is_empty() {
            let missing = (4 - self.rest.len()).min(bytes.len());
            self.rest.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            let Ok(sample) = <[u8; 4]>::try_from(&self.rest[..]) else {
                return;
            };
            self.samples.push(f32::from_le_bytes(sample));
            self.rest.clear();
        }
        let (samples, rest) = bytes.as_chunks::<4>();
        self.samples
            .extend(samples.iter().map(|sample| f32::from_le_bytes(*sample)));
        self.rest.extend_from_slice(rest);
    }
}

impl Upload {
    /// The upload of a CALL and what came beside it. `None`: more came than was announced.
    pub fn of(call: &mut Call, attachment: Option<Vec<u8>>) -> Option<(Self, Intake)> {
        let (sender, parts) = mpsc::unbounded_channel();
        let attached = attachment.as_ref().map_or(0, Vec::len) as u64;
        let body_due = call.body_len.unwrap_or(0);
        let audio_due = call
            .audio_len
            .unwrap_or_else(|| attached.saturating_sub(body_due));
        let mut intake = Intake {
            parts: sender,
            due: body_due.saturating_add(audio_due),
        };
        if let Some(attachment) = attachment {
            if !intake.push(attachment) {
                return None;
            }
        }
        let upload = Self {
            body: call.body.take().unwrap_or_default(),
            body_due,
            audio: Audio::default(),
            audio_due,
            parts,
        };
        Some((upload, intake))
    }

    /// Refuses lengths beyond the server's limits, before anything of them has come.
    pub fn check(&self, app: &App, rate: Option<u32>) -> Result<(), ApiError> {
        let limit = app.config.max_body;
        if self.body_due.max(self.body.len() as u64) > limit as u64 {
            return Err(too_large(limit));
        }
        let limits = limits(app);
        if self.audio_due > limits.max_bytes as u64 {
            return Err(AudioError::TooLarge {
                bytes: usize::try_from(self.audio_due).unwrap_or(usize::MAX),
                limit: limits.max_bytes,
            }
            .into());
        }
        let samples = (self.audio_due / 4) as f64;
        if rate.is_some_and(|rate| samples / f64::from(rate) > limits.max_seconds) {
            return Err(AudioError::TooLong {
                limit_s: limits.max_seconds,
            }
            .into());
        }
        Ok(())
    }

    pub fn has_audio(&self) -> bool {
        self.audio_due > 0
    }

    /// Waits for all parts: the body, and the samples with their share of the memory that there is for audio.
    pub async fn whole(
        mut self,
        app: &App,
        deadline: Instant,
    ) -> Result<(Vec<u8>, (Vec<f32>, Share)), ApiError> {
        let mut share = app.audio.memory.share();
        while self.body_due + self.audio_due > 0 {
            // The session keeps its end for as long as the call is open.
            let part = timeout_at(deadline, self.parts.recv()).await;
            let Ok(Some(part)) = part else {
                return Err(ApiError::slow_body(app.config.request_timeout));
            };
            let (body, audio) = part.split_at(part.len().min(self.body_due as usize));
            self.body.extend_from_slice(body);
            self.body_due -= body.len() as u64;
            self.audio.extend(audio);
            self.audio_due -= audio.len() as u64;
            share.set(self.audio.samples.capacity() * size_of::<f32>())?;
        }
        if !self.audio.rest.is_empty() {
            let message = "the audio ends inside a sample; send f32 samples, four bytes each";
            return Err(ApiError::invalid("file", message).code("invalid_audio"));
        }
        Ok((self.body, (self.audio.samples, share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_survive_any_cut() {
        let samples: Vec<f32> = (0..50).map(|i| i as f32 / 50.0).collect();
        let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
        for size in 1..12 {
            let mut audio = Audio::default();
            bytes.chunks(size).for_each(|piece| audio.extend(piece));
            audio.extend(&[]);
            assert_eq!(audio.samples, samples);
            assert!(audio.rest.is_empty());
        }
    }

    #[test]
    fn more_than_was_announced_is_not_taken() {
        let announced = |body_len, audio_len| Call {
            body_len,
            audio_len,
            ..Call::default()
        };
        let (_, mut intake) =
            Upload::of(&mut announced(Some(3), Some(5)), Some(vec![0; 2])).unwrap();
        assert!(intake.push(vec![0; 6]));
        assert!(intake.push(vec![]));
        assert!(!intake.push(vec![0]));
        assert!(Upload::of(&mut announced(Some(3), Some(5)), Some(vec![0; 9])).is_none());
        assert!(Upload::of(&mut announced(Some(u64::MAX), Some(5)), Some(vec![0; 9])).is_some());
    }
}
