//! From a file's bytes to PCM, one packet a step.

use std::panic::{catch_unwind, AssertUnwindSafe};

use symphonia::core::packet::Packet;

use super::codec::Codec;
use super::demux::{codec_name, AudioTrack, Demuxer, Next};
use super::error::AudioError;
use super::resample::Resampler;
use super::sniff::{sniff, Container};
use super::trim::Trim;
use super::{Audio, Limits, Source};

/// Audio that may be missing or damaged before a file is refused: a tenth of it, but at least `LOSS_MIN_S` and at most
/// `LOSS_MAX_S` seconds. Lengths in headers are often off by a frame or two, and a click is no reason to refuse an hour.
const LOSS_SHARE: f64 = 0.1;
const LOSS_MIN_S: f64 = 0.1;
const LOSS_MAX_S: f64 = 1.0;

/// Samples that come out for one that goes in, at most, and that a transform may have held back.
const MOST_OUT: usize = 4;
const FLUSHED: usize = 8192;

/// Decodes a file in steps. Dropping it between two steps is how to cancel.
pub struct Decoder<'a> {
    limits: Limits,
    container: Container,
    demuxer: Demuxer<'a>,
    codec: Codec,
    /// Of the first stream; for logs.
    source: Source,
    /// Interleaved samples of a packet, and their mean over channels.
    block: Vec<f32>,
    mono: Vec<f32>,
    trim: Trim,
    /// `None` until the sample rate is known for sure: an AAC or Vorbis stream tells it with its first packet.
    resampler: Option<Resampler>,
    pcm: Vec<f32>,
    /// Seconds decoded before the current stream (a file may chain several), and decoded of the current one, before
    /// trimming.
    earlier_s: f64,
    decoded: u64,
    rate: u32,
    /// Frames of the last good packet: the length of one that is damaged, where the container does not tell it.
    last_frames: u64,
    /// Where the next packet should start, in frames; only for containers whose packets say where they belong.
    expected: Option<i64>,
    lost_s: f64,
    first_loss_s: Option<f64>,
}

impl<'a> Decoder<'a> {
    pub fn open(bytes: &'a [u8], limits: &Limits) -> Result<Self, AudioError> {
        if bytes.len() > limits.max_bytes {
            return Err(AudioError::TooLarge {
                bytes: bytes.len(),
                limit: limits.max_bytes,
            });
        }
        let (container, start) = sniff(bytes)?;
        let bytes = &bytes[start..];
        contain(container, || {
            let demuxer = Demuxer::open(container, bytes)?;
            let track = &demuxer.track;
            if track
                .promised_s
                .is_some_and(|s| s > limits.max_seconds + LOSS_MAX_S)
            {
                return Err(too_long(limits));
            }
            let rate = track.params.sample_rate.unwrap_or(0);
            if track.params.sample_rate.is_some() {
                check_rate(container, rate, limits)?;
            }
            let channels = track.params.channels.as_ref().map_or(0, |c| c.count());
            if channels > 0 {
                check_channels(container, channels, limits)?;
            }
            let (codec, pre_skip) = Codec::new(container, track)?;
            Ok(Self {
                limits: *limits,
                container,
                codec,
                source: Source {
                    container: container.name(),
                    codec: codec_name(track.params.codec),
                    rate,
                    channels,
                },
                block: Vec::new(),
                mono: Vec::new(),
                trim: Trim::new(track, pre_skip, rate),
                resampler: None,
                pcm: Vec::new(),
                earlier_s: 0.0,
                decoded: 0,
                rate,
                last_frames: 0,
                expected: None,
                lost_s: 0.0,
                first_loss_s: None,
                demuxer,
            })
        })
    }

    /// Decodes one packet; false at the end of the file.
    pub fn step(&mut self) -> Result<bool, AudioError> {
        contain(self.container, || match self.demuxer.next()? {
            Next::Packet(packet) => self.packet(&packet).map(|()| true),
            Next::Other => Ok(true),
            Next::Track => self.chained().map(|()| true),
            Next::End => Ok(false),
            Next::Lost(what) => self.lost_way(what).map(|()| false),
        })
    }

    /// Bytes that the audio so far takes.
    pub fn bytes(&self) -> usize {
        self.pcm.capacity() * size_of::<f32>()
    }

