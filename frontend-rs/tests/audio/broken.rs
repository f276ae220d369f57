//! Files that are cut off, damaged, empty, or not audio: one sentence that says what is wrong.

use denizen_frontend::audio::{decode, AudioError, Decoder, Limits};

use crate::support::{asset, compare, decoded, refused, speech};

#[test]
fn files_that_are_no_audio_say_what_they_are() {
    assert_eq!(refused(b""), AudioError::Empty);
    let text = refused(b"he was not an ill disposed young man");
    assert_eq!(
        text.to_string(),
        "the file is not audio that this server knows: it is text, starting with \"he was not an ill dispos\"; \
         upload one of WAV (PCM, float, A-law, \u{b5}-law), FLAC, MP3, OGG (Vorbis, Opus, FLAC), WebM or Matroska \
         (Opus, Vorbis, AAC, MP3, FLAC), M4A or MP4 (AAC-LC, ALAC, Opus, FLAC, MP3) and AAC (ADTS)"
    );
}

#[test]
fn codecs_that_are_not_built_in_are_named() {
    for (file, said) in [
        (
            "adpcm.wav",
            "the WAV file holds IMA ADPCM audio, which is not built in; convert",
        ),
        (
            "ac3.mp4",
            "the MP4 file holds AC-3 audio, which is not built in; convert",
        ),
        (
            "speex.ogg",
            "the OGG file holds Speex audio, which is not built in; convert",
        ),
        (
            "silent-film.mp4",
            "the MP4 file has no audio track; upload one that has",
        ),
    ] {
        let error = refused(&asset(file)).to_string();
        assert!(error.starts_with(said), "{file}: {error}");
    }
}

#[test]
fn files_that_promise_more_than_they_hold_are_refused() {
    for file in [
        "speech.wav",
        "speech.flac",
        "cbr.mp3",
        "faststart.m4a",
        "opus.webm",
    ] {
        let bytes = asset(file);
        let error = refused(&bytes[..bytes.len() / 2]);
        let AudioError::Truncated {
            promised_s,
            found_s,
            ..
        } = error
        else {
            panic!("{file}: {error}");
        };
        assert!((1.9..2.1).contains(&promised_s), "{file}: {promised_s}");
        assert!((0.5..1.5).contains(&found_s), "{file}: {found_s}");
    }
    // The index of this one comes last.
    let bytes = asset("aac.m4a");
    let error = refused(&bytes[..bytes.len() / 2]);
    assert_eq!(error, AudioError::CutHeader { container: "MP4" });
}

#[test]
fn a_missing_moment_at_the_end_is_tolerated() {
    let bytes = asset("speech.wav");
    // 0.1 s of 2 s.
    let audio = decoded(&bytes[..bytes.len() - 3200]).unwrap();
    assert_eq!(audio.duration_s, 1.9);
    assert!(decoded(&bytes[..bytes.len() - 8000]).is_err());
}

#[test]
fn recordings_that_promise_nothing_are_taken_as_far_as_they_go() {
    for file in [
        "recorder.webm",
        "no-info.mp3",
        "stream.aac",
        "fragmented.mp4",
    ] {
        let bytes = asset(file);
        let audio =
            decoded(&bytes[..bytes.len() * 3 / 4]).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(
            (0.7..1.9).contains(&audio.duration_s),
            "{file}: {}",
            audio.duration_s
        );
        let length = audio.pcm.len().min(16_000);
        let likeness = compare(&audio.pcm, &speech()[..length / 2], 1800);
        assert!(likeness.correlation > 0.9, "{file}: {likeness:?}");
    }
}

#[test]
fn what_follows_the_end_is_no_harm() {
    // An ID3v1 tag, and bytes that mean nothing in any container.
    let (tag, junk) = ([&b"TAG"[..], &[0x17; 125]].concat(), vec![0xa5; 3000]);
    for (file, tail) in [
        ("speech.wav", &junk),
        ("speech.flac", &tag),
        ("cbr.mp3", &tag),
        ("cbr.mp3", &junk),
        ("vorbis.ogg", &junk),
        ("silk.opus", &junk),
        ("aac.m4a", &junk),
        ("opus.webm", &junk),
    ] {
        let audio = decoded(&[&asset(file)[..], tail].concat());
        let audio = audio.unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(
            (audio.duration_s - 2.0).abs() < 0.001,
            "{file}: {} s",
            audio.duration_s
        );
    }
}

