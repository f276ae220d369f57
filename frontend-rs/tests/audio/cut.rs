//! Files that are cut off: an error that says so wherever that can be told, else what is there.

use denizen_frontend::audio::AudioError;

use crate::support::{asset, compare, crc, decoded, refused, silence_in_opus, speech};

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
    // Half a frame, before the tag; half a page, which says when the stream ends.
    for (file, missing) in [("cbr.mp3", 148), ("silk.opus", 20)] {
        let bytes = asset(file);
        let audio = decoded(&bytes[..bytes.len() - missing]);
        let audio = audio.unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!((1.9..2.0).contains(&audio.duration_s), "{file}");
    }
}

/// Whether a page or frame starts here.
type IsStart = fn(&[u8]) -> bool;

/// Files that promise no length once their end is gone, and what they then end inside.
const UNITS: [(&str, &str, IsStart); 11] = [
    ("vorbis.ogg", "a page", page),
    ("vorbis-44k-stereo.ogg", "a page", page),
    ("silk.opus", "a page", page),
    ("hybrid-60ms.opus", "a page", page),
    ("celt-stereo.opus", "a page", page),
    ("surround.opus", "a page", page),
    ("flac.ogg", "a page", page),
    ("stream.aac", "a frame", |rest| {
        rest.starts_with(b"\xff\xf1\x60\x40")
    }),
    ("he.aac", "a frame", |rest| {
        rest.starts_with(b"\xff\xf1\x5c\x40")
    }),
    ("no-info.mp3", "a frame", |rest| {
        rest.starts_with(b"\xff\xf3")
    }),
    ("layer2.mp3", "a frame", |rest| {
        rest.starts_with(b"\xff\xf5")
    }),
];

fn page(rest: &[u8]) -> bool {
    rest.starts_with(b"OggS")
}

fn starts(bytes: &[u8], is_start: IsStart) -> Vec<usize> {
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|&at| is_start(&bytes[at..]))
        .collect();
    assert!(starts.len() > 2 && starts[0] == 0, "{starts:?}");
    starts
}

#[test]
fn files_that_end_inside_a_page_or_frame_are_refused() {
    for (file, unit, is_start) in UNITS {
        let bytes = asset(file);
        let starts = starts(&bytes, is_start);
        // All over the file; in a header; a byte behind the start of a unit; a few bytes before one.
        let middle = starts[starts.len() / 2];
        let eighths = (1..8).map(|n| bytes.len() * n / 8);
        let places = eighths.chain([middle + 1, middle + 3, middle + 5, middle - 4]);
        for cut in places.filter(|cut| !starts.contains(cut)) {
            let error = refused(&bytes[..cut]);
            let said = error.to_string();
            assert!(said.contains("cut off"), "{file} at {cut}: {said}");
            if let AudioError::CutInside { inside, .. } = error {
                assert_eq!(inside, unit, "{file} at {cut}");
            }
        }
    }
    let bytes = asset("stream.aac");
    assert_eq!(
        refused(&bytes[..bytes.len() / 2]).to_string(),
        "the AAC file is cut off: it ends inside a frame, after 1.02 s of audio; upload the complete file, or encode \
         again what is there of it"
    );
}

/// Recorders write until they are stopped, and some never mark the end.
#[test]
fn recordings_that_promise_nothing_are_taken_as_far_as_they_go() {
    let cut_between = |file: &'static str| {
        let (_, _, is_start) = UNITS.into_iter().find(|unit| unit.0 == file).unwrap();
        let starts = starts(&asset(file), is_start);
        (file, starts[starts.len() * 3 / 4])
    };
    for (file, cut) in [
        ("recorder.webm", asset("recorder.webm").len() * 3 / 4),
        ("fragmented.mp4", asset("fragmented.mp4").len() * 3 / 4),
        cut_between("no-info.mp3"),
        cut_between("layer2.mp3"),
        cut_between("stream.aac"),
        cut_between("vorbis.ogg"),
        cut_between("silk.opus"),
    ] {
        let audio = decoded(&asset(file)[..cut]).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(
            (0.7..2.0).contains(&audio.duration_s),
            "{file}: {}",
            audio.duration_s
        );
        let length = audio.pcm.len().min(16_000);
        let likeness = compare(&audio.pcm, &speech()[..length / 2], 1800);
        assert!(likeness.correlation > 0.85, "{file}: {likeness:?}");
    }
}

