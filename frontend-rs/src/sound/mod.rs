//! Samples that a model speaks to the bytes of an audio file, as they come.
//!
//! # Layout
//!
//! This file (formats, [`Encoder`]) → `wav` (its header).

mod wav;

/// What a client can ask for. All are mono at the model's sample rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 16 bit in a RIFF file.
    Wav,
    /// 16 bit, little endian, without a header.
    Pcm,
}

impl Format {
    pub const ALL: [Self; 2] = [Self::Wav, Self::Pcm];

    /// As `response_format` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wav => "wav",
            Self::Pcm => "pcm",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Wav => "audio/wav",
            Self::Pcm => "audio/pcm",
        }
    }
}

/// Writes one file. Every call returns whole samples, so that a client may cut the stream between any two of them.
pub struct Encoder {
    format: Format,
    rate: u32,
    begun: bool,
}

impl Encoder {
    /// `rate` in hertz.
    pub fn new(format: Format, rate: u32) -> Self {
        Self {
            format,
            rate,
            begun: false,
        }
    }

    /// The bytes of further samples, which are cut to ±1; NaN is silence.
    pub fn push(&mut self, samples: &[f32]) -> Vec<u8> {
        let mut bytes = self.begin();
        bytes.reserve(2 * samples.len());
        for sample in samples {
            // The cast takes NaN to 0.
            let level = (sample.clamp(-1.0, 1.0) * f32::from(i16::MAX)).round() as i16;
            bytes.extend(level.to_le_bytes());
        }
        bytes
    }

    /// What is left when no samples follow.
    pub fn finish(&mut self) -> Vec<u8> {
        self.begin()
    }

    /// Puts the sizes into a file that is there as a whole.
    pub fn seal(&self, file: &mut [u8]) {
        match self.format {
            Format::Wav => wav::seal(file),
            Format::Pcm => {}
        }
    }

    /// The header, once.
    fn begin(&mut self) -> Vec<u8> {
        if std::mem::replace(&mut self.begun, true) {
            return Vec::new();
        }
        match self.format {
            Format::Wav => wav::header(self.rate),
            Format::Pcm => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audio::{decode, Limits};

    fn ramp(count: usize) -> Vec<f32> {
        (0..count).map(|i| i as f32 / count as f32 - 0.5).collect()
    }

    fn file(format: Format, pieces: &[&[f32]]) -> (Encoder, Vec<u8>) {
        let mut encoder = Encoder::new(format, 24_000);
        let mut file: Vec<u8> = pieces.iter().flat_map(|p| encoder.push(p)).collect();
        file.extend(encoder.finish());
        (encoder, file)
    }

    #[test]
    fn pcm_is_16_bit_and_cut_at_full_scale() {
        let samples = [
            0.0,
            0.5,
            -0.5,
            1.0,
            -1.0,
            7.0,
            -7.0,
            f32::NAN,
            f32::INFINITY,
        ];
        let (_, bytes) = file(Format::Pcm, &[&samples]);
        let levels: Vec<i16> = bytes
            .chunks_exact(2)
            .map(|b| i16::from_le_bytes([b[0], b[1]]))
            .collect();
        assert_eq!(
            levels,
            [0, 16384, -16384, 32767, -32767, 32767, -32767, 0, 32767]
        );
    }

    #[test]
    fn any_cut_gives_the_same_bytes_and_whole_samples() {
        let samples = ramp(1001);
        for format in Format::ALL {
            let (_, whole) = file(format, &[&samples]);
            for cut in [0, 1, 3, 500, 1000, 1001] {
                let (before, after) = samples.split_at(cut);
                let (_, pieces) = file(format, &[before, after]);
                assert_eq!(pieces, whole, "{format:?} cut at {cut}");
                let mut encoder = Encoder::new(format, 24_000);
                assert_eq!(encoder.push(before).len() % 2, 0);
            }
        }
    }

    #[test]
    fn a_streamed_wav_says_that_its_length_is_unknown_and_a_sealed_one_what_it_is() {
        let samples = ramp(2400);
        let (encoder, mut bytes) = file(Format::Wav, &[&samples]);
        assert_eq!(bytes.len(), 44 + 4800);
        assert_eq!(
            (&bytes[4..8], &bytes[40..44]),
            (&[0xFF; 4][..], &[0xFF; 4][..])
        );
        let streamed = decode(&bytes, &Limits::default()).unwrap();
        encoder.seal(&mut bytes);
        assert_eq!(bytes[4..8], (36u32 + 4800).to_le_bytes());
        assert_eq!(bytes[40..44], 4800u32.to_le_bytes());
        let whole = decode(&bytes, &Limits::default()).unwrap();
        assert_eq!((whole.source.rate, whole.duration_s), (24_000, 0.1));
        assert_eq!(whole.pcm, streamed.pcm);
    }

    #[test]
    fn a_file_without_samples_is_its_header() {
        let (encoder, mut bytes) = file(Format::Wav, &[]);
        encoder.seal(&mut bytes);
        assert_eq!(bytes.len(), 44);
        assert_eq!(bytes[40..44], [0; 4]);
        assert_eq!(file(Format::Pcm, &[]).1, []);
    }

    #[test]
    fn formats_go_by_their_names() {
        for format in Format::ALL {
            assert_eq!(Format::named(format.name()), Some(format));
        }
        assert_eq!(Format::named("WAV"), None);
    }
}
