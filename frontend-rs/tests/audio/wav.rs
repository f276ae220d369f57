//! WAV in all its flavours, and sloppy ones.

use denizen_frontend::audio::AudioError;

use crate::support::{compare, decoded, refused, speech};

/// A WAV file of the given `fmt ` fields around `data`.
fn wav(tag: u16, channels: u16, rate: u32, bits: u16, data: &[u8]) -> Vec<u8> {
    with_format(&format(tag, channels, rate, bits), data)
}

fn format(tag: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
    let block = channels * bits / 8;
    let mut fields = Vec::new();
    fields.extend(tag.to_le_bytes());
    fields.extend(channels.to_le_bytes());
    fields.extend(rate.to_le_bytes());
    fields.extend((rate * u32::from(block)).to_le_bytes());
    fields.extend(block.to_le_bytes());
    fields.extend(bits.to_le_bytes());
    fields
}

fn with_format(format: &[u8], data: &[u8]) -> Vec<u8> {
    let chunk =
        |id: &[u8; 4], body: &[u8]| [&id[..], &(body.len() as u32).to_le_bytes(), body].concat();
    let body = [
        b"WAVE".to_vec(),
        chunk(b"fmt ", format),
        chunk(b"data", data),
    ]
    .concat();
    chunk(b"RIFF", &body)
}

fn shorts(samples: &[f32]) -> Vec<u8> {
    let short = |&s: &f32| ((s * 32768.0) as i16).to_le_bytes();
    samples.iter().flat_map(short).collect()
}

/// The samples of each channel, all the same.
fn spread(samples: &[f32], channels: usize) -> Vec<f32> {
    let same = |&s: &f32| std::iter::repeat_n(s, channels);
    samples.iter().flat_map(same).collect()
}

