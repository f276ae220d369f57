//! What an uploaded file is, judged by its first bytes. Names and declared content types are never looked at: browsers
//! and clients get them wrong (a WebM recording named `rec.wav` is common).

use super::error::AudioError;

/// The formats that are decoded, for error messages and documentation.
pub const BUILT_IN: &str =
    "WAV (PCM, float, A-law, \u{b5}-law), FLAC, MP3, OGG (Vorbis, Opus, FLAC), WebM or Matroska (Opus, Vorbis, AAC, MP3, \
     FLAC), M4A or MP4 (AAC-LC, ALAC, Opus, FLAC, MP3) and AAC (ADTS)";

/// A container format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    Wav,
    Flac,
    /// A bare stream of MPEG audio frames, layers 2 and 3.
    Mpeg,
    Ogg,
    Matroska,
    Mp4,
    Adts,
}

impl Container {
    /// As it is called in messages and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wav => "WAV",
            Self::Flac => "FLAC",
            Self::Mpeg => "MP3",
            Self::Ogg => "OGG",
            Self::Matroska => "WebM",
            Self::Mp4 => "MP4",
            Self::Adts => "AAC",
        }
    }
}

/// The container, and where in `bytes` it starts (behind an ID3 tag).
pub fn sniff(bytes: &[u8]) -> Result<(Container, usize), AudioError> {
    if bytes.is_empty() {
        return Err(AudioError::Empty);
    }
    let start = skip_id3(bytes);
    let body = &bytes[start..];
    if let Some(container) = known(body) {
        return Ok((container, start));
    }
    if let Some(what) = not_built_in(body) {
        return Err(AudioError::NotBuiltIn { what: what.into() });
    }
    // Encoders and cutters leave junk, mostly zeros, before the first frame.
    if let Some(offset) = mpeg_stream(body) {
        return Ok((Container::Mpeg, start + offset));
    }
    if start > 0 {
        return Err(if body.is_empty() {
            AudioError::CutHeader { container: "MP3" }
        } else {
            AudioError::NotAudio {
                found: "is an ID3 tag without MP3 frames behind it".into(),
            }
        });
    }
    Err(AudioError::NotAudio {
        found: describe(body),
    })
}

fn known(body: &[u8]) -> Option<Container> {
    let riff = [b"RIFF", b"RF64", b"BW64"]
        .iter()
        .any(|magic| body.starts_with(*magic));
    if riff && body.get(8..12).is_none_or(|form| form == b"WAVE") {
        return Some(Container::Wav);
    }
    if body.starts_with(b"fLaC") {
        return Some(Container::Flac);
    }
    if body.starts_with(b"OggS") {
        return Some(Container::Ogg);
    }
    if body.starts_with(b"\x1a\x45\xdf\xa3") {
        return Some(Container::Matroska);
    }
    if body.get(4..8).is_some_and(|kind| kind == b"ftyp") {
        return Some(Container::Mp4);
    }
    let adts = |at: usize| adts_frame(body.get(at..)?);
    if let Some(length) = adts(0) {
        if adts(length).is_some() || body.len() <= length + 6 {
            return Some(Container::Adts);
        }
    }
    None
}

/// Length of the ID3v2 tags at the start, as far as they are there.
fn skip_id3(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(header) = bytes[at..].get(..10).filter(|h| h.starts_with(b"ID3")) {
        if header[6..10].iter().any(|byte| byte & 0x80 != 0) {
            break;
        }
        let size = header[6..10]
            .iter()
            .fold(0, |size, &byte| size << 7 | usize::from(byte));
        let footer = if header[5] & 0x10 != 0 { 10 } else { 0 };
        at = (at + 10 + size + footer).min(bytes.len());
    }
    at
}

/// Bytes of the ADTS frame whose header starts `bytes`.
pub fn adts_frame(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..6)?;
    // Sync word, layer 0, a sample rate that exists.
    let valid = header[0] == 0xff && header[1] & 0xf6 == 0xf0 && (header[2] >> 2) & 15 < 13;
    let length = usize::from(header[3] & 3) << 11
        | usize::from(header[4]) << 3
        | usize::from(header[5] >> 5);
    (valid && length > 7).then_some(length)
}

