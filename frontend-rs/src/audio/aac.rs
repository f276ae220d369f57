//! The core of HE-AAC, which is plain AAC-LC at half the sample rate.
//!
//! HE-AAC adds a high band that is guessed from the low one (SBR), and version 2 a second channel that is guessed from the
//! first (PS). The decoder has neither, and refuses a configuration that names them. A speech model hears up to 8 kHz, most
//! of which is the core's: so the configuration is cut down to it.

/// Object types of an `AudioSpecificConfig` (ISO/IEC 14496-3, 1.5.1).
const LC: u32 = 2;
const SBR: u32 = 5;
const PS: u32 = 29;
/// The frequency follows in 24 bits.
const ESCAPE: u32 = 15;

/// A configuration of AAC-LC without what it says of extensions. `None`: it is of another kind, or is cut off.
pub fn core_config(config: &[u8]) -> Option<Vec<u8>> {
    let mut bits = Bits {
        bytes: config,
        at: 0,
    };
    let kind = bits.take(5)?;
    let frequency = Frequency::read(&mut bits)?;
    let channels = bits.take(4)?;
    let core = match kind {
        SBR | PS => {
            Frequency::read(&mut bits)?;
            bits.take(5)?
        }
        kind => kind,
    };
    let (short_frame, depends, extended) = (bits.take(1)?, bits.take(1)?, bits.take(1)?);
    // Channels of 0 means that a description of them follows.
    if core != LC || channels == 0 || depends == 1 || extended == 1 {
        return None;
    }
    let mut out = Packed::default();
    out.put(LC, 5);
    out.put(frequency.index, 4);
    if frequency.index == ESCAPE {
        out.put(frequency.hertz, 24);
    }
    out.put(channels, 4);
    out.put(short_frame << 2, 3);
    Some(out.bytes)
}

struct Frequency {
    index: u32,
    /// 0 unless the index is [`ESCAPE`].
    hertz: u32,
}

impl Frequency {
    fn read(bits: &mut Bits<'_>) -> Option<Self> {
        let index = bits.take(4)?;
        let hertz = if index == ESCAPE { bits.take(24)? } else { 0 };
        Some(Self { index, hertz })
    }
}

struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, count: usize) -> Option<u32> {
        let mut value = 0;
        for at in self.at..self.at + count {
            let byte = u32::from(*self.bytes.get(at / 8)?);
            value = value << 1 | byte >> (7 - at % 8) & 1;
        }
        self.at += count;
        Some(value)
    }
}

#[derive(Default)]
struct Packed {
    bytes: Vec<u8>,
    used: usize,
}

impl Packed {
    fn put(&mut self, value: u32, count: usize) {
        for bit in (0..count).rev() {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let last = self.bytes.len() - 1;
            self.bytes[last] |= ((value >> bit & 1) as u8) << (7 - self.used % 8);
            self.used += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_cut_off() {
        // Type, frequency, channels, then what the type demands.
        let plain = [0x13, 0x88]; // LC, 22,050 Hz, mono
        assert_eq!(core_config(&plain), Some(plain.to_vec()));
        // SBR at 44,100 Hz over it, said in front; PS the same; SBR said behind it.
        let in_front = [0x2B, 0x8A, 0x08, 0x00];
        assert_eq!(core_config(&in_front), Some(plain.to_vec()));
        let stereo = [0xEB, 0x8A, 0x08, 0x00];
        assert_eq!(core_config(&stereo), Some(plain.to_vec()));
        let behind = [0x13, 0x88, 0x56, 0xE5, 0xA0];
        assert_eq!(core_config(&behind), Some(plain.to_vec()));
        // A frequency that is written out.
        let odd = [0x17, 0x80, 0x27, 0x10, 0x08];
        assert_eq!(core_config(&odd), Some(odd.to_vec()));
    }

    #[test]
    fn other_kinds_are_left_alone() {
        for other in [
            &[][..],
            &[0x13],
            &[0x0B, 0x88],             // Main
            &[0x2B, 0x8A],             // SBR, cut off
            &[0x13, 0x80, 0x04],       // channels that are described
            &[0x13, 0x8A, 0x00, 0x00], // depends on a core coder
            &[0xF8, 0xE6, 0x40, 0x00], // an object type of more than five bits
        ] {
            assert_eq!(core_config(other), None, "{other:02x?}");
        }
    }
}
