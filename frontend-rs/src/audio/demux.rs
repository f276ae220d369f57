//! A file's packets: the container is opened, its audio track chosen, and what it says about itself collected.

use std::io::{self, Cursor, ErrorKind, Read, Seek, SeekFrom};

use symphonia::core::codecs::audio::well_known as codec;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters, CODEC_ID_NULL_AUDIO};
use symphonia::core::codecs::CodecParameters;
use symphonia::core::errors::{Error, Result as Symphonia};
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, ReadOnlySource};
use symphonia::core::packet::Packet;
use symphonia::core::units::TimeBase;
use symphonia::default::formats::{
    AdtsReader, FlacReader, IsoMp4Reader, MkvReader, MpaReader, OggReader,
};

use super::cut::cut_inside;
use super::edits::{self, Patches};
use super::error::AudioError;
use super::sniff::Container;
use super::wav::Wav;

/// The audio track of a file, as its container describes it.
#[derive(Clone)]
pub struct AudioTrack {
    pub params: AudioCodecParameters,
    pub time_base: Option<TimeBase>,
    /// Seconds of audio that the container promises; `None` where it does not say or is known to guess.
    pub promised_s: Option<f64>,
    /// Seconds to drop at the start of what the decoder gives.
    pub skip_s: f64,
    /// Seconds to keep after that.
    pub keep_s: Option<f64>,
    /// Seconds to drop at the end.
    pub discard_s: f64,
}

enum Reader<'a> {
    Wav(Wav<'a>),
    Symphonia(Box<dyn FormatReader + 'a>, u32),
}

/// What comes next in a file.
pub enum Next {
    Packet(Packet),
    /// A packet of another track.
    Other,
    /// A new stream follows in the same file; see `track`.
    Track,
    End,
    /// The container cannot be followed any further.
    Lost(String),
}

pub struct Demuxer<'a> {
    bytes: &'a [u8],
    container: Container,
    reader: Reader<'a>,
    pub track: AudioTrack,
}

impl<'a> Demuxer<'a> {
    pub fn open(container: Container, bytes: &'a [u8]) -> Result<Self, AudioError> {
        if container == Container::Wav {
            let wav = Wav::open(bytes)?;
            let rate = wav.params.sample_rate.filter(|&rate| rate > 0);
            let track = AudioTrack {
                params: wav.params.clone(),
                time_base: rate.and_then(TimeBase::try_from_recip),
                promised_s: wav
                    .promised
                    .zip(rate)
                    .map(|(frames, rate)| frames as f64 / f64::from(rate)),
                skip_s: 0.0,
                keep_s: None,
                discard_s: 0.0,
            };
            return Ok(Self {
                bytes,
                container,
                reader: Reader::Wav(wav),
                track,
            });
        }
        let reader = open(container, bytes).map_err(|e| open_error(container, bytes, &e))?;
        let (id, track) = choose(container, bytes, reader.as_ref())?;
        Ok(Self {
            bytes,
            container,
            reader: Reader::Symphonia(reader, id),
            track,
        })
    }

    pub fn next(&mut self) -> Result<Next, AudioError> {
        let (reader, id) = match &mut self.reader {
            Reader::Wav(wav) => return Ok(wav.next_packet().map_or(Next::End, Next::Packet)),
            Reader::Symphonia(reader, id) => (reader, id),
        };
        Ok(match reader.next_packet() {
            Ok(Some(packet)) if packet.track_id == *id => Next::Packet(packet),
            Ok(Some(_)) => Next::Other,
            Ok(None) => Next::End,
            Err(Error::IoError(e)) if e.kind() == ErrorKind::UnexpectedEof => Next::End,
            Err(Error::ResetRequired) => {
                (*id, self.track) = choose(self.container, self.bytes, reader.as_ref())?;
                Next::Track
            }
            Err(e) => Next::Lost(e.to_string()),
        })
    }

    /// What a file that promises no length was cut off in the middle of.
    pub fn cut_inside(&self) -> Option<&'static str> {
        // A stream of an OGG file tells its own length at most, not whether another one follows.
        let promised = self.container != Container::Ogg && self.track.promised_s.is_some();
        (!promised).then(|| cut_inside(self.container, self.bytes))?
    }
}

fn open(container: Container, bytes: &[u8]) -> Symphonia<Box<dyn FormatReader + '_>> {
    match container {
        // A seekable source makes the reader guess the length of a stream that does not tell it.
        Container::Mpeg | Container::Adts => read(container, ReadOnlySource::new(bytes)),
        Container::Mp4 => read(container, Mended::new(bytes, edits::mp4_mend(bytes))),
        // With a seekable source the index at the end, which a file that was cut off lacks, would be looked for.
        Container::Matroska => {
            let mended = Mended::new(bytes, edits::webm(bytes).patches);
            read(container, ReadOnlySource::new(mended))
        }
        // With a seekable source a damaged page near the end, or anything behind it, fails everything.
        Container::Ogg => read(container, Cursor::new(bytes))
            .or_else(|_| read(container, ReadOnlySource::new(bytes))),
        // Its reader takes a tag behind the last frame for a part of it, and drops the frame.
        _ => read(container, Cursor::new(without_id3v1(bytes))),
    }
}