/// Bytes of the MPEG audio frame (layer 2 or 3) whose header starts `bytes`.
pub fn mpeg_frame(bytes: &[u8]) -> Option<usize> {
    const LAYER3_V1: [usize; 14] = [
        32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
    ];
    const LAYER2_V1: [usize; 14] = [
        32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384,
    ];
    const V2: [usize; 14] = [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
    let header = bytes.get(..4)?;
    if header[0] != 0xff || header[1] & 0xe0 != 0xe0 {
        return None;
    }
    let (version, layer) = (header[1] >> 3 & 3, header[1] >> 1 & 3);
    let rate = match (header[2] >> 2 & 3, version) {
        (_, 1) | (3, _) => return None,
        (index, version) => {
            let rate = [44_100, 48_000, 32_000][usize::from(index)];
            match version {
                3 => rate,
                2 => rate / 2,
                _ => rate / 4,
            }
        }
    };
    let index = usize::from(header[2] >> 4).checked_sub(1)?;
    let (table, slots) = match (layer, version) {
        (1, 3) => (LAYER3_V1, 144),
        (1, _) => (V2, 72),
        (2, 3) => (LAYER2_V1, 144),
        (2, _) => (V2, 144),
        _ => return None,
    };
    let padding = usize::from(header[2] >> 1 & 1);
    Some(slots * table.get(index)? * 1000 / rate + padding)
}

/// Where a stream of MPEG frames starts: a header within the first 64 KiB that is followed by another one (or by the
/// end of the file).
fn mpeg_stream(body: &[u8]) -> Option<usize> {
    (0..body.len().min(64 << 10)).find(|&at| {
        let Some(length) = mpeg_frame(&body[at..]) else {
            return false;
        };
        match body.get(at + length..) {
            Some(next) if next.len() >= 4 => mpeg_frame(next).is_some(),
            // Too little to be sure of a frame in the middle of other data.
            _ => at == 0,
        }
    })
}

fn not_built_in(body: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, magic: &[u8]| {
        body.get(offset..)
            .is_some_and(|rest| rest.starts_with(magic))
    };
    Some(match () {
        () if at(0, b"FORM") && (at(8, b"AIFF") || at(8, b"AIFC")) => "AIFF audio",
        () if at(0, b"caff") => "Core Audio (CAF)",
        () if at(0, b"#!AMR") => "AMR audio",
        () if at(0, b".snd") => "Sun AU audio",
        () if at(0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11") => "Windows Media (ASF, WMA)",
        () if at(0, b"wvpk") => "WavPack audio",
        () if at(0, b"MAC ") => "Monkey's Audio",
        () if at(0, b"MThd") => "a MIDI file",
        () if at(0, b"RIFF") && at(8, b"AVI ") => "AVI video",
        () if at(0, b"FLV\x01") => "Flash video",
        () if at(0, b"\x00\x00\x01\xba") => "MPEG program stream video",
        () if at(0, b"riff\x2e\x91\xcf\x11") => "Wave64 audio",
        () if at(0, b"\x0b\x77") => "AC-3 audio",
        () => return None,
    })
}

/// What bytes that are no audio look like.
fn describe(body: &[u8]) -> String {
    let magics: [(&[u8], &str); 9] = [
        (b"\x89PNG", "is a PNG picture"),
        (b"\xff\xd8\xff", "is a JPEG picture"),
        (b"GIF8", "is a GIF picture"),
        (b"%PDF", "is a PDF document"),
        (b"PK\x03\x04", "is a ZIP archive"),
        (b"\x1f\x8b", "is compressed with gzip"),
        (b"\x28\xb5\x2f\xfd", "is compressed with zstd"),
        (b"RIFF", "is a RIFF file without WAVE audio"),
        (b"\x7fELF", "is a program"),
    ];
    if let Some((_, what)) = magics.iter().find(|(magic, _)| body.starts_with(magic)) {
        return (*what).to_owned();
    }
    let head = &body[..body.len().min(256)];
    if head.iter().all(|&byte| byte == 0) {
        return "starts with zeros only".into();
    }
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.valid_up_to() > 200 => {
            std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => "",
    };
    let printable = |c: char| !c.is_control() || c.is_whitespace();
    if !text.is_empty() && text.chars().all(printable) {
        let start: String = text.trim_start().chars().take(24).collect();
        return match start.chars().next() {
            Some('<') => format!("is markup, starting with {start:?}"),
            Some('{' | '[') => format!("is JSON text, starting with {start:?}"),
            _ => format!("is text, starting with {start:?}"),
        };
    }
    let magic: Vec<String> = body[..body.len().min(8)]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("starts with the bytes {}", magic.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_containers_by_their_first_bytes() {
        for (bytes, container) in [
            (&b"RIFF\0\0\0\0WAVEfmt "[..], Container::Wav),
            (b"RF64\xff\xff\xff\xffWAVEds64", Container::Wav),
            (b"fLaC\0", Container::Flac),
            (b"OggS\0\x02", Container::Ogg),
            (b"\x1a\x45\xdf\xa3\x9f", Container::Matroska),
            (b"\0\0\0\x20ftypM4A ", Container::Mp4),
        ] {
            assert_eq!(sniff(bytes), Ok((container, 0)));
        }
    }

    #[test]
    fn finds_mp3_behind_tags_and_junk() {
        // MPEG-1 layer 3, 128 kbit/s, 44.1 kHz: 417 bytes a frame.
        let mut frame = vec![0; 417];
        frame[..4].copy_from_slice(b"\xff\xfb\x90\x00");
        let mut file = b"ID3\x04\0\0\0\0\x01\x00".to_vec();
        file.resize(10 + 128, 7);
        file.extend([0; 33]);
        file.extend(frame.repeat(2));
        assert_eq!(sniff(&file), Ok((Container::Mpeg, 10 + 128 + 33)));
    }

    #[test]
    fn says_what_was_found_instead_of_audio() {
        let found = |bytes: &[u8]| sniff(bytes).unwrap_err().to_string();
        assert_eq!(sniff(b""), Err(AudioError::Empty));
        assert!(found(b"<!DOCTYPE html><p>").contains("is markup, starting with \"<!DOCTYPE html>"));
        assert!(found(br#"{"error": 1}"#).contains("is JSON text"));
        assert!(found(b"\x89PNG\r\n").contains("is a PNG picture"));
        assert!(found(b"hello").contains("is text, starting with \"hello\""));
        assert!(found(&[0; 100]).contains("starts with zeros only"));
        assert!(found(b"\x01\xfe\x80\x99").contains("starts with the bytes 01 fe 80 99"));
        assert!(found(b"#!AMR\n").starts_with("AMR audio is not built in; convert"));
        assert!(found(b"hello").contains("upload one of WAV"));
        let tag_only = b"ID3\x04\0\0\0\0\x01\x00";
        assert_eq!(
            sniff(tag_only),
            Err(AudioError::CutHeader { container: "MP3" })
        );
    }
}
