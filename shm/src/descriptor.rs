//! A ring entry: what [`crate::layout::descriptor`] lays out, as a value.

use crate::error::{ArenaError, Result};
use crate::layout::{descriptor as at, CLASSES, DESCRIPTOR_LEN, INLINE_LEN};
use crate::slab::BlobRef;

const KIND_MESSAGE: u16 = 1;
const FLAG_ENVELOPE_BLOB: u16 = 1;
const FLAG_ATTACHMENT: u16 = 2;
const FLAG_ATTACHMENT_BLOB: u16 = 4;
const FLAGS: u16 = FLAG_ENVELOPE_BLOB | FLAG_ATTACHMENT | FLAG_ATTACHMENT_BLOB;

/// Where a part of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// So many of the descriptor's inline bytes.
    Inline(usize),
    /// `len` bytes in the slab.
    Blob { first: BlobRef, len: u64 },
}

/// A descriptor in private memory. The envelope's inline bytes come first, then the attachment's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Epoch and ring position, so that a stale or misplaced entry is seen.
    pub stamp: u64,
    pub envelope: Part,
    pub attachment: Option<Part>,
}

/// The stamp that belongs at ring position `position` of the pair with this epoch.
pub fn stamp(epoch: u64, position: u64) -> u64 {
    (epoch << 32) | (position & 0xffff_ffff)
}

fn get<const N: usize>(bytes: &[u8; DESCRIPTOR_LEN], offset: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[offset..offset + N]);
    field
}

impl Descriptor {
    /// Lay the descriptor out; the inline bytes are left zero.
    pub fn encode(&self) -> [u8; DESCRIPTOR_LEN] {
        let mut bytes = [0; DESCRIPTOR_LEN];
        let mut put = |offset: usize, field: &[u8]| {
            bytes[offset..offset + field.len()].copy_from_slice(field);
        };
        let mut flags = 0;
        put(at::STAMP, &self.stamp.to_le_bytes());
        put(at::KIND, &KIND_MESSAGE.to_le_bytes());
        match self.envelope {
            Part::Inline(len) => put(at::ENVELOPE_INLINE, &(len as u16).to_le_bytes()),
            Part::Blob { first, len } => {
                flags |= FLAG_ENVELOPE_BLOB;
                put(at::ENVELOPE_BLOB, &first.pack().to_le_bytes());
                put(at::ENVELOPE_LEN, &len.to_le_bytes());
            }
        }
        match self.attachment {
            None => {}
            Some(Part::Inline(len)) => {
                flags |= FLAG_ATTACHMENT;
                put(at::ATTACHMENT_INLINE, &(len as u16).to_le_bytes());
            }
            Some(Part::Blob { first, len }) => {
                flags |= FLAG_ATTACHMENT | FLAG_ATTACHMENT_BLOB;
                put(at::ATTACHMENT_BLOB, &first.pack().to_le_bytes());
                put(at::ATTACHMENT_LEN, &len.to_le_bytes());
            }
        }
        put(at::FLAGS, &flags.to_le_bytes());
        bytes
    }

    /// Read a private copy of a ring entry, trusting nothing in it.
    pub fn decode(bytes: &[u8; DESCRIPTOR_LEN]) -> Result<Self> {
        let bad = |what: String| ArenaError::Corrupt(format!("descriptor with {what}"));
        let kind = u16::from_le_bytes(get(bytes, at::KIND));
        if kind != KIND_MESSAGE {
            return Err(bad(format!("kind {kind}")));
        }
        let flags = u16::from_le_bytes(get(bytes, at::FLAGS));
        let blob_without_attachment =
            flags & (FLAG_ATTACHMENT | FLAG_ATTACHMENT_BLOB) == FLAG_ATTACHMENT_BLOB;
        if flags & !FLAGS != 0 || blob_without_attachment {
            return Err(bad(format!("flags {flags:#x}")));
        }
        let envelope_inline = usize::from(u16::from_le_bytes(get(bytes, at::ENVELOPE_INLINE)));
        let attachment_inline = usize::from(u16::from_le_bytes(get(bytes, at::ATTACHMENT_INLINE)));
        if envelope_inline + attachment_inline > INLINE_LEN {
            return Err(bad(format!(
                "{envelope_inline} + {attachment_inline} inline bytes"
            )));
        }
        let part = |blob: bool, inline: usize, blob_at: usize, len_at: usize| {
            if !blob {
                return Ok(Part::Inline(inline));
            }
            let first = BlobRef::unpack(u64::from_le_bytes(get(bytes, blob_at)));
            let len = u64::from_le_bytes(get(bytes, len_at));
            if inline != 0 || len == 0 || usize::from(first.class) >= CLASSES {
                return Err(bad(format!(
                    "blob {first:?} of {len} bytes and {inline} inline"
                )));
            }
            Ok(Part::Blob { first, len })
        };
        Ok(Descriptor {
            stamp: u64::from_le_bytes(get(bytes, at::STAMP)),
            envelope: part(
                flags & FLAG_ENVELOPE_BLOB != 0,
                envelope_inline,
                at::ENVELOPE_BLOB,
                at::ENVELOPE_LEN,
            )?,
            attachment: if flags & FLAG_ATTACHMENT == 0 {
                None
            } else {
                Some(part(
                    flags & FLAG_ATTACHMENT_BLOB != 0,
                    attachment_inline,
                    at::ATTACHMENT_BLOB,
                    at::ATTACHMENT_LEN,
                )?)
            },
        })
    }
}
