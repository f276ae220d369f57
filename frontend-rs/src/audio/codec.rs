//! Packets to samples: Symphonia's decoders, and `opus`.

use symphonia::core::codecs::audio::well_known::{CODEC_ID_AAC, CODEC_ID_OPUS};
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::packet::Packet;

use super::aac::core_config;
use super::demux::{codec_name, AudioTrack};
use super::error::AudioError;
use super::opus::{self, Opus, OpusHead};
use super::sniff::Container;

pub enum Codec {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<Opus>),
}

impl Codec {
    /// The decoder of a track, and how many frames the codec says to skip at the start.
    pub fn new(container: Container, track: &AudioTrack) -> Result<(Self, u64), AudioError> {
        let params = &track.params;
        let name = container.name();
        if params.codec == CODEC_ID_OPUS {
            let channels = params.channels.as_ref().map_or(1, |c| c.count());
            let head = params.extra_data.as_deref().and_then(OpusHead::read);
            let head = head.unwrap_or_else(|| OpusHead::plain(channels));
            let decoder = Opus::new(&head).map_err(|what| AudioError::Damaged {
                container: name,
                what,
            })?;
            // MP4 has the header in another byte order, and says the same with an edit list.
            let skip = if container == Container::Mp4 {
                0
            } else {
                head.pre_skip
            };
            return Ok((Self::Opus(Box::new(decoder)), skip));
        }
        let mut params = params.clone();
        if params.codec == CODEC_ID_AAC {
            let core = params.extra_data.as_deref().and_then(core_config);
            params.extra_data = core.map(Vec::into_boxed_slice).or(params.extra_data);
        }
        let options = AudioDecoderOptions::default();
        symphonia::default::get_codecs()
            .make_audio_decoder(&params, &options)
            .map(|decoder| (Self::Symphonia(decoder), 0))
            .map_err(|e| match e {
                Error::Unsupported("core (codec): unsupported audio codec") => {
                    AudioError::UnsupportedCodec {
                        container: name,
                        codec: codec_name(params.codec),
                    }
                }
                Error::Unsupported("aac: aac too complex") => AudioError::UnsupportedCodec {
                    container: name,
                    codec: "AAC of a profile other than LC and HE, or of more than two channels"
                        .to_owned(),
                },
                Error::Unsupported(feature) => AudioError::UnsupportedCodec {
                    container: name,
                    codec: format!("{} ({feature})", codec_name(params.codec)),
                },
                e => AudioError::Damaged {
                    container: name,
                    what: format!(
                        "its {} header cannot be read ({e})",
                        codec_name(params.codec)
                    ),
                },
            })
    }

    /// Decodes a packet into `block`, interleaved, without the frames that its container gave to be cut away. Returns
    /// rate and channels, or `None` if the packet is damaged; `Err` says why nothing more can come.
    pub fn decode(
        &mut self,
        packet: &Packet,
        block: &mut Vec<f32>,
    ) -> Result<Option<(u32, usize)>, String> {
        match self {
            Self::Opus(decoder) => {
                let Some((samples, channels)) = decoder.decode(&packet.data) else {
                    return Ok(None);
                };
                let (from, to) = inner(packet, samples.len() / channels);
                block.clear();
                block.extend_from_slice(&samples[from * channels..to * channels]);
                Ok(Some((opus::RATE, channels)))
            }
            // These cut away themselves.
            Self::Symphonia(decoder) => match decoder.decode(packet) {
                Ok(buffer) => {
                    buffer.copy_to_vec_interleaved(block);
                    Ok(Some((
                        buffer.spec().rate(),
                        buffer.spec().channels().count(),
                    )))
                }
                Err(Error::DecodeError(_) | Error::IoError(_)) => Ok(None),
                Err(e) => Err(e.to_string()),
            },
        }
    }
}

/// The frames of a packet that are meant to be heard, out of `frames` decoded ones.
fn inner(packet: &Packet, frames: usize) -> (usize, usize) {
    let to = frames.saturating_sub(packet.trim_end.get() as usize);
    ((packet.trim_start.get() as usize).min(to), to)
}
