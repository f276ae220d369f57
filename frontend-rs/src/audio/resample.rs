//! Any sample rate to 16 kHz, in a stream.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler as _, WindowFunction};

use super::SAMPLE_RATE;

/// Frames of the shorter of a transform's two sides. The filter is as long as a transform, so this sets its steepness.
const BLOCK: usize = 1024;

/// One channel, resampled by FFT with a windowed-sinc filter. Output is aligned with the input (the filter's delay is
/// taken off) and exactly as long, rounded to the nearest frame.
pub struct Resampler {
    rate: u32,
    /// `None` where the rate is right already.
    fft: Option<Fft<f32>>,
    /// Input that does not fill a block yet.
    pending: Vec<f32>,
    block: Vec<f32>,
    /// Output frames still to drop: the filter's delay.
    delay: usize,
    frames_in: u64,
    frames_out: u64,
}

impl Resampler {
    /// `rate` is positive.
    pub fn new(rate: u32) -> Self {
        let (from, to) = (rate as usize, SAMPLE_RATE as usize);
        let fft = (from != to).then(|| {
            // Whole periods of the ratio; an even number of them, because the filter's centre would else fall between
            // two frames.
            let period = from / gcd(from, to);
            let chunk = (BLOCK * from.max(to) / to).div_ceil(2 * period) * 2 * period;
            let window = WindowFunction::BlackmanHarris2;
            Fft::new_custom(from, to, chunk, 1, 1, window, FixedSync::Both)
                .expect("rates and chunk are positive")
        });
        Self {
            rate,
            delay: fft.as_ref().map_or(0, |fft| fft.output_delay()),
            block: vec![0.0; fft.as_ref().map_or(0, |fft| fft.output_frames_next())],
            fft,
            pending: Vec::new(),
            frames_in: 0,
            frames_out: 0,
        }
    }

    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Frames taken in so far.
    pub fn frames_in(&self) -> u64 {
        self.frames_in
    }

    /// Appends to `out` what `samples` make possible.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.frames_in += samples.len() as u64;
        if self.fft.is_none() {
            self.frames_out += samples.len() as u64;
            out.extend_from_slice(samples);
            return;
        }
        self.pending.extend_from_slice(samples);
        self.run(out);
    }

    fn run(&mut self, out: &mut Vec<f32>) {
        let Some(fft) = &mut self.fft else { return };
        let (size_in, size_out) = (fft.input_frames_next(), self.block.len());
        let mut used = 0;
        while self.pending.len() - used >= size_in {
            let input = InterleavedSlice::new(&self.pending[used..used + size_in], 1, size_in);
            let output = InterleavedSlice::new_mut(&mut self.block, 1, size_out);
            let (input, mut output) = (
                input.expect("the slice has this size"),
                output.expect("the slice has this size"),
            );
            fft.process_into_buffer(&input, &mut output, None)
                .expect("the buffers have the sizes asked for");
            used += size_in;
            let fresh = &self.block[self.delay.min(size_out)..];
            self.delay -= self.delay.min(size_out);
            self.frames_out += fresh.len() as u64;
            out.extend_from_slice(fresh);
        }
        self.pending.drain(..used);
    }

    /// Flushes the filter; `out` then holds every frame of this stream, and none of padding.
    pub fn finish(mut self, out: &mut Vec<f32>) {
        let (rate, to) = (u64::from(self.rate), u64::from(SAMPLE_RATE));
        let wanted = (self.frames_in * to + rate / 2) / rate;
        while self.frames_out < wanted {
            let Some(fft) = &self.fft else { return };
            let missing = fft.input_frames_next() - self.pending.len();
            self.pending.extend(std::iter::repeat_n(0.0, missing));
            self.run(out);
        }
        out.truncate(out.len() - (self.frames_out - wanted) as usize);
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: u32, hertz: f64, seconds: f64) -> Vec<f32> {
        let frames = (seconds * f64::from(rate)) as usize;
        let step = std::f64::consts::TAU * hertz / f64::from(rate);
        (0..frames)
            .map(|n| (step * n as f64).sin() as f32 * 0.5)
            .collect()
    }

    fn resample(rate: u32, samples: &[f32], piece: usize) -> Vec<f32> {
        let (mut resampler, mut out) = (Resampler::new(rate), Vec::new());
        for piece in samples.chunks(piece) {
            resampler.push(piece, &mut out);
        }
        resampler.finish(&mut out);
        out
    }

    /// Level in dB against the input tone's, away from the ends.
    fn level(samples: &[f32]) -> f64 {
        let inner = &samples[2000..samples.len() - 2000];
        let power: f64 = inner.iter().map(|&s| f64::from(s).powi(2)).sum();
        10.0 * (power / inner.len() as f64 / 0.125).log10()
    }

    #[test]
    fn passes_the_band_and_stops_what_would_alias() {
        for rate in [
            22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 192_000,
        ] {
            for hertz in [100.0, 1000.0, 7000.0, 7600.0] {
                let level = level(&resample(rate, &tone(rate, hertz, 1.0), 5000));
                assert!(level.abs() < 0.1, "{hertz} Hz from {rate}: {level:.2} dB");
            }
            for hertz in [8050.0, 9000.0, 10_500.0] {
                let level = level(&resample(rate, &tone(rate, hertz, 1.0), 5000));
                assert!(level < -90.0, "{hertz} Hz from {rate}: {level:.1} dB");
            }
        }
    }

    #[test]
    fn equals_the_tone_sampled_at_the_target_rate() {
        for rate in [
            8000, 11_025, 12_000, 22_050, 37_800, 44_100, 44_101, 48_000, 96_000,
        ] {
            let out = resample(rate, &tone(rate, 440.0, 1.0), 777);
            let wanted = tone(SAMPLE_RATE, 440.0, 1.0);
            assert_eq!(out.len(), wanted.len(), "{rate}");
            let error = |n: usize| (out[n] - wanted[n]).abs();
            let worst = (2000..out.len() - 2000).map(error).fold(0.0, f32::max);
            assert!(worst < 1e-4, "from {rate}: {worst}");
        }
    }

    #[test]
    fn keeps_the_length_exact_and_does_not_depend_on_the_pieces() {
        for (rate, frames) in [
            (44_100, 1_323_000),
            (44_100, 1_323_441),
            (48_000, 1),
            (8000, 3),
            (191_999, 5),
        ] {
            let samples = tone(rate, 300.0, frames as f64 / f64::from(rate) + 1.0);
            let samples = &samples[..frames];
            let whole = resample(rate, samples, frames);
            let wanted = (frames as f64 * 16_000.0 / f64::from(rate)).round() as usize;
            assert_eq!(whole.len(), wanted, "{frames} frames at {rate}");
            assert_eq!(whole, resample(rate, samples, 1234));
        }
    }
}