/// The file without the 128 bytes of an ID3v1 tag at its end.
fn without_id3v1(bytes: &[u8]) -> &[u8] {
    match bytes.len().checked_sub(128) {
        Some(at) if bytes[at..].starts_with(b"TAG") => &bytes[..at],
        _ => bytes,
    }
}

fn read<'a>(
    container: Container,
    source: impl MediaSource + 'a,
) -> Symphonia<Box<dyn FormatReader + 'a>> {
    let stream = MediaSourceStream::new(Box::new(source), Default::default());
    let options = FormatOptions::default();
    Ok(match container {
        Container::Wav => unreachable!("WAV files have a reader of their own"),
        Container::Flac => Box::new(FlacReader::try_new(stream, options)?),
        Container::Mpeg => Box::new(MpaReader::try_new(stream, options)?),
        Container::Ogg => Box::new(OggReader::try_new(stream, options)?),
        Container::Matroska => Box::new(MkvReader::try_new(stream, options)?),
        Container::Mp4 => Box::new(IsoMp4Reader::try_new(stream, options)?),
        Container::Adts => Box::new(AdtsReader::try_new(stream, options)?),
    })
}

/// A file with some bytes replaced.
struct Mended<'a> {
    cursor: Cursor<&'a [u8]>,
    patches: Patches,
}

impl<'a> Mended<'a> {
    fn new(bytes: &'a [u8], patches: Patches) -> Self {
        let cursor = Cursor::new(bytes);
        Self { cursor, patches }
    }
}

impl Read for Mended<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let from = self.cursor.position() as usize;
        let length = self.cursor.read(buffer)?;
        for &(at, byte) in &self.patches {
            if let Some(place) = at.checked_sub(from).filter(|&place| place < length) {
                buffer[place] = byte;
            }
        }
        Ok(length)
    }
}

impl Seek for Mended<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.cursor.seek(to)
    }
}

impl MediaSource for Mended<'_> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.cursor.get_ref().len() as u64)
    }
}

fn open_error(container: Container, bytes: &[u8], error: &Error) -> AudioError {
    let name = container.name();
    // The reader skips streams of codecs it does not know, and then finds none.
    if let (Container::Ogg, Some(codec)) = (container, ogg_codec(bytes)) {
        return AudioError::UnsupportedCodec {
            container: name,
            codec: codec.to_owned(),
        };
    }
    match error {
        Error::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => {
            AudioError::CutHeader { container: name }
        }
        // Recorders write the index of an MP4 file last.
        Error::Unsupported("isomp4: missing moov atom") => {
            AudioError::CutHeader { container: name }
        }
        Error::DecodeError("mkv: missing Tracks element" | "mkv: missing Info element")
            if bytes.len() < 1024 =>
        {
            AudioError::CutHeader { container: name }
        }
        e => AudioError::Damaged {
            container: name,
            what: format!("its header cannot be read ({e})"),
        },
    }
}

/// The codec of an OGG file's first stream, if it is one that is not built in.
fn ogg_codec(bytes: &[u8]) -> Option<&'static str> {
    let segments = usize::from(*bytes.get(26)?);
    let packet = bytes.get(27 + segments..)?;
    let known: [(&[u8], &str); 3] = [
        (b"Speex   ", "Speex"),
        (b"PCM     ", "raw PCM"),
        (b"CELT    ", "CELT"),
    ];
    let found = known.iter().find(|(magic, _)| packet.starts_with(magic));
    found.map(|(_, codec)| *codec)
}

/// Where an OGG stream ends, in samples, by its last page, if that is marked as the end. The reader does not look there
/// when a page is damaged.
fn ogg_end(bytes: &[u8]) -> Option<u64> {
    let at = bytes.windows(4).rposition(|window| window == b"OggS")?;
    let page = bytes.get(at..at + 14)?;
    let samples = u64::from_le_bytes(page[6..14].try_into().ok()?);
    (page[5] & 4 != 0).then_some(samples)
}

