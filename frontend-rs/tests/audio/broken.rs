//! Files that are damaged, empty, or not audio: one sentence that says what is wrong.

use denizen_frontend::audio::{decode, AudioError, Decoder, Limits};

use crate::support::{asset, decoded, refused, silence_in_opus};

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
