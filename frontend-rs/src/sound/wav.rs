//! The header of a WAV file: RIFF, `fmt ` and the beginning of `data`.

/// What stands for a length that is not known yet; readers take it for "to the end".
const UNKNOWN: u32 = u32::MAX;
const BYTES: usize = 44;
const RIFF_SIZE: usize = 4;
const DATA_SIZE: usize = 40;

/// Of 16-bit mono samples whose number is not known.
pub fn header(rate: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BYTES);
    bytes.extend(b"RIFF");
    bytes.extend(UNKNOWN.to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend(16u32.to_le_bytes());
    // PCM, one channel.
    bytes.extend([1, 0, 1, 0]);
    bytes.extend(rate.to_le_bytes());
    bytes.extend(rate.saturating_mul(2).to_le_bytes());
    // Bytes a frame, bits a sample.
    bytes.extend([2, 0, 16, 0]);
    bytes.extend(b"data");
    bytes.extend(UNKNOWN.to_le_bytes());
    bytes
}

/// Writes the lengths into a whole file. One beyond 4 GiB keeps the mark of an unknown one.
pub fn seal(file: &mut [u8]) {
    for (at, before) in [(RIFF_SIZE, 8), (DATA_SIZE, BYTES)] {
        let size = u32::try_from(file.len() - before).unwrap_or(UNKNOWN);
        file[at..at + 4].copy_from_slice(&size.to_le_bytes());
    }
}
