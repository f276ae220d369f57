//! Samples that a model speaks to the bytes of an audio file, as they come.
//!
//! # Layout
//!
//! This file (formats, [`Encoder`]) → `wav` (its header), `flac`, `opus`.

mod flac;
mod opus;
mod wav;

use flac::Flac;
use opus::Opus;

/// What a client can ask for. All are mono at the model's sample rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 16 bit in a RIFF file.
    Wav,
    /// 16 bit, little endian, without a header.
    Pcm,
    /// 16 bit.
    Flac,
    /// In Ogg; only at the rates that Opus has.
    Opus,
}

impl Format {
    pub const ALL: [Self; 4] = [Self::Wav, Self::Pcm, Self::Flac, Self::Opus];

    /// As `response_format` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wav => "wav",
            Self::Pcm => "pcm",
            Self::Flac => "flac",
            Self::Opus => "opus",
        }
    }

    /// Those in which audio of `rate` hertz can be written.
    pub fn offered(rate: u32) -> impl Iterator<Item = Self> {
        let fits = move |format: &Self| *format != Self::Opus || opus::RATES.contains(&rate);
        Self::ALL.into_iter().filter(fits)
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Wav => "audio/wav",
            Self::Pcm => "audio/pcm",
            Self::Flac => "audio/flac",
            Self::Opus => "audio/ogg",
        }
    }
}

/// A codec failed, which it has no reason to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the audio could not be encoded: {0}")]
pub struct SoundError(String);

enum Codec {
    Wav,
    Pcm,
    Flac(Box<Flac>),
    Opus(Box<Opus>),
}

/// Writes one file. Samples are cut to ±1; NaN is silence. Each call returns what can be given out then, and in PCM and
/// WAV that is whole samples.
pub struct Encoder {
    codec: Codec,
    /// The header, until it is given out.
    header: Vec<u8>,
}

impl Encoder {
    /// `rate` in hertz, one at which `format` is offered.
    pub fn new(format: Format, rate: u32) -> Result<Self, SoundError> {
        let (codec, header) = match format {
            Format::Wav => (Codec::Wav, wav::header(rate)),
            Format::Pcm => (Codec::Pcm, Vec::new()),
            Format::Flac => (Codec::Flac(Box::new(Flac::new(rate)?)), Vec::new()),
            Format::Opus => (Codec::Opus(Box::new(Opus::new(rate)?)), Vec::new()),
        };
        Ok(Self { codec, header })
    }

    /// The bytes of further samples.
    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, SoundError> {
        match &mut self.codec {
            Codec::Wav | Codec::Pcm => {
                let mut bytes = std::mem::take(&mut self.header);
                bytes.reserve(2 * samples.len());
                bytes.extend(samples.iter().flat_map(|x| level(*x).to_le_bytes()));
                Ok(bytes)
            }
            Codec::Flac(flac) => {
                flac.push(samples.iter().map(|x| level(*x)))?;
                Ok(flac.take())
            }
            Codec::Opus(opus) => {
                let cut: Vec<f32> = samples.iter().map(|x| within(*x)).collect();
                opus.push(&cut)?;
                Ok(opus.take())
            }
        }
    }

    /// What is left when no samples follow.
    pub fn finish(&mut self) -> Result<Vec<u8>, SoundError> {
        match &mut self.codec {
            Codec::Wav | Codec::Pcm => Ok(std::mem::take(&mut self.header)),
            Codec::Flac(flac) => {
                flac.finish()?;
                Ok(flac.take())
            }
            Codec::Opus(opus) => {
                opus.finish()?;
                Ok(opus.take())
            }
        }
    }

    /// Puts the length into a file that is there as a whole.
    pub fn seal(&self, file: &mut [u8]) {
        match &self.codec {
            Codec::Wav => wav::seal(file),
            Codec::Flac(flac) => flac.seal(file),
            Codec::Pcm | Codec::Opus(_) => {}
        }
    }
}

fn within(sample: f32) -> f32 {
    if sample.is_nan() {
        0.0
    } else {
        sample.clamp(-1.0, 1.0)
    }
}