    /// What came out. Call after `step` has returned false.
    pub fn finish(mut self) -> Result<Audio, AudioError> {
        let found_s = self.decoded as f64 / f64::from(self.rate.max(1));
        let promised_s = self.demuxer.track.promised_s.unwrap_or(found_s);
        let tolerated =
            (promised_s.max(self.earlier_s + found_s) * LOSS_SHARE).clamp(LOSS_MIN_S, LOSS_MAX_S);
        let container = self.container.name();
        if let Some(at_s) = self.first_loss_s.filter(|_| self.lost_s > tolerated) {
            return Err(AudioError::Corrupt {
                container,
                at_s,
                lost_s: self.lost_s,
            });
        }
        if promised_s - found_s > tolerated {
            return Err(AudioError::Truncated {
                container,
                promised_s,
                found_s,
            });
        }
        if let Some(inside) = self.demuxer.cut_inside() {
            return Err(AudioError::CutInside {
                container,
                inside,
                found_s: self.earlier_s + found_s,
            });
        }
        let mut duration_s = self.earlier_s;
        if let Some(resampler) = self.resampler.take() {
            duration_s += resampler.frames_in() as f64 / f64::from(resampler.rate());
            resampler.finish(&mut self.pcm);
        }
        if self.pcm.is_empty() {
            return Err(AudioError::NoSamples { container });
        }
        self.pcm.shrink_to_fit();
        for sample in &mut self.pcm {
            // As 16-bit PCM would hold it; float files may hold anything.
            *sample = if sample.is_nan() {
                0.0
            } else {
                sample.clamp(-1.0, 1.0)
            };
        }
        Ok(Audio {
            pcm: self.pcm,
            duration_s,
            source: self.source,
        })
    }

    fn packet(&mut self, packet: &Packet) -> Result<(), AudioError> {
        self.fill_gap(packet)?;
        let decoded = self.codec.decode(packet, &mut self.block);
        let good = decoded.map_err(|what| AudioError::Damaged {
            container: self.container.name(),
            what: format!("its {} audio cannot be decoded ({what})", self.source.codec),
        })?;
        let Some((rate, channels)) = good else {
            let frames =
                packet_frames(packet, &self.demuxer.track, self.rate).unwrap_or(self.last_frames);
            return self.loss(frames);
        };
        if self.block.is_empty() {
            return Ok(());
        }
        self.spec(rate, channels)?;
        self.mono.clear();
        let scale = 1.0 / channels as f32;
        let frames = self.block.chunks_exact(channels);
        self.mono
            .extend(frames.map(|frame| frame.iter().sum::<f32>() * scale));
        self.last_frames = self.mono.len() as u64;
        let mono = std::mem::take(&mut self.mono);
        let result = self.emit(&mono);
        self.mono = mono;
        result
    }

    /// Checks what a packet turned out to hold, and prepares for it where it changed.
    fn spec(&mut self, rate: u32, channels: usize) -> Result<(), AudioError> {
        if self.resampler.as_ref().is_some_and(|r| r.rate() == rate) {
            return check_channels(self.container, channels, &self.limits);
        }
        check_rate(self.container, rate, &self.limits)?;
        check_channels(self.container, channels, &self.limits)?;
        self.flush();
        if self.earlier_s == 0.0 {
            (self.source.rate, self.source.channels) = (rate, channels);
        }
        self.trim.rate(rate);
        self.rate = rate;
        self.resampler = Some(Resampler::new(rate));
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(resampler) = self.resampler.take() {
            self.earlier_s += resampler.frames_in() as f64 / f64::from(resampler.rate());
            resampler.finish(&mut self.pcm);
        }
    }

    /// Takes mono samples as they come out of the decoder.
    fn emit(&mut self, mono: &[f32]) -> Result<(), AudioError> {
        self.decoded += mono.len() as u64;
        // Grows by a quarter: a vector that doubles would take up to twice what it holds.
        let room = MOST_OUT * mono.len() + FLUSHED;
        if self.pcm.capacity() - self.pcm.len() < room {
            self.pcm.reserve_exact(room.max(self.pcm.len() / 4));
        }
        let Some(resampler) = &mut self.resampler else {
            return Ok(());
        };
        self.trim
            .pass(mono, |samples| resampler.push(samples, &mut self.pcm));
        let seconds = self.earlier_s + resampler.frames_in() as f64 / f64::from(resampler.rate());
        if seconds > self.limits.max_seconds {
            return Err(too_long(&self.limits));
        }
        Ok(())
    }

