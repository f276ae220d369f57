//! Assets and comparisons.

use denizen_frontend::audio::{decode, Audio, AudioError, Limits};

pub fn asset(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/assets/audio/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn decoded(bytes: &[u8]) -> Result<Audio, AudioError> {
    decode(bytes, &Limits::default())
}

/// Why a file is refused; it must be.
pub fn refused(bytes: &[u8]) -> AudioError {
    match decoded(bytes) {
        Err(error) => error,
        Ok(audio) => panic!(
            "{} s of audio came out of {:?}",
            audio.duration_s, audio.source
        ),
    }
}

/// The samples all other files were made from, 16 kHz.
pub fn speech() -> Vec<f32> {
    let samples = asset("speech.wav")[44..].to_vec();
    let short = |pair: &[u8]| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32768.0;
    samples.chunks_exact(2).map(short).collect()
}

/// How a decoded signal relates to the original.
#[derive(Debug)]
pub struct Likeness {
    /// Samples by which it comes late.
    pub lag: i64,
    /// Normalised, at that lag.
    pub correlation: f64,
    /// Its level over the original's.
    pub gain: f64,
    /// Signal to noise, dB, at that lag.
    pub snr: f64,
}

/// Compares at the best of the lags within `±reach` samples.
pub fn compare(got: &[f32], original: &[f32], reach: i64) -> Likeness {
    let pairs = |lag: i64, step: usize| {
        let length = original.len() as i64;
        (0..length).step_by(step).filter_map(move |n| {
            let at = usize::try_from(n + lag).ok()?;
            Some((f64::from(*got.get(at)?), f64::from(original[n as usize])))
        })
    };
    let product = |lag: i64, step: usize| pairs(lag, step).map(|(a, b)| a * b).sum::<f64>();
    let lag = (-reach..=reach)
        .map(|lag| (lag, product(lag, 3)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map_or(0, |(lag, _)| lag);
    let sum = |f: fn(f64, f64) -> f64| pairs(lag, 1).map(|(a, b)| f(a, b)).sum::<f64>();
    let (power, reference) = (sum(|a, _| a * a), sum(|_, b| b * b));
    let noise = sum(|a, b| (a - b) * (a - b));
    Likeness {
        lag,
        correlation: sum(|a, b| a * b) / (power * reference).sqrt(),
        gain: (power / reference).sqrt(),
        snr: 10.0 * (reference / noise).log10(),
    }
}

/// OGG/Opus: so many pages of so many packets of 120 ms, without an end mark.
pub fn silence_in_opus(pages: u32, packets: usize) -> Vec<u8> {
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
pub fn crc(page: &[u8]) -> u32 {
    page.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
            crc << 1 ^ if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 }
        })
    })
}
