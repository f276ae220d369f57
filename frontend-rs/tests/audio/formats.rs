//! Every format, encoded by the encoders that users have.

use crate::support::{asset, compare, decoded, speech};

struct Case {
    file: &'static str,
    /// Container, codec, rate, channels, as logs show them.
    source: (&'static str, &'static str, u32, usize),
    seconds: f64,
    correlation: f64,
}

const fn case(
    file: &'static str,
    source: (&'static str, &'static str, u32, usize),
    seconds: f64,
    correlation: f64,
) -> Case {
    Case {
        file,
        source,
        seconds,
        correlation,
    }
}

/// Files whose container says where the audio starts and ends: nothing may be early, late, missing or added.
const EXACT: [Case; 22] = [
    case("speech.wav", ("WAV", "s16", 16_000, 1), 2.0, 1.0),
    case("piped.wav", ("WAV", "s16", 16_000, 1), 0.5, 1.0),
    case("alaw-8k.wav", ("WAV", "A-law", 8000, 1), 1.0, 0.96),
    case("mulaw-8k.wav", ("WAV", "\u{b5}-law", 8000, 1), 1.0, 0.98),
    case("speech.flac", ("FLAC", "FLAC", 16_000, 1), 2.0, 1.0),
    case(
        "piped-44k-stereo.flac",
        ("FLAC", "FLAC", 44_100, 2),
        0.3,
        0.999,
    ),
    case("flac.ogg", ("OGG", "FLAC", 16_000, 1), 0.5, 1.0),
    case("cbr.mp3", ("MP3", "MP3", 16_000, 1), 2.0, 0.98),
    case("vbr-44k-stereo.mp3", ("MP3", "MP3", 44_100, 2), 2.0, 0.98),
    case("vorbis.ogg", ("OGG", "Vorbis", 16_000, 1), 2.0, 0.97),
    case(
        "vorbis-44k-stereo.ogg",
        ("OGG", "Vorbis", 44_100, 2),
        1.0,
        0.98,
    ),
    case("silk.opus", ("OGG", "Opus", 48_000, 1), 2.0, 0.88),
    case("hybrid-60ms.opus", ("OGG", "Opus", 48_000, 1), 2.0, 0.9),
    case("celt-stereo.opus", ("OGG", "Opus", 48_000, 2), 1.0, 0.97),
    case("surround.opus", ("OGG", "Opus", 48_000, 6), 1.0, 0.9),
    case("opus.webm", ("WebM", "Opus", 48_000, 1), 2.0, 0.9),
    case("aac.m4a", ("MP4", "AAC", 16_000, 1), 2.0, 0.98),
    case("faststart.m4a", ("MP4", "AAC", 16_000, 1), 2.0, 0.98),
    case("stereo-44k.m4a", ("MP4", "AAC", 44_100, 2), 2.0, 0.97),
    case("alac.m4a", ("MP4", "ALAC", 16_000, 1), 0.5, 1.0),
    case("opus.mp4", ("MP4", "Opus", 48_000, 1), 2.0, 0.9),
    case("video.mp4", ("MP4", "AAC", 16_000, 1), 2.0, 0.98),
];

/// Files whose container does not say it: a packet's worth may be added at the ends.
const LOOSE: [Case; 7] = [
    case("recorder.webm", ("WebM", "Opus", 48_000, 1), 2.0, 0.9),
    case("vorbis.webm", ("WebM", "Vorbis", 16_000, 1), 2.0, 0.96),
    case("video.mkv", ("WebM", "AAC", 16_000, 1), 2.0, 0.98),
    case("fragmented.mp4", ("MP4", "AAC", 16_000, 1), 2.0, 0.98),
    case("no-info.mp3", ("MP3", "MP3", 16_000, 1), 2.0, 0.95),
    case("layer2.mp3", ("MP3", "MPEG layer 2", 16_000, 1), 2.0, 0.98),
    case("stream.aac", ("AAC", "AAC", 16_000, 1), 2.0, 0.98),
];

fn check(case: &Case, late: i64, longer: f64) {
    let audio = decoded(&asset(case.file)).unwrap_or_else(|e| panic!("{}: {e}", case.file));
    let source = &audio.source;
    assert_eq!(
        (
            source.container,
            source.codec.as_str(),
            source.rate,
            source.channels
        ),
        case.source,
        "{}",
        case.file
    );
    let beyond = audio.duration_s - case.seconds;
    assert!(
        (-0.000_1..=longer + 0.000_1).contains(&beyond),
        "{}: {} s, not {}",
        case.file,
        audio.duration_s,
        case.seconds
    );
    let frames = (audio.duration_s * 16_000.0).round() as usize;
    assert_eq!(audio.pcm.len(), frames, "{}", case.file);
    let original = &speech()[..(case.seconds * 16_000.0) as usize];
    let likeness = compare(&audio.pcm, original, late.max(40));
    // A resampler's or codec's phase may move the best fit by a sample.
    assert!(
        (-1..=late + 1).contains(&likeness.lag),
        "{}: {likeness:?}",
        case.file
    );
    assert!(
        likeness.correlation >= case.correlation - 1e-6,
        "{}: {likeness:?}",
        case.file
    );
    assert!(
        (0.8..1.1).contains(&likeness.gain),
        "{}: {likeness:?}",
        case.file
    );
    if case.correlation == 1.0 {
        assert!(likeness.snr > 90.0, "{}: {likeness:?}", case.file);
    }
}

#[test]
fn formats_that_tell_their_length_come_out_exactly() {
    for case in &EXACT {
        check(case, 0, 0.0);
    }
}

#[test]
fn formats_that_do_not_tell_it_come_out_whole() {
    for case in &LOOSE {
        check(case, 1800, 0.15);
    }
}

/// Its core at half the rate, in full length and at the right speed, whether the file names the extension or not. The
/// encoder's priming stays, and most of the words' sound is in the core.
#[test]
fn he_aac_is_decoded_without_its_high_band() {
    for (file, container) in [("he.aac", "AAC"), ("he.m4a", "MP4"), ("he-v2.m4a", "MP4")] {
        let audio = decoded(&asset(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let source = &audio.source;
        assert_eq!(
            (
                source.container,
                source.codec.as_str(),
                source.rate,
                source.channels
            ),
            (container, "AAC", 22_050, 1),
            "{file}"
        );
        assert!(
            (2.0..2.3).contains(&audio.duration_s),
            "{file}: {} s",
            audio.duration_s
        );
        let likeness = compare(&audio.pcm, &speech(), 3200);
        assert!(
            likeness.correlation > 0.9 && (0.8..1.1).contains(&likeness.gain),
            "{file}: {likeness:?}"
        );
        assert!((0..3200).contains(&likeness.lag), "{file}: {likeness:?}");
    }
}

#[test]
fn ogg_streams_that_follow_each_other_are_joined() {
    let file = [
        asset("vorbis-44k-stereo.ogg"),
        asset("silk.opus"),
        asset("flac.ogg"),
    ]
    .concat();
    let audio = decoded(&file).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((audio.duration_s, audio.pcm.len()), (3.5, 56_000));
    assert_eq!(audio.source.codec, "Vorbis");
    let speech = speech();
    for (at, length) in [(0, 16_000), (16_000, 32_000), (48_000, 8000)] {
        let likeness = compare(&audio.pcm[at..at + length], &speech[..length], 4);
        assert!(
            likeness.correlation > 0.88 && likeness.lag.abs() <= 1,
            "at {at}: {likeness:?}"
        );
    }
}