    /// Puts silence where packets are missing, so that everything after them keeps its time.
    fn fill_gap(&mut self, packet: &Packet) -> Result<(), AudioError> {
        let (Container::Flac | Container::Ogg, false) = (self.container, self.rate == 0) else {
            return Ok(());
        };
        let (start, block) = (packet.pts.get(), packet.block_dur().get());
        let gap = start.saturating_sub(self.expected.unwrap_or(start));
        // Time stamps of lapped transforms jitter by a block.
        let real = gap > i64::from(self.rate / 20);
        let next = start.saturating_add_unsigned(block);
        self.expected = Some(next.max(self.expected.unwrap_or(next)));
        if real {
            self.loss(gap as u64)
        } else {
            Ok(())
        }
    }

    /// `frames` of audio cannot be had; silence takes their place.
    fn loss(&mut self, frames: u64) -> Result<(), AudioError> {
        let rate = f64::from(self.rate.max(1));
        let at_s = self.earlier_s + self.decoded as f64 / rate;
        self.first_loss_s.get_or_insert(at_s);
        self.lost_s += (frames as f64 / rate).max(0.01);
        if self.lost_s > LOSS_MAX_S {
            return Err(AudioError::Corrupt {
                container: self.container.name(),
                at_s: self.first_loss_s.unwrap_or(at_s),
                lost_s: self.lost_s,
            });
        }
        self.emit(&vec![0.0; frames as usize])
    }

    /// The container broke. That is no harm where everything it promised had come by then.
    fn lost_way(&mut self, what: String) -> Result<(), AudioError> {
        let found_s = self.decoded as f64 / f64::from(self.rate.max(1));
        match self.demuxer.track.promised_s {
            Some(promised_s) if found_s + LOSS_MIN_S >= promised_s => Ok(()),
            _ => Err(AudioError::Damaged {
                container: self.container.name(),
                what: format!(
                    "after {found_s:.2} s of audio it cannot be followed any further ({what})"
                ),
            }),
        }
    }

    /// Another stream follows in the same file, as internet radio writes it.
    fn chained(&mut self) -> Result<(), AudioError> {
        self.flush();
        let track = &self.demuxer.track;
        let (codec, pre_skip) = Codec::new(self.container, track)?;
        self.codec = codec;
        self.trim = Trim::new(track, pre_skip, track.params.sample_rate.unwrap_or(0));
        self.decoded = 0;
        self.expected = None;
        Ok(())
    }
}

/// Runs `work`, and takes a panic of a codec for a damaged file. The codecs are third-party code that meets hostile
/// bytes; a fault in one must cost a request, not the server. Nothing is used after a panic but to be dropped.
fn contain<T>(
    container: Container,
    work: impl FnOnce() -> Result<T, AudioError>,
) -> Result<T, AudioError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!(container = container.name(), "an audio decoder panicked");
        Err(AudioError::Damaged {
            container: container.name(),
            what: "its contents make no sense to the decoder".into(),
        })
    })
}

fn too_long(limits: &Limits) -> AudioError {
    AudioError::TooLong {
        limit_s: limits.max_seconds,
    }
}

fn check_rate(container: Container, rate: u32, limits: &Limits) -> Result<(), AudioError> {
    let container = container.name();
    if rate == 0 {
        return Err(AudioError::ZeroRate { container });
    }
    if rate < limits.min_rate || rate > limits.max_rate {
        return Err(AudioError::Rate {
            container,
            rate,
            min: limits.min_rate,
            max: limits.max_rate,
        });
    }
    Ok(())
}

fn check_channels(
    container: Container,
    channels: usize,
    limits: &Limits,
) -> Result<(), AudioError> {
    let container = container.name();
    if channels == 0 {
        return Err(AudioError::ZeroChannels { container });
    }
    if channels > limits.max_channels {
        return Err(AudioError::Channels {
            container,
            channels,
            limit: limits.max_channels,
        });
    }
    Ok(())
}

/// How many frames the container gives a packet.
fn packet_frames(packet: &Packet, track: &AudioTrack, rate: u32) -> Option<u64> {
    let base = track.time_base?;
    let ticks = packet.dur.get() as f64;
    let seconds = ticks * f64::from(base.numer.get()) / f64::from(base.denom.get());
    // A packet holds a second at most, whatever it says.
    let frames = (seconds.min(LOSS_MAX_S) * f64::from(rate)).round() as u64;
    (frames > 0).then_some(frames)
}