#[test]
fn sample_formats_give_the_same_audio() {
    let speech = speech();
    let scaled = |scale: f64| move |s: &f32| (f64::from(*s) * scale).round();
    let u8s: Vec<u8> = speech
        .iter()
        .map(scaled(127.0))
        .map(|s| (s + 128.0) as u8)
        .collect();
    let s24: Vec<u8> = speech
        .iter()
        .map(scaled(8_388_607.0))
        .flat_map(|s| (s as i32).to_le_bytes()[..3].to_vec())
        .collect();
    let s32: Vec<u8> = speech
        .iter()
        .map(scaled(2_147_483_647.0))
        .flat_map(|s| (s as i32).to_le_bytes())
        .collect();
    let f32s: Vec<u8> = speech.iter().flat_map(|s| s.to_le_bytes()).collect();
    let f64s: Vec<u8> = speech
        .iter()
        .flat_map(|s| f64::from(*s).to_le_bytes())
        .collect();
    let cases = [
        (1, 8, u8s, "u8", 25.0),
        (1, 16, shorts(&speech), "s16", 90.0),
        (1, 24, s24, "s24", 90.0),
        (1, 32, s32, "s32", 90.0),
        (3, 32, f32s, "f32", 90.0),
        (3, 64, f64s, "f64", 90.0),
    ];
    for (tag, bits, data, name, snr) in cases {
        let plain = wav(tag, 1, 16_000, bits, &data);
        // The same as WAVE_FORMAT_EXTENSIBLE.
        let mut extended = format(0xfffe, 1, 16_000, bits);
        extended.extend([22, 0]);
        extended.extend(bits.to_le_bytes());
        extended.extend([4, 0, 0, 0]);
        extended.extend(tag.to_le_bytes());
        extended.extend(b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71");
        for file in [plain, with_format(&extended, &data)] {
            let audio = decoded(&file).unwrap();
            assert_eq!(audio.source.codec, name);
            assert_eq!((audio.pcm.len(), audio.duration_s), (speech.len(), 2.0));
            let likeness = compare(&audio.pcm, &speech, 4);
            assert!(
                likeness.lag == 0 && likeness.snr > snr,
                "{name}: {likeness:?}"
            );
        }
    }
}

#[test]
fn g711_codes_have_their_standard_values() {
    // Tables of ITU-T G.711, scaled to 16 bits: smallest and largest of each sign.
    type Codes = [(u8, i16); 4];
    let cases: [(u16, &str, Codes); 2] = [
        (
            6,
            "A-law",
            [(0xd5, 8), (0x55, -8), (0xaa, 32_256), (0x2a, -32_256)],
        ),
        (
            7,
            "\u{b5}-law",
            [(0xff, 0), (0x7f, 0), (0x80, 32_124), (0x00, -32_124)],
        ),
    ];
    for (tag, name, codes) in cases {
        let data = codes.map(|(code, _)| code);
        let audio = decoded(&wav(tag, 1, 16_000, 8, &data)).unwrap();
        assert_eq!(audio.source.codec, name);
        assert_eq!(
            audio.pcm,
            codes.map(|(_, value)| f32::from(value) / 32_768.0)
        );
    }
}

#[test]
fn channels_are_averaged() {
    let speech = speech();
    for channels in 1..=6 {
        let file = wav(
            1,
            channels,
            16_000,
            16,
            &shorts(&spread(&speech, channels.into())),
        );
        let audio = decoded(&file).unwrap();
        assert_eq!(audio.source.channels, usize::from(channels));
        assert!(compare(&audio.pcm, &speech, 2).snr > 90.0);
    }
    let left: Vec<f32> = speech.iter().flat_map(|&s| [s, 0.0]).collect();
    let audio = decoded(&wav(1, 2, 16_000, 16, &shorts(&left))).unwrap();
    let likeness = compare(&audio.pcm, &speech, 2);
    assert!(
        likeness.correlation > 0.9999 && (likeness.gain - 0.5).abs() < 1e-3,
        "{likeness:?}"
    );
}

#[test]
fn rates_from_8_to_96_khz_give_the_same_audio() {
    // Below 3.5 kHz, so that every rate can hold it.
    let sound = |t: f64| {
        let tone = |hertz: f64| (std::f64::consts::TAU * hertz * t).sin();
        (0.2 * tone(210.0) + 0.2 * tone(1370.0) + 0.2 * tone(3300.0)) as f32
    };
    let at = |rate: u32| -> Vec<f32> {
        (0..rate / 2)
            .map(|n| sound(f64::from(n) / f64::from(rate)))
            .collect()
    };
    for rate in [
        8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000,
    ] {
        let audio = decoded(&wav(1, 1, rate, 16, &shorts(&at(rate)))).unwrap();
        let wanted = (f64::from(rate / 2) / f64::from(rate) * 16_000.0).round() as usize;
        assert_eq!(audio.pcm.len(), wanted, "{rate}");
        let (from, to) = (1000, 7000);
        let likeness = compare(&audio.pcm[from..to], &at(16_000)[from..to], 4);
        assert!(
            likeness.lag == 0 && likeness.snr > 70.0,
            "{rate}: {likeness:?}"
        );
    }
}

#[test]
fn sizes_that_streaming_encoders_write_are_no_harm() {
    let speech = speech();
    let whole = wav(1, 1, 16_000, 16, &shorts(&speech));
    for (riff, data) in [
        (0u32, 0u32),
        (u32::MAX, u32::MAX),
        (0x7fff_f024, 0x7fff_f000),
        (0x7fff_ffff, 0x7fff_ffff),
        (4, 64_000),
        (0, 64_000),
    ] {
        let mut file = whole.clone();
        file[4..8].copy_from_slice(&riff.to_le_bytes());
        file[40..44].copy_from_slice(&data.to_le_bytes());
        let audio = decoded(&file).unwrap_or_else(|e| panic!("{riff:#x} {data:#x}: {e}"));
        assert_eq!(audio.duration_s, 2.0);
    }
    // RF64: the size stands in a chunk of its own; here with half a chunk's worth of tags behind the samples.
    let ds64 = [
        b"ds64".as_slice(),
        &28u32.to_le_bytes(),
        &[0; 8],
        &64_000u64.to_le_bytes(),
        &[0; 12],
    ];
    let mut file = [
        b"RF64\xff\xff\xff\xffWAVE".as_slice(),
        &ds64.concat(),
        &whole[12..],
    ]
    .concat();
    let size_at = file.len() - 64_004;
    file[size_at..size_at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    file.extend(b"LIST\x04\0\0\0INFO");
    assert_eq!(decoded(&file).unwrap().duration_s, 2.0);
}

#[test]
fn other_chunks_and_odd_sizes_are_skipped() {
    let whole = wav(1, 1, 16_000, 16, &shorts(&speech()));
    let mut file = whole[..12].to_vec();
    file.extend(b"bext\x05\0\0\0hello\0");
    file.extend(&whole[12..]);
    file.extend(b"LIST\x04\0\0\0INFO");
    assert_eq!(decoded(&file).unwrap().duration_s, 2.0);
    // Half a sample at the end.
    let odd = wav(1, 1, 16_000, 16, &[0, 1, 0, 1, 7]);
    assert_eq!(decoded(&odd).unwrap().pcm.len(), 2);
}

#[test]
fn float_samples_beyond_full_scale_are_clipped_and_nan_is_silence() {
    let samples = [0.5, 7.0, -7.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let data: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    let audio = decoded(&wav(3, 1, 16_000, 32, &data)).unwrap();
    assert_eq!(audio.pcm, [0.5, 1.0, -1.0, 0.0, 1.0, -1.0]);
}

#[test]
fn thirty_seconds_are_thirty_seconds() {
    for (rate, frames, wanted) in [
        (16_000, 480_000, 480_000),
        (16_000, 480_160, 480_160),
        (44_100, 1_323_000, 480_000),
        (44_100, 1_323_441, 480_160),
        (48_000, 1_440_480, 480_160),
    ] {
        let audio = decoded(&wav(1, 1, rate, 16, &vec![0; frames * 2])).unwrap();
        assert_eq!(audio.pcm.len(), wanted);
        assert!(audio.pcm.iter().all(|&s| s == 0.0));
    }
}

#[test]
fn headers_that_make_no_sense_say_so() {
    let container = "WAV";
    let data = [0; 64];
    let error = |file: Vec<u8>| refused(&file);
    assert_eq!(
        error(wav(1, 0, 16_000, 16, &data)),
        AudioError::ZeroChannels { container }
    );
    assert_eq!(
        error(wav(1, 1, 0, 16, &data)),
        AudioError::ZeroRate { container }
    );
    let mut absurd = wav(1, 1, 0, 16, &data);
    absurd[24..28].copy_from_slice(&4_000_000_000u32.to_le_bytes());
    assert!(matches!(
        error(absurd),
        AudioError::Rate {
            rate: 4_000_000_000,
            ..
        }
    ));
    assert!(matches!(
        error(wav(1, 1, 100, 16, &data)),
        AudioError::Rate { rate: 100, .. }
    ));
    assert!(matches!(
        error(wav(1, 9, 16_000, 16, &data)),
        AudioError::Channels {
            channels: 9,
            limit: 8,
            ..
        }
    ));
    assert_eq!(
        error(wav(1, 1, 16_000, 16, &[])),
        AudioError::NoSamples { container }
    );
    assert_eq!(
        error(wav(1, 2, 16_000, 16, &[1, 2, 3])),
        AudioError::NoSamples { container }
    );
    assert!(error(wav(1, 1, 16_000, 0, &data))
        .to_string()
        .contains("samples of 0 bits"));
    assert!(error(wav(3, 1, 16_000, 16, &data))
        .to_string()
        .contains("samples of 16 bits"));
    assert!(error(wav(0x55, 1, 16_000, 0, &data))
        .to_string()
        .contains("holds MP3 audio, which is not built in"));
    let headless = b"RIFF\x20\0\0\0WAVEdata\x10\0\0\x000123456789abcdef".to_vec();
    assert!(error(headless).to_string().contains("no 'fmt ' chunk"));
}
