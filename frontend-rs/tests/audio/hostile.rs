//! Cut, flipped and random bytes: an error or audio, never a panic that gets out, never more than the limits allow.

use denizen_frontend::audio::{decode, Limits};
use proptest::prelude::*;

use crate::support::asset;

const FILES: [&str; 17] = [
    "piped.wav",
    "adpcm.wav",
    "piped-44k-stereo.flac",
    "flac.ogg",
    "cbr.mp3",
    "no-info.mp3",
    "layer2.mp3",
    "vorbis.ogg",
    "silk.opus",
    "surround.opus",
    "recorder.webm",
    "vorbis.webm",
    "video.mkv",
    "aac.m4a",
    "fragmented.mp4",
    "alac.m4a",
    "stream.aac",
];

fn limits() -> Limits {
    Limits {
        max_seconds: 10.0,
        ..Limits::default()
    }
}

/// Decodes, and holds the result to what is promised of any result.
fn survive(bytes: &[u8]) {
    match decode(bytes, &limits()) {
        Ok(audio) => {
            assert!(!audio.pcm.is_empty() && audio.pcm.len() <= 161_000);
            assert!(audio.pcm.iter().all(|s| (-1.0..=1.0).contains(s)));
            assert!((audio.duration_s * 16_000.0 - audio.pcm.len() as f64).abs() <= 2.0);
        }
        Err(error) => assert!(error.to_string().len() < 600, "{error}"),
    }
}

#[test]
fn files_cut_anywhere_are_survived() {
    for file in FILES {
        let bytes = asset(file);
        for part in 0..50 {
            survive(&bytes[..bytes.len() * part / 50]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits_are_survived(
        file in 0..FILES.len(),
        // Headers break in more ways than samples.
        flips in prop::collection::vec((prop_oneof![Just(400), Just(usize::MAX)], any::<usize>(), 0..8u8), 1..20),
    ) {
        let mut bytes = asset(FILES[file]);
        for (reach, at, bit) in flips {
            let at = at % bytes.len().min(reach);
            bytes[at] ^= 1 << bit;
        }
        survive(&bytes);
    }

    #[test]
    fn random_bytes_behind_a_magic_are_survived(
        magic in prop::sample::select(vec![
            &b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0"[..], b"fLaC\0\0\0\x22", b"OggS\0\x02", b"\x1a\x45\xdf\xa3",
            b"\0\0\0\x10ftypM4A \0\0\0\0", b"\xff\xfb\x90\0", b"\xff\xf1\x60\x40", b"ID3\x04\0\0\0\0\0\x7f", b"",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        survive(&[magic, &rest].concat());
    }

    #[test]
    fn pieces_in_the_wrong_order_are_survived(
        file in 0..FILES.len(), cut in 0.0..1.0f64, again in 0.0..1.0f64,
    ) {
        let bytes = asset(FILES[file]);
        let at = |share: f64| (share * bytes.len() as f64) as usize;
        survive(&[&bytes[..at(cut)], &bytes[at(again)..]].concat());
    }
}
