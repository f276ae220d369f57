//! FLAC, with `flacenc`: frames of one size, as they come.

use flacenc::bitsink::ByteSink;
use flacenc::component::{BitRepr, Stream, StreamInfo};
use flacenc::config;
use flacenc::error::{Verified, Verify};
use flacenc::source::{Fill, FrameBuf};

use super::SoundError;

/// Samples of a frame: short enough that streams do not wait for it, 48 ms at 24 kHz.
const BLOCK: usize = 1152;
/// Samples of the shortest frame that `flacenc` makes.
const LEAST: usize = 32;
/// Where STREAMINFO has the low 32 of the 36 bits that count the samples.
const SAMPLES: usize = 22;

pub struct Flac {
    config: Verified<config::Encoder>,
    info: StreamInfo,
    rest: Vec<i32>,
    frames: usize,
    samples: u64,
    out: Vec<u8>,
}

impl Flac {
    pub fn new(rate: u32) -> Result<Self, SoundError> {
        let config = config::Encoder::default()
            .into_verified()
            .map_err(|(_, e)| SoundError(e.to_string()))?;
        let mut info = StreamInfo::new(rate as usize, 1, 16).map_err(wrong)?;
        info.set_block_sizes(BLOCK, BLOCK).map_err(wrong)?;
        let mut header = ByteSink::new();
        Stream::with_stream_info(info.clone())
            .write(&mut header)
            .map_err(wrong)?;
        Ok(Self {
            config,
            info,
            rest: Vec::new(),
            frames: 0,
            samples: 0,
            out: header.into_inner(),
        })
    }

    pub fn push(&mut self, levels: impl Iterator<Item = i16>) -> Result<(), SoundError> {
        let before = self.rest.len();
        self.rest.extend(levels.map(i32::from));
        self.samples += (self.rest.len() - before) as u64;
        let rest = std::mem::take(&mut self.rest);
        let blocks = rest.chunks_exact(BLOCK);
        self.rest = blocks.remainder().to_vec();
        blocks.into_iter().try_for_each(|block| self.frame(block))
    }

    /// The last frame may be shorter than the others, but has silence added up to the least length: a millisecond.
    pub fn finish(&mut self) -> Result<(), SoundError> {
        let mut rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return Ok(());
        }
        let silence = LEAST.saturating_sub(rest.len());
        self.samples += silence as u64;
        rest.resize(rest.len() + silence, 0);
        self.frame(&rest)
    }

    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Writes the number of samples into a whole file. One beyond 32 bits stays unknown.
    pub fn seal(&self, file: &mut [u8]) {
        if let Ok(samples) = u32::try_from(self.samples) {
            file[SAMPLES..SAMPLES + 4].copy_from_slice(&samples.to_be_bytes());
        }
    }

    fn frame(&mut self, block: &[i32]) -> Result<(), SoundError> {
        let mut buffer = FrameBuf::with_size(1, block.len()).map_err(wrong)?;
        buffer.fill_interleaved(block).map_err(wrong)?;
        let frame =
            flacenc::encode_fixed_size_frame(&self.config, &buffer, self.frames, &self.info)
                .map_err(wrong)?;
        let mut bytes = ByteSink::new();
        frame.write(&mut bytes).map_err(wrong)?;
        self.frames += 1;
        self.out.extend(bytes.into_inner());
        Ok(())
    }
}

fn wrong(error: impl std::fmt::Display) -> SoundError {
    SoundError(error.to_string())
}