/// The default audio track, or else the first.
fn choose(
    container: Container,
    bytes: &[u8],
    reader: &dyn FormatReader,
) -> Result<(u32, AudioTrack), AudioError> {
    let name = container.name();
    let first = || {
        reader
            .tracks()
            .iter()
            .find(|track| track.track_type() == Some(TrackType::Audio))
    };
    let track = reader
        .default_track(TrackType::Audio)
        .or_else(first)
        .ok_or_else(|| no_audio_track(container, bytes))?;
    let Some(CodecParameters::Audio(params)) = &track.codec_params else {
        return Err(AudioError::NoAudioTrack { container: name });
    };
    let edit = match container {
        Container::Mp4 => edits::mp4_edit(bytes, track.id),
        _ => None,
    };
    let discard_s = match container {
        Container::Matroska => edits::webm(bytes).discard_s,
        _ => 0.0,
    };
    let id = track.id;
    let track = AudioTrack {
        promised_s: promised(container, bytes, reader, track, params),
        time_base: track.time_base,
        params: params.clone(),
        skip_s: edit.map_or(0.0, |edit| edit.skip_s),
        keep_s: edit.and_then(|edit| edit.keep_s),
        discard_s,
    };
    Ok((id, track))
}

/// A track whose codec the reader does not know looks to it like no sound at all.
fn no_audio_track(container: Container, bytes: &[u8]) -> AudioError {
    let name = container.name();
    let sound = match container {
        Container::Mp4 => edits::mp4_sound(bytes),
        _ => None,
    };
    let Some(sound) = sound else {
        return AudioError::NoAudioTrack { container: name };
    };
    let codec = match &sound {
        b"samr" => "AMR".into(),
        b"sawb" => "AMR-WB".into(),
        b"sevc" => "EVRC".into(),
        b"sqcp" => "QCELP".into(),
        b"dtsc" | b"dtsh" | b"dtsl" | b"dtse" => "DTS".into(),
        b"mha1" | b"mhm1" => "MPEG-H".into(),
        b"enca" => "encrypted".into(),
        sound => format!("unknown ({})", sound.escape_ascii()),
    };
    AudioError::UnsupportedCodec {
        container: name,
        codec,
    }
}

fn promised(
    container: Container,
    bytes: &[u8],
    reader: &dyn FormatReader,
    track: &Track,
    params: &AudioCodecParameters,
) -> Option<f64> {
    let seconds = |ticks: u64| {
        let base = track.time_base?;
        Some(ticks as f64 * f64::from(base.numer.get()) / f64::from(base.denom.get()))
    };
    let promised = match container {
        Container::Wav | Container::Adts => None,
        Container::Flac | Container::Mpeg => {
            let rate = params.sample_rate.filter(|&rate| rate > 0)?;
            track
                .num_frames
                .map(|frames| frames as f64 / f64::from(rate))
        }
        // A recording cut out of a longer stream starts late.
        Container::Ogg => {
            let start = u64::try_from(track.start_ts.get()).unwrap_or(0);
            let end = track.duration.map(|ticks| ticks.get());
            seconds(end.or_else(|| ogg_end(bytes))?.checked_sub(start)?)
        }
        Container::Mp4 => seconds(track.duration?.get()),
        // The length is the file's, and a picture may go on after the sound.
        Container::Matroska if reader.tracks().len() == 1 => {
            let (info, base) = (reader.media_info(), reader.media_info().time_base?);
            let ticks = info.duration?.get() as f64;
            Some(ticks * f64::from(base.numer.get()) / f64::from(base.denom.get()))
        }
        Container::Matroska => None,
    };
    promised.filter(|&s| s > 0.0)
}

/// A codec's name for messages and logs.
pub fn codec_name(id: AudioCodecId) -> String {
    let name = match id {
        codec::CODEC_ID_PCM_U8 => "u8",
        codec::CODEC_ID_PCM_S16LE => "s16",
        codec::CODEC_ID_PCM_S24LE => "s24",
        codec::CODEC_ID_PCM_S32LE => "s32",
        codec::CODEC_ID_PCM_F32LE => "f32",
        codec::CODEC_ID_PCM_F64LE => "f64",
        codec::CODEC_ID_PCM_ALAW => "A-law",
        codec::CODEC_ID_PCM_MULAW => "\u{b5}-law",
        codec::CODEC_ID_VORBIS => "Vorbis",
        codec::CODEC_ID_OPUS => "Opus",
        codec::CODEC_ID_SPEEX => "Speex",
        codec::CODEC_ID_MP1 => "MPEG layer 1",
        codec::CODEC_ID_MP2 => "MPEG layer 2",
        codec::CODEC_ID_MP3 => "MP3",
        codec::CODEC_ID_AAC => "AAC",
        codec::CODEC_ID_AC3 => "AC-3",
        codec::CODEC_ID_EAC3 => "E-AC-3",
        codec::CODEC_ID_AC4 => "AC-4",
        codec::CODEC_ID_DCA => "DTS",
        codec::CODEC_ID_WMA => "WMA",
        codec::CODEC_ID_FLAC => "FLAC",
        codec::CODEC_ID_WAVPACK => "WavPack",
        codec::CODEC_ID_ALAC => "ALAC",
        codec::CODEC_ID_TRUEHD => "TrueHD",
        CODEC_ID_NULL_AUDIO => "unknown",
        id => return format!("unknown (id {id})"),
    };
    name.to_owned()
}