fn level(sample: f32) -> i16 {
    (within(sample) * f32::from(i16::MAX)).round() as i16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audio::{decode, Limits};

    fn ramp(count: usize) -> Vec<f32> {
        (0..count).map(|i| i as f32 / count as f32 - 0.5).collect()
    }

    fn file(format: Format, pieces: &[&[f32]]) -> (Encoder, Vec<u8>) {
        let mut encoder = Encoder::new(format, 24_000).unwrap();
        let mut file = Vec::new();
        for piece in pieces {
            file.extend(encoder.push(piece).unwrap());
        }
        file.extend(encoder.finish().unwrap());
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
        for format in [Format::Wav, Format::Pcm, Format::Flac] {
            let (_, whole) = file(format, &[&samples]);
            for cut in [0, 1, 3, 500, 1000, 1001] {
                let (before, after) = samples.split_at(cut);
                let (_, pieces) = file(format, &[before, after]);
                assert_eq!(pieces, whole, "{format:?} cut at {cut}");
            }
        }
        let mut encoder = Encoder::new(Format::Pcm, 24_000).unwrap();
        assert_eq!(encoder.push(&samples[..3]).unwrap().len(), 6);
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
        assert!(file(Format::Pcm, &[]).1.is_empty());
    }

    /// A sweep, so that a shift in time shows.
    fn sweep(rate: u32, seconds: f32) -> Vec<f32> {
        let sample = |i: usize| {
            let time = i as f32 / rate as f32;
            0.5 * (std::f32::consts::TAU * (200.0 + 300.0 * time) * time).sin()
        };
        (0..(seconds * rate as f32) as usize).map(sample).collect()
    }

    /// A file in pieces of `length` samples.
    fn streamed(format: Format, rate: u32, samples: &[f32], length: usize) -> Vec<u8> {
        let mut encoder = Encoder::new(format, rate).unwrap();
        let mut file = Vec::new();
        for piece in samples.chunks(length) {
            file.extend(encoder.push(piece).unwrap());
        }
        file.extend(encoder.finish().unwrap());
        file
    }

    /// Signal to noise of one decoded file against that of a WAV file, in dB; both go through the same resampler.
    fn fidelity(format: Format, rate: u32, length: usize) -> f64 {
        let samples = sweep(rate, 1.37);
        let open = |bytes: &[u8]| decode(bytes, &Limits::default()).unwrap();
        let wanted = open(&streamed(Format::Wav, rate, &samples, length));
        let got = open(&streamed(format, rate, &samples, length));
        let difference = wanted.pcm.len().abs_diff(got.pcm.len());
        assert!(
            difference <= 1,
            "{format:?} at {rate}: {difference} samples"
        );
        let power = |x: f32| f64::from(x) * f64::from(x);
        let signal: f64 = wanted.pcm.iter().map(|x| power(*x)).sum();
        let pairs = wanted.pcm.iter().zip(&got.pcm);
        let noise: f64 = pairs.map(|(a, b)| power(a - b)).sum();
        10.0 * (signal / noise.max(1e-12)).log10()
    }

    #[test]
    fn flac_is_lossless_whatever_the_pieces() {
        for (rate, length) in [
            (24_000, 1920),
            (16_000, 1),
            (22_050, 5000),
            (48_000, 1_000_000),
        ] {
            let ratio = fidelity(Format::Flac, rate, length);
            assert!(ratio > 90.0, "{ratio} dB at {rate}");
        }
    }

    #[test]
    fn opus_keeps_time_and_length_at_all_its_rates() {
        for rate in opus::RATES {
            for length in [1920, 333] {
                let ratio = fidelity(Format::Opus, rate, length);
                assert!(ratio > 15.0, "{ratio} dB at {rate}");
            }
        }
    }

    #[test]
    fn opus_comes_out_as_it_goes_in() {
        let mut encoder = Encoder::new(Format::Opus, 24_000).unwrap();
        let frame = sweep(24_000, 0.08);
        for number in 0..5 {
            let bytes = encoder.push(&frame).unwrap();
            assert!(bytes.starts_with(b"OggS"), "piece {number}");
        }
    }

    #[test]
    fn a_sealed_flac_file_knows_its_length() {
        let samples = sweep(24_000, 0.5);
        let (encoder, mut bytes) = file(Format::Flac, &[&samples]);
        encoder.seal(&mut bytes);
        assert_eq!(bytes[22..26], (samples.len() as u32).to_be_bytes());
        let audio = decode(&bytes, &Limits::default()).unwrap();
        assert_eq!((audio.source.rate, audio.duration_s), (24_000, 0.5));
    }

    #[test]
    fn short_and_empty_audio_are_files_too() {
        for format in [Format::Flac, Format::Opus] {
            for count in [1, 7, 479, 481, 1157] {
                let (_, bytes) = file(format, &[&sweep(24_000, 1.0)[..count]]);
                let audio = decode(&bytes, &Limits::default()).unwrap();
                let added = audio.duration_s * 24_000.0 - count as f64;
                let most = if format == Format::Flac { 31.5 } else { 0.5 };
                assert!((-0.5..most).contains(&added), "{format:?} {count}: {added}");
            }
            let (_, bytes) = file(format, &[]);
            assert!(!bytes.is_empty());
        }
    }

    #[test]
    fn opus_is_offered_at_its_own_rates_alone() {
        assert!(Format::offered(24_000).eq(Format::ALL));
        assert!(Format::offered(22_050).eq([Format::Wav, Format::Pcm, Format::Flac]));
        assert!(Encoder::new(Format::Opus, 22_050).is_err());
    }
}
