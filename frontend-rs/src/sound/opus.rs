//! Opus in Ogg (RFC 6716, RFC 7845), with `ropus` and `ogg`.

use ogg::writing::{PacketWriteEndInfo, PacketWriter};
use ropus::{Application, Bitrate, Channels};

use super::SoundError;

/// Rates that Opus codes as they are, hertz.
pub const RATES: [u32; 5] = [8_000, 12_000, 16_000, 24_000, 48_000];
/// Granule positions count at this rate, whatever the audio's is.
const CLOCK: u64 = 48_000;
/// Packets a second: 20 ms each.
const PACKETS: u32 = 50;
/// Bits a second; speech is transparent well below.
const BITRATE: u32 = 48_000;
/// Of 10: the highest cost several times as much and are not told apart at this bit rate.
const COMPLEXITY: u8 = 5;
/// Longest packet, bytes (RFC 6716: 1,275 of a frame).
const MAX_PACKET: usize = 1500;

pub struct Opus {
    encoder: ropus::Encoder,
    pages: PacketWriter<'static, Vec<u8>>,
    serial: u32,
    rate: u64,
    /// Samples of a packet.
    length: usize,
    /// Samples that do not fill one yet.
    rest: Vec<f32>,
    /// The last packet, held back because the stream's last one is marked.
    last: Option<Vec<u8>>,
    /// Samples in, packets out before `last`.
    samples: u64,
    packets: u64,
    /// At the clock's rate: what a decoder drops at the start.
    skip: u64,
}

impl Opus {
    pub fn new(rate: u32) -> Result<Self, SoundError> {
        let encoder = ropus::Encoder::builder(rate, Channels::Mono, Application::Audio)
            .bitrate(Bitrate::Bits(BITRATE))
            .complexity(COMPLEXITY)
            .build()
            .map_err(|e| SoundError(e.to_string()))?;
        // The encoder counts its delay at its own rate, the header at 48 kHz.
        let skip = u64::from(encoder.lookahead()) * CLOCK / u64::from(rate);
        let mut opus = Self {
            encoder,
            pages: PacketWriter::new(Vec::new()),
            serial: rand::random(),
            rate: rate.into(),
            length: (rate / PACKETS) as usize,
            rest: Vec::new(),
            last: None,
            samples: 0,
            packets: 0,
            skip,
        };
        let mut head = Vec::from(b"OpusHead\x01\x01");
        head.extend((skip as u16).to_le_bytes());
        head.extend(rate.to_le_bytes());
        // Gain 0, mapping family 0.
        head.extend([0, 0, 0]);
        let vendor = b"denizen";
        let mut tags = Vec::from(b"OpusTags");
        tags.extend((vendor.len() as u32).to_le_bytes());
        tags.extend(vendor);
        tags.extend(0u32.to_le_bytes());
        opus.write(head, PacketWriteEndInfo::EndPage, 0)?;
        opus.write(tags, PacketWriteEndInfo::EndPage, 0)?;
        Ok(opus)
    }

    pub fn push(&mut self, samples: &[f32]) -> Result<(), SoundError> {
        self.samples += samples.len() as u64;
        self.rest.extend_from_slice(samples);
        let whole = self.rest.len() / self.length;
        for number in 0..whole {
            // The page ends with what can be given out now.
            let end = number + 1 == whole;
            self.packet(number * self.length, end)?;
        }
        self.rest.drain(..whole * self.length);
        Ok(())
    }

    /// The end: silence pushes what the encoder still holds out.
    pub fn finish(&mut self) -> Result<(), SoundError> {
        let end = self.skip + self.samples * CLOCK / self.rate;
        let step = CLOCK / u64::from(PACKETS);
        let wanted = end.div_ceil(step).max(1);
        while self.packets + u64::from(self.last.is_some()) < wanted {
            self.rest.resize(self.length, 0.0);
            self.packet(0, false)?;
            self.rest.clear();
        }
        match self.last.take() {
            Some(packet) => self.write(packet, PacketWriteEndInfo::EndStream, end),
            None => Ok(()),
        }
    }

    /// The bytes of the pages that have ended.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.pages.inner_mut())
    }

    /// Codes the packet that begins at `rest[at]`, and writes the one before it.
    fn packet(&mut self, at: usize, end_page: bool) -> Result<(), SoundError> {
        let mut packet = vec![0; MAX_PACKET];
        let size = self
            .encoder
            .encode_float(&self.rest[at..at + self.length], &mut packet)
            .map_err(|e| SoundError(e.to_string()))?;
        packet.truncate(size);
        let Some(before) = self.last.replace(packet) else {
            return Ok(());
        };
        self.packets += 1;
        let end = if end_page {
            PacketWriteEndInfo::EndPage
        } else {
            PacketWriteEndInfo::NormalPacket
        };
        self.write(before, end, self.packets * CLOCK / u64::from(PACKETS))
    }

    fn write(
        &mut self,
        packet: Vec<u8>,
        end: PacketWriteEndInfo,
        granule: u64,
    ) -> Result<(), SoundError> {
        self.pages
            .write_packet(packet, self.serial, end, granule)
            .map_err(|e| SoundError(e.to_string()))
    }
}
