//! Where somebody speaks.

use std::ops::Range;

use earshot::Detector;

/// Samples of one frame: 16 ms.
pub const FRAME: usize = 256;

/// Score from which a frame may be speech. Silence, hum and noise up to −50 dBFS stay below; speech 50 dB quieter than
/// usual reaches it. Louder noise reaches it too: then it is the model's word that nobody speaks.
pub const POSSIBLE: f32 = 0.35;

/// So many such frames in a stretch are worth listening to: 48 ms, less than a syllable.
const ENOUGH: usize = 3;

/// Scores of a recording, one a frame, from 0 (silence) to 1 (speech).
#[derive(Debug, Clone, PartialEq)]
pub struct Voice {
    scores: Vec<f32>,
    samples: usize,
}

impl Voice {
    /// Listens to 16 kHz mono. About 3,000 times real time. `None` as soon as `go_on` says so; it is asked every second
    /// of audio.
    pub fn detect(pcm: &[f32], mut go_on: impl FnMut() -> bool) -> Option<Self> {
        let mut detector = Detector::default_boxed();
        let mut scores = Vec::with_capacity(pcm.len().div_ceil(FRAME));
        for (index, frame) in pcm.chunks(FRAME).enumerate() {
            if index % 64 == 0 && !go_on() {
                return None;
            }
            let score = if frame.len() == FRAME {
                detector.predict_f32(frame)
            } else {
                let mut last = [0.0; FRAME];
                last[..frame.len()].copy_from_slice(frame);
                detector.predict_f32(&last)
            };
            scores.push(score);
        }
        let samples = pcm.len();
        Some(Self { scores, samples })
    }

    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Whether somebody may speak in a range of samples.
    pub fn possible_in(&self, range: Range<usize>) -> bool {
        let frames = range.start / FRAME..range.end.div_ceil(FRAME).min(self.scores.len());
        let scores = self.scores.get(frames).unwrap_or_default();
        scores.iter().filter(|score| **score >= POSSIBLE).count() >= ENOUGH
    }

    /// Stretches of speech in samples: frames of at least `threshold`, with pauses shorter than `pause` samples within.
    pub fn stretches(&self, threshold: f32, pause: usize) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for (index, score) in self.scores.iter().enumerate() {
            if *score < threshold {
                continue;
            }
            let frame = index * FRAME..((index + 1) * FRAME).min(self.samples);
            match found.last_mut() {
                Some(last) if frame.start - last.end < pause.max(1) => last.end = frame.end,
                _ => found.push(frame),
            }
        }
        found
    }

    /// The sample in the middle of the quietest 80 ms of a range.
    pub fn quietest(&self, range: Range<usize>) -> usize {
        const AROUND: usize = 2;
        let frames = range.start.div_ceil(FRAME)..(range.end / FRAME).min(self.scores.len());
        let mean = |at: usize| {
            let around = at.saturating_sub(AROUND)..(at + AROUND + 1).min(self.scores.len());
            let count = around.len() as f32;
            self.scores[around].iter().sum::<f32>() / count
        };
        let best = frames.min_by(|a, b| mean(*a).total_cmp(&mean(*b)));
        best.map_or(range.end, |frame| frame * FRAME + FRAME / 2)
    }

    #[cfg(test)]
    pub fn from_scores(scores: Vec<f32>, samples: usize) -> Self {
        assert_eq!(scores.len(), samples.div_ceil(FRAME));
        Self { scores, samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gaussian noise by the sum of twelve uniform numbers.
    fn noise(samples: usize, level_db: f32) -> Vec<f32> {
        let mut state = 1u64;
        let mut uniform = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u32 << 24) as f32
        };
        let level = 10f32.powf(level_db / 20.0);
        let normal =
            |uniform: &mut dyn FnMut() -> f32| (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
        (0..samples).map(|_| level * normal(&mut uniform)).collect()
    }

    fn detect(pcm: &[f32]) -> Voice {
        Voice::detect(pcm, || true).unwrap()
    }

    fn speech() -> Vec<f32> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/assets/audio/speech.wav");
        let bytes = std::fs::read(path).unwrap();
        crate::audio::decode(&bytes, &crate::audio::Limits::default())
            .unwrap()
            .pcm
    }

    #[test]
    fn silence_and_faint_noise_are_no_speech() {
        let hum: Vec<f32> = (0..160_000)
            .map(|i| 0.001 * (i as f32 * 0.019_635).sin())
            .collect();
        for quiet in [
            vec![0.0; 160_000],
            noise(160_000, -60.0),
            noise(160_000, -80.0),
            hum,
        ] {
            let voice = detect(&quiet);
            assert!(!voice.possible_in(0..quiet.len()));
            assert!(voice.stretches(POSSIBLE, 1).is_empty());
        }
    }

    #[test]
    fn speech_is_found_however_quiet_and_where_it_is() {
        for gain in [1.0, 0.1, 0.01, 0.003] {
            let mut pcm = vec![0.0; 32_000];
            pcm.extend(speech().iter().map(|x| x * gain));
            let end = pcm.len();
            pcm.extend(vec![0.0; 32_000]);
            let voice = detect(&pcm);
            assert!(voice.possible_in(0..pcm.len()), "{gain}");
            assert!(
                !voice.possible_in(0..24_000) && !voice.possible_in(end + 16_000..pcm.len()),
                "{gain}"
            );
            let stretches = voice.stretches(POSSIBLE, 16_000);
            let (first, last) = (stretches.first().unwrap(), stretches.last().unwrap());
            assert!(
                first.start >= 28_000 && last.end <= end + 12_000,
                "{gain}: {stretches:?}"
            );
        }
    }

    #[test]
    fn detection_stops_when_told_to() {
        let mut asked = 0;
        let stopped = Voice::detect(&vec![0.0; 160_000], || {
            asked += 1;
            asked < 3
        });
        assert_eq!((stopped, asked), (None, 3));
    }

    #[test]
    fn stretches_are_joined_over_short_pauses_and_end_with_the_audio() {
        let scores = vec![0.9, 0.1, 0.9, 0.1, 0.1, 0.9];
        let voice = Voice::from_scores(scores, 5 * FRAME + 10);
        assert_eq!(
            voice.stretches(0.5, 2 * FRAME),
            [0..3 * FRAME, 5 * FRAME..5 * FRAME + 10]
        );
        let joined = voice.stretches(0.5, 3 * FRAME);
        assert_eq!((joined.len(), &joined[0]), (1, &(0..5 * FRAME + 10)));
    }
}
