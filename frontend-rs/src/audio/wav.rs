//! WAV files: where the samples are and how they are coded.
//!
//! Own code, because real WAV files are sloppier than a strict reader allows: sizes of 0 or 0xFFFFFFFF from encoders
//! that wrote into a pipe, format chunks without their extension, RIFF sizes that do not fit. The samples themselves are
//! converted by Symphonia's PCM decoder.

use symphonia::core::audio::Channels;
use symphonia::core::codecs::audio::well_known::{
    CODEC_ID_PCM_ALAW, CODEC_ID_PCM_F32LE, CODEC_ID_PCM_F64LE, CODEC_ID_PCM_MULAW,
    CODEC_ID_PCM_S16LE, CODEC_ID_PCM_S24LE, CODEC_ID_PCM_S32LE, CODEC_ID_PCM_U8,
};
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters};
use symphonia::core::packet::Packet;
use symphonia::core::units::{Duration, Timestamp};

use super::error::AudioError;

const NAME: &str = "WAV";
/// Frames of a packet handed to the decoder.
const PACKET_FRAMES: usize = 4096;
/// Sizes from here on are what encoders write who do not know the size (0x7FFFF000 is SoX's, 0xFFFFFFFF FFmpeg's).
const PLACEHOLDER: u32 = 0x7fff_f000;

/// The samples of a WAV file, cut into packets.
pub struct Wav<'a> {
    data: &'a [u8],
    frame_bytes: usize,
    next: usize,
    pub params: AudioCodecParameters,
    /// Frames that the header promises; `None` where it does not say.
    pub promised: Option<u64>,
}

impl<'a> Wav<'a> {
    pub fn open(bytes: &'a [u8]) -> Result<Self, AudioError> {
        let cut = || AudioError::CutHeader { container: NAME };
        let mut format = None;
        // RF64 keeps the real sizes in a chunk of its own.
        let mut data_size64 = None;
        let mut at = 12;
        loop {
            let header = bytes.get(at..at + 8).ok_or_else(cut)?;
            let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
            let body = &bytes[at + 8..];
            match &header[..4] {
                b"fmt " => format = Some(Format::read(body.get(..size as usize).ok_or_else(cut)?)?),
                b"ds64" => {
                    let size = body.get(8..16).ok_or_else(cut)?;
                    data_size64 = size.try_into().ok().map(u64::from_le_bytes);
                }
                b"data" => {
                    let format = format.ok_or(AudioError::Damaged {
                        container: NAME,
                        what: "it has no 'fmt ' chunk before its samples".into(),
                    })?;
                    let size = match size {
                        u32::MAX if data_size64.is_some() => data_size64,
                        0 if !body.is_empty() && !starts_chunk(body) => None,
                        size if size >= PLACEHOLDER && (size as usize) > body.len() => None,
                        size => Some(u64::from(size)),
                    };
                    return Ok(Self::new(&format, body, size));
                }
                _ => {}
            }
            at += 8 + size as usize + (size as usize & 1);
        }
    }

    fn new(format: &Format, body: &'a [u8], size: Option<u64>) -> Self {
        let frame_bytes = format.sample_bytes * usize::from(format.channels);
        let there = size.map_or(body.len(), |size| {
            usize::try_from(size).unwrap_or(usize::MAX).min(body.len())
        });
        let mut params = AudioCodecParameters::new();
        params
            .for_codec(format.codec)
            .with_sample_rate(format.rate)
            .with_channels(Channels::Discrete(format.channels))
            .with_max_frames_per_packet(PACKET_FRAMES as u64);
        Self {
            // Half a frame at the end is nobody's.
            data: &body[..there - there % frame_bytes.max(1)],
            frame_bytes,
            next: 0,
            params,
            promised: size.map(|size| size / frame_bytes.max(1) as u64),
        }
    }

    pub fn next_packet(&mut self) -> Option<Packet> {
        let rest = &self.data[self.next..];
        let length = rest.len().min(PACKET_FRAMES * self.frame_bytes);
        if length == 0 {
            return None;
        }
        let frame = (self.next / self.frame_bytes) as i64;
        self.next += length;
        let frames = Duration::new((length / self.frame_bytes) as u64);
        Some(Packet::new(
            0,
            Timestamp::new(frame),
            frames,
            &rest[..length],
        ))
    }
}

/// Whether the bytes after a data chunk of size 0 are another chunk, not samples of a stream.
fn starts_chunk(body: &[u8]) -> bool {
    let known: [&[u8]; 7] = [
        b"LIST", b"id3 ", b"ID3 ", b"bext", b"fact", b"JUNK", b"cue ",
    ];
    known.iter().any(|id| body.starts_with(id))
}

struct Format {
    codec: AudioCodecId,
    channels: u16,
    rate: u32,
    sample_bytes: usize,
}

impl Format {
    fn read(body: &[u8]) -> Result<Self, AudioError> {
        let damaged = |what: String| AudioError::Damaged {
            container: NAME,
            what,
        };
        let short = |at: usize| u16::from_le_bytes([body[at], body[at + 1]]);
        if body.len() < 16 {
            return Err(damaged(format!(
                "its 'fmt ' chunk has {} bytes, not 16",
                body.len()
            )));
        }
        let (channels, bits) = (short(2), short(14));
        let rate = u32::from_le_bytes([body[4], body[5], body[6], body[7]]);
        let tag = match short(0) {
            // WAVE_FORMAT_EXTENSIBLE: the real tag is the start of the sub-format's GUID.
            0xfffe if body.len() >= 40 => short(24),
            tag => tag,
        };
        if channels == 0 {
            return Err(AudioError::ZeroChannels { container: NAME });
        }
        // 12 or 20 bits stand left-aligned in whole bytes.
        let (codec, sample_bytes) = match (tag, bits) {
            (1, 1..=8) => (CODEC_ID_PCM_U8, 1),
            (1, 9..=16) => (CODEC_ID_PCM_S16LE, 2),
            (1, 17..=24) if short(12) == channels.saturating_mul(4) => (CODEC_ID_PCM_S32LE, 4),
            (1, 17..=24) => (CODEC_ID_PCM_S24LE, 3),
            (1, 25..=32) => (CODEC_ID_PCM_S32LE, 4),
            (3, 32) => (CODEC_ID_PCM_F32LE, 4),
            (3, 64) => (CODEC_ID_PCM_F64LE, 8),
            (6, _) => (CODEC_ID_PCM_ALAW, 1),
            (7, _) => (CODEC_ID_PCM_MULAW, 1),
            (1 | 3, bits) => {
                return Err(damaged(format!("it declares samples of {bits} bits")));
            }
            (tag, _) => {
                let codec = match tag {
                    0x02 => "Microsoft ADPCM".into(),
                    0x11 => "IMA ADPCM".into(),
                    0x31 => "GSM 6.10".into(),
                    0x50 => "MPEG layer 2".into(),
                    0x55 => "MP3".into(),
                    0xff => "AAC".into(),
                    0x160..=0x163 => "Windows Media".into(),
                    tag => format!("unknown (format tag {tag:#06x})"),
                };
                return Err(AudioError::UnsupportedCodec {
                    container: NAME,
                    codec,
                });
            }
        };
        Ok(Self {
            codec,
            channels,
            rate,
            sample_bytes,
        })
    }
}