#[test]
fn the_last_of_several_ogg_streams_may_not_be_cut_off() {
    let (first, last) = (asset("vorbis-44k-stereo.ogg"), asset("silk.opus"));
    for kept in [3, 20, 60, 900, 2000, 3000] {
        let file = [&first[..], &last[..kept]].concat();
        let said = refused(&file).to_string();
        assert!(said.contains("cut off"), "{kept}: {said}");
    }
}

#[test]
fn a_packet_that_goes_on_in_a_page_that_is_not_there_was_cut_off() {
    let mut file = silence_in_opus(10, 3);
    let whole = decoded(&file).unwrap().duration_s;
    // Makes the last packet one of 255 bytes and more.
    let at = file.len() - 36;
    file[at + 29] = 255;
    file.extend([0; 253]);
    file[at + 22..at + 26].fill(0);
    let sum = crc(&file[at..]).to_le_bytes();
    file[at + 22..at + 26].copy_from_slice(&sum);
    let AudioError::CutInside { found_s, .. } = refused(&file) else {
        panic!("{}", refused(&file));
    };
    assert!(
        (found_s - (whole - 0.12)).abs() < 0.01,
        "{found_s} of {whole}"
    );
}

#[test]
fn what_encoders_and_taggers_leave_behind_a_frame_is_no_cut() {
    let tag = [&b"TAG"[..], &[0x17; 125]].concat();
    let ape = [&b"APETAGEX\xd0\x07\0\0\x20\0\0\0"[..], &[0; 16]].concat();
    for file in ["no-info.mp3", "layer2.mp3", "stream.aac"] {
        let bytes = asset(file);
        let whole = decoded(&bytes).unwrap().duration_s;
        for (kept, tail) in [
            (bytes.len(), &tag),
            (bytes.len(), &ape),
            (bytes.len(), &vec![0; 500]),
            (bytes.len(), &vec![0xa5; 500]),
            // Headers of frames of other streams.
            (bytes.len(), &b"\xff\xfb\x90\0 MP3".to_vec()),
            (bytes.len(), &b"\xff\xf1\x50\x80\x10\x1f\xfc AAC".to_vec()),
            // Who wrote the tag took a part of a frame for the last.
            (bytes.len() - 40, &tag),
            (bytes.len() - 40, &ape),
        ] {
            let audio = decoded(&[&bytes[..kept], tail].concat());
            let audio = audio.unwrap_or_else(|e| panic!("{file}, {kept}: {e}"));
            assert!(
                (whole - audio.duration_s).abs() < 0.11,
                "{file}, {kept}: {} s",
                audio.duration_s
            );
        }
    }
    // One MP3 encoder loses up to three bytes of the last frame.
    let mp3 = asset("no-info.mp3");
    assert!(decoded(&mp3[..mp3.len() - 3]).is_ok());
    assert!(decoded(&mp3[..mp3.len() - 4]).is_err());
}

#[test]
fn damage_hides_no_cut_and_is_none() {
    for (file, _, is_start) in UNITS.into_iter().filter(|unit| unit.1 == "a frame") {
        let mut bytes = asset(file);
        let at = starts(&bytes, is_start)[5];
        bytes[at..at + 3].fill(0);
        if let Err(error) = decoded(&bytes) {
            assert!(
                matches!(error, AudioError::Corrupt { .. }),
                "{file}: {error}"
            );
        }
        let said = refused(&bytes[..bytes.len() - 20]).to_string();
        assert!(said.contains("ends inside a frame"), "{file}: {said}");
    }
}

/// What follows is lost, for no reader gets there.
#[test]
fn a_page_or_frame_that_says_it_is_longer_than_the_file_is_an_error() {
    let mut file = silence_in_opus(500, 1);
    let at = file.len() - 5 * 30;
    assert!(page(&file[at..]));
    file[at + 26] = 255;
    let said = refused(&file).to_string();
    assert!(said.contains("ends inside a page, after 59.4"), "{said}");

    let mut file = asset("stream.aac");
    let (_, _, is_start) = UNITS
        .into_iter()
        .find(|unit| unit.0 == "stream.aac")
        .unwrap();
    let starts = starts(&file, is_start);
    file[starts[starts.len() - 5] + 3] |= 3;
    let said = refused(&file).to_string();
    assert!(said.contains("ends inside a frame, after 1.7"), "{said}");
}
