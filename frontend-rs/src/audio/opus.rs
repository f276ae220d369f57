//! Opus packets to samples, with `ropus`.

use ropus::{Channels, DecodeMode, Decoder, OpusMSDecoder};

/// Opus always decodes at this rate here.
pub const RATE: u32 = 48_000;
/// Frames of the longest packet, 120 ms.
const MAX_FRAMES: usize = 5760;

/// The identification header (RFC 7845, section 5.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpusHead {
    pub channels: usize,
    /// Frames at 48 kHz to drop at the start.
    pub pre_skip: u64,
    /// Output gain in dB, Q7.8.
    gain: i16,
    /// Streams, coupled streams, and the stream channel behind each channel; `None` for plain mono and stereo.
    layout: Option<(u8, u8, Vec<u8>)>,
}

impl OpusHead {
    /// Reads the header out of a track's extra data; `None` where it makes no sense.
    pub fn read(data: &[u8]) -> Option<Self> {
        let head = data.strip_prefix(b"OpusHead")?;
        let (fixed, table) = (head.get(..11)?, &head[11..]);
        let channels = usize::from(fixed[1]);
        let layout = match fixed[10] {
            0 if channels <= 2 => None,
            0 => return None,
            _ => Some((
                *table.first()?,
                *table.get(1)?,
                table.get(2..2 + channels)?.to_vec(),
            )),
        };
        (channels > 0).then_some(Self {
            channels,
            pre_skip: u64::from(u16::from_le_bytes([fixed[2], fixed[3]])),
            gain: i16::from_le_bytes([fixed[8], fixed[9]]),
            layout,
        })
    }

    /// What a track without a usable header is taken for.
    pub fn plain(channels: usize) -> Self {
        Self {
            channels: channels.clamp(1, 2),
            pre_skip: 0,
            gain: 0,
            layout: None,
        }
    }
}

enum Inner {
    Single(Box<Decoder>),
    Multi(Box<OpusMSDecoder>, Vec<i16>),
}

pub struct Opus {
    inner: Inner,
    channels: usize,
    pcm: Vec<f32>,
}

impl Opus {
    /// `Err` says what about the header cannot be.
    pub fn new(head: &OpusHead) -> Result<Self, String> {
        let fault = |e: &dyn std::fmt::Debug| format!("its Opus header makes no sense ({e:?})");
        let inner = match &head.layout {
            None => {
                let channels = if head.channels == 1 {
                    Channels::Mono
                } else {
                    Channels::Stereo
                };
                let mut decoder = Decoder::new(RATE, channels).map_err(|e| fault(&e))?;
                decoder
                    .set_gain(i32::from(head.gain))
                    .map_err(|e| fault(&e))?;
                Inner::Single(Box::new(decoder))
            }
            Some((streams, coupled, mapping)) => {
                let (streams, coupled) = (i32::from(*streams), i32::from(*coupled));
                let channels = head.channels as i32;
                let mut decoder =
                    OpusMSDecoder::new(RATE as i32, channels, streams, coupled, mapping)
                        .map_err(|e| fault(&e))?;
                decoder.set_gain(i32::from(head.gain));
                Inner::Multi(Box::new(decoder), vec![0; MAX_FRAMES * head.channels])
            }
        };
        Ok(Self {
            inner,
            channels: head.channels,
            pcm: vec![0.0; MAX_FRAMES * head.channels],
        })
    }

    /// Interleaved samples of one packet, and how many channels they have; `None` if it is damaged.
    pub fn decode(&mut self, packet: &[u8]) -> Option<(&[f32], usize)> {
        // The decoder takes an empty packet for a lost one and would make up 120 ms.
        if packet.is_empty() {
            return None;
        }
        let frames = match &mut self.inner {
            Inner::Single(decoder) => decoder
                .decode_float(packet, &mut self.pcm, DecodeMode::Normal)
                .ok()?,
            Inner::Multi(decoder, pcm) => {
                let length = i32::try_from(packet.len()).ok()?;
                let frames = decoder
                    .decode(Some(packet), length, pcm, MAX_FRAMES as i32, false)
                    .ok()?;
                let frames = usize::try_from(frames).ok()?;
                for (to, from) in self.pcm.iter_mut().zip(&pcm[..frames * self.channels]) {
                    *to = f32::from(*from) / 32768.0;
                }
                frames
            }
        };
        let samples = self.pcm.get(..frames * self.channels)?;
        Some((samples, self.channels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(rest: &[u8]) -> Vec<u8> {
        [b"OpusHead", rest].concat()
    }

    #[test]
    fn reads_plain_and_mapped_headers() {
        let plain = head(&[1, 2, 0x38, 1, 0x80, 0xbb, 0, 0, 0, 1, 0]);
        let read = OpusHead::read(&plain).unwrap();
        assert_eq!((read.channels, read.pre_skip, read.gain), (2, 312, 256));
        let surround = head(&[1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 1, 0, 2, 1]);
        let read = OpusHead::read(&surround).unwrap();
        assert_eq!(read.layout, Some((2, 1, vec![0, 2, 1])));
        assert!(Opus::new(&read).is_ok());
    }

    #[test]
    fn refuses_headers_that_make_no_sense() {
        assert_eq!(OpusHead::read(b"OpusTags"), None);
        assert_eq!(
            OpusHead::read(&head(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            None
        );
        assert_eq!(
            OpusHead::read(&head(&[1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            None
        );
        assert_eq!(
            OpusHead::read(&head(&[1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 1, 0, 2])),
            None
        );
        // More coupled streams than streams.
        let read = OpusHead::read(&head(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 1])).unwrap();
        assert!(Opus::new(&read).is_err());
    }
}