#[test]
fn a_small_damage_is_silence_and_a_large_one_an_error() {
    // FLAC frames of 4096 samples, each with a checksum.
    let bytes = asset("speech.flac");
    let middle = bytes.len() / 2;
    let mut large = bytes.clone();
    for byte in &mut large[middle..middle + 12_000] {
        *byte ^= 0x55;
    }
    let error = refused(&large);
    let AudioError::Corrupt { at_s, lost_s, .. } = error else {
        panic!("{error}");
    };
    assert!((0.5..1.5).contains(&at_s) && lost_s > 0.25, "{error}");

    // Pages of OGG have checksums; here is one of 0.12 s, and one of 30 s.
    let damaged = |pages: u32, packets: usize| {
        let mut file = silence_in_opus(pages, packets);
        let at = file.len() / 2;
        file[at] ^= 0xff;
        file
    };
    let pcm = decoded(&damaged(500, 1)).unwrap().pcm;
    assert_eq!(pcm.len(), 60 * 16_000);
    let error = refused(&damaged(10, 250));
    assert!(
        matches!(
            error,
            AudioError::Corrupt {
                at_s: 100.0..200.0,
                ..
            }
        ),
        "{error}"
    );
    // A whole page of Vorbis fails its checksum.
    let bytes = asset("vorbis.ogg");
    let mut page = bytes.clone();
    page[bytes.len() * 3 / 4] ^= 0xff;
    let error = refused(&page);
    assert!(
        matches!(
            error,
            AudioError::Truncated { .. } | AudioError::Corrupt { .. }
        ),
        "{error}"
    );

    // One packet of Opus in WebM, which has no checksums: the codec makes something of it, and the length stays.
    let mut packet = asset("recorder.webm");
    let length = decoded(&packet).unwrap().duration_s;
    let at = packet.len() / 2;
    packet[at..at + 8].fill(0x5a);
    assert_eq!(decoded(&packet).unwrap().duration_s, length);
}

#[test]
fn limits_hold() {
    let bytes = asset("speech.wav");
    let limits = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        limits
    };
    let error = decode(&bytes, &limits(|l| l.max_bytes = 1000)).unwrap_err();
    assert_eq!(
        error,
        AudioError::TooLarge {
            bytes: 64_044,
            limit: 1000
        }
    );
    let short = limits(|l| l.max_seconds = 0.9);
    for file in [
        "speech.wav",
        "no-info.mp3",
        "recorder.webm",
        "vorbis.ogg",
        "speech.flac",
        "aac.m4a",
    ] {
        let error = decode(&asset(file), &short).unwrap_err();
        assert_eq!(error, AudioError::TooLong { limit_s: 0.9 }, "{file}");
    }
    let stereo = limits(|l| l.max_channels = 1);
    for file in [
        "celt-stereo.opus",
        "vbr-44k-stereo.mp3",
        "stereo-44k.m4a",
        "vorbis-44k-stereo.ogg",
    ] {
        let error = decode(&asset(file), &stereo).unwrap_err();
        assert!(
            matches!(
                error,
                AudioError::Channels {
                    channels: 2,
                    limit: 1,
                    ..
                }
            ),
            "{file}: {error}"
        );
    }
    assert!(decode(&bytes, &limits(|l| l.max_seconds = 2.0)).is_ok());
}

#[test]
fn a_file_that_unfolds_is_stopped_on_the_way() {
    // Silence in Opus: 1200 packets of 3 bytes a page, each 120 ms, hours in a few hundred kilobytes. The container
    // promises nothing, so only counting can stop it.
    let bytes = silence_in_opus(360, 250);
    assert!(bytes.len() < 500_000, "{}", bytes.len());
    let limits = Limits {
        max_seconds: 60.0,
        ..Limits::default()
    };
    let mut decoder = Decoder::open(&bytes, &limits).unwrap();
    let mut steps = 0;
    let error = loop {
        match decoder.step() {
            Ok(true) => steps += 1,
            Ok(false) => panic!("three hours are under a minute"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, AudioError::TooLong { limit_s: 60.0 });
    assert!(
        steps <= 60.0 as usize * 1000 / 120 + 1,
        "{steps} packets for 60 s"
    );
}

/// OGG/Opus: so many pages of so many packets of 120 ms, without an end mark.
fn silence_in_opus(pages: u32, packets: usize) -> Vec<u8> {
    let mut file = Vec::new();
    let mut page = |flags: u8, granule: u64, sequence: u32, packets: &[&[u8]]| {
        let mut page = b"OggS\0".to_vec();
        page.push(flags);
        page.extend(granule.to_le_bytes());
        page.extend(7u32.to_le_bytes());
        page.extend(sequence.to_le_bytes());
        page.extend([0; 4]);
        page.push(packets.len() as u8);
        page.extend(packets.iter().map(|packet| packet.len() as u8));
        page.extend(packets.concat());
        let sum = crc(&page).to_le_bytes();
        page[22..26].copy_from_slice(&sum);
        file.extend(page);
    };
    page(2, 0, 0, &[b"OpusHead\x01\x01\0\0\x80\xbb\0\0\0\0\0"]);
    page(0, 0, 1, &[b"OpusTags\0\0\0\0\0\0\0\0"]);
    // Six frames of 20 ms, wideband SILK, each empty: code 3, constant size.
    let packet: &[u8] = &[0b0100_1011, 6];
    for number in 0..pages {
        let granule = u64::from(number + 1) * packets as u64 * 5760;
        page(0, granule, number + 2, &vec![packet; packets]);
    }
    file
}

/// The checksum of OGG pages.
fn crc(page: &[u8]) -> u32 {
    page.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
            crc << 1 ^ if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 }
        })
    })
}
