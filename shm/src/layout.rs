//! The one definition of what lies where in a shared object.
//!
//! Both objects of a pair have the same shape; each is written by one side only:
//!
//! | part | place | content |
//! |---|---|---|
//! | header | 0 | identity, geometry, then the writer's hot words, each on its own 128 bytes |
//! | ring | after the header | descriptors of 256 bytes, written by this object's owner |
//! | returns | after the ring | words that hand the *peer's* slab slots back |
//! | slots | after the returns | two words per slab slot: generation, next slot of a chain |
//! | slab | next page | the slots' bytes, class by class |
//!
//! [`FIELDS`] lists every offset of header and descriptor. Its hash is in the header, so two builds whose tables
//! differ refuse each other even if somebody forgot to raise the ABI number.

use crate::error::{ArenaError, Result};

/// `DENIZEN` and a byte for the object format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DENIZEN\x01");
/// Readers refuse another major number.
pub const ABI_MAJOR: u32 = 1;
/// A higher minor number than the reader's is refused too: it may hold what the reader would misread.
pub const ABI_MINOR: u32 = 0;

pub const HEADER_LEN: usize = 4096;
pub const DESCRIPTOR_LEN: usize = 256;
/// Bytes of a message that travel in the descriptor itself.
pub const INLINE_LEN: usize = DESCRIPTOR_LEN - descriptor::INLINE;
/// Bytes of one slot, by size class.
pub const CLASS_SIZES: [usize; 5] = [4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20];
pub const CLASSES: usize = CLASS_SIZES.len();
/// A slot's index has 24 bits in a blob reference.
pub const MAX_SLOTS: usize = 1 << 20;
pub const MAX_RING: usize = 1 << 20;
/// No object may be larger: catches nonsense before the kernel is asked for it.
pub const MAX_OBJECT: usize = 64 << 30;

/// One field of [`FIELDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub offset: usize,
    pub size: usize,
}

macro_rules! fields {
    ($(mod $group:ident { $($name:ident = $offset:literal, $size:literal;)* })*) => {
        $(
            #[allow(missing_docs)]
            pub mod $group {
                $(pub const $name: usize = $offset;)*
            }
        )*
        /// Every field of the header and of a descriptor: name, offset and size in bytes.
        pub const FIELDS: &[Field] = &[
            $($(Field { name: concat!(stringify!($group), ".", stringify!($name)), offset: $offset, size: $size },)*)*
        ];
    };
}

fields! {
    mod header {
        // Written once by the creator. MAGIC goes last.
        MAGIC = 0, 8;
        ABI = 8, 8;
        TOTAL_LEN = 16, 8;
        FIELDS_HASH = 24, 8;
        INSTANCE = 32, 16;
        EPOCH = 48, 8;
        ROLE = 56, 8;
        RING_CAPACITY = 64, 8;
        RETURNS_CAPACITY = 72, 8;
        CLASS_COUNTS = 80, 40;
        // Written by the side that owns the object once it is there.
        WRITER_PID = 256, 8;
        WRITER_START = 264, 8;
        STATE = 272, 8;
        // Hot words, written by the owner, each on a pair of cache lines of its own.
        TAIL = 512, 8;
        HEAD = 640, 8;
        PARKED = 768, 8;
        RETURNS_TAIL = 896, 8;
        RETURNS_HEAD = 1024, 8;
        BEAT = 1152, 8;
        PHASE = 1280, 8;
    }
    mod descriptor {
        STAMP = 0, 8;
        KIND = 8, 2;
        FLAGS = 10, 2;
        ENVELOPE_INLINE = 12, 2;
        ATTACHMENT_INLINE = 14, 2;
        ENVELOPE_BLOB = 16, 8;
        ENVELOPE_LEN = 24, 8;
        ATTACHMENT_BLOB = 32, 8;
        ATTACHMENT_LEN = 40, 8;
        INLINE = 48, 208;
    }
    mod slot {
        GENERATION = 0, 8;
        NEXT = 8, 8;
    }
}

/// Bytes of a slot's entry in the slots table.
pub const SLOT_LEN: usize = 16;

/// FNV-1a over names, offsets, sizes and the class sizes.
pub const fn fields_hash() -> u64 {
    const fn mix(mut hash: u64, bytes: &[u8]) -> u64 {
        let mut i = 0;
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
            i += 1;
        }
        hash
    }
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut i = 0;
    while i < FIELDS.len() {
        hash = mix(hash, FIELDS[i].name.as_bytes());
        hash = mix(hash, &(FIELDS[i].offset as u64).to_le_bytes());
        hash = mix(hash, &(FIELDS[i].size as u64).to_le_bytes());
        i += 1;
    }
    let mut i = 0;
    while i < CLASSES {
        hash = mix(hash, &(CLASS_SIZES[i] as u64).to_le_bytes());
        i += 1;
    }
    hash
}

/// The variable part of an object's layout. Offsets follow from it and are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Descriptors in the ring, at least 1.
    pub ring: usize,
    /// Words in the return ring: at least the slots of the peer's slab.
    pub returns: usize,
    /// Slots of each class of [`CLASS_SIZES`].
    pub slots: [usize; CLASSES],
}

impl Geometry {
    pub fn slot_count(&self) -> usize {
        self.slots.iter().sum()
    }
}

/// Offsets of an object's parts; every one inside `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub geometry: Geometry,
    pub ring_at: usize,
    pub returns_at: usize,
    pub slots_at: usize,
    /// Where each class's slots start, and the index of its first entry in the slots table.
    pub class_at: [usize; CLASSES],
    pub class_first: [usize; CLASSES],
    /// Bytes of the whole object.
    pub total: usize,
}

impl Layout {
    /// Check `geometry`, which may come from a peer, and compute the offsets.
    pub fn new(geometry: Geometry) -> Result<Self> {
        let bad = |what: String| Err(ArenaError::Config(what));
        if geometry.ring == 0 || geometry.ring > MAX_RING {
            return bad(format!(
                "the ring must hold 1 to {MAX_RING} messages, not {}",
                geometry.ring
            ));
        }
        if geometry.returns > MAX_SLOTS * CLASSES {
            return bad(format!("a return ring of {} words", geometry.returns));
        }
        if let Some(count) = geometry.slots.iter().find(|&&count| count > MAX_SLOTS) {
            return bad(format!(
                "{count} slots in one size class, more than {MAX_SLOTS}"
            ));
        }
        // No sum or product below can overflow 64 bits within these limits: 2^20 slots of 2^24 bytes, five times.
        let ring_at = HEADER_LEN;
        let returns_at = ring_at + geometry.ring * DESCRIPTOR_LEN;
        let slots_at = returns_at + geometry.returns * 8;
        let mut at = (slots_at + geometry.slot_count() * SLOT_LEN).next_multiple_of(4096);
        let mut first = 0;
        let (mut class_at, mut class_first) = ([0; CLASSES], [0; CLASSES]);
        for class in 0..CLASSES {
            class_at[class] = at;
            class_first[class] = first;
            at += geometry.slots[class] * CLASS_SIZES[class];
            first += geometry.slots[class];
        }
        if at > MAX_OBJECT {
            return bad(format!(
                "an object of {at} bytes is larger than {MAX_OBJECT}"
            ));
        }
        Ok(Layout {
            geometry,
            ring_at,
            returns_at,
            slots_at,
            class_at,
            class_first,
            total: at,
        })
    }

    /// Offset of the descriptor for ring position `position`.
    pub fn descriptor(&self, position: u64) -> usize {
        self.ring_at + (position % self.geometry.ring as u64) as usize * DESCRIPTOR_LEN
    }

    /// Offset of the return word for position `position`; the return ring must not be empty.
    pub fn return_word(&self, position: u64) -> usize {
        self.returns_at + (position % self.geometry.returns as u64) as usize * 8
    }

    /// Offset of a slot's entry in the slots table.
    pub fn slot_entry(&self, class: usize, index: usize) -> usize {
        self.slots_at + (self.class_first[class] + index) * SLOT_LEN
    }

    /// Offset of a slot's bytes.
    pub fn slot_bytes(&self, class: usize, index: usize) -> usize {
        self.class_at[class] + index * CLASS_SIZES[class]
    }

    /// Bytes of all slots together.
    pub fn slab_bytes(&self) -> u64 {
        (0..CLASSES)
            .map(|class| (self.geometry.slots[class] * CLASS_SIZES[class]) as u64)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap_and_stay_inside_their_part() {
        for group in ["header.", "descriptor.", "slot."] {
            let end = match group {
                "header." => HEADER_LEN,
                "descriptor." => DESCRIPTOR_LEN,
                _ => SLOT_LEN,
            };
            let mut next = 0;
            for field in FIELDS.iter().filter(|f| f.name.starts_with(group)) {
                assert!(
                    field.offset >= next,
                    "{} overlaps its predecessor",
                    field.name
                );
                next = field.offset + field.size;
                assert!(next <= end, "{} ends outside", field.name);
            }
        }
    }

    #[test]
    fn hot_words_share_no_cache_line() {
        let hot = [
            header::TAIL,
            header::HEAD,
            header::PARKED,
            header::RETURNS_TAIL,
            header::RETURNS_HEAD,
            header::BEAT,
            header::PHASE,
        ];
        for (i, a) in hot.iter().enumerate() {
            assert!(hot[i + 1..].iter().all(|b| a / 128 != b / 128));
        }
    }

    #[test]
    fn parts_follow_each_other() {
        let geometry = Geometry {
            ring: 3,
            returns: 5,
            slots: [2, 1, 0, 1, 0],
        };
        let layout = Layout::new(geometry).unwrap();
        assert_eq!(layout.descriptor(3), layout.ring_at);
        assert_eq!(layout.descriptor(2) + DESCRIPTOR_LEN, layout.returns_at);
        assert_eq!(layout.return_word(4) + 8, layout.slots_at);
        assert!(layout.slot_entry(3, 0) + SLOT_LEN <= layout.class_at[0]);
        assert_eq!(layout.slot_bytes(0, 2), layout.slot_bytes(1, 0));
        assert_eq!(layout.slot_bytes(3, 1), layout.total);
    }

    #[test]
    fn nonsense_geometry_is_refused() {
        let good = Geometry {
            ring: 1,
            returns: 1,
            slots: [1, 0, 0, 0, 0],
        };
        assert!(Layout::new(good).is_ok());
        assert!(Layout::new(Geometry { ring: 0, ..good }).is_err());
        assert!(Layout::new(Geometry {
            ring: usize::MAX,
            ..good
        })
        .is_err());
        assert!(Layout::new(Geometry {
            returns: usize::MAX,
            ..good
        })
        .is_err());
        assert!(Layout::new(Geometry {
            slots: [0, 0, 0, 0, MAX_SLOTS],
            ..good
        })
        .is_err());
        assert!(Layout::new(Geometry {
            slots: [usize::MAX; CLASSES],
            ..good
        })
        .is_err());
    }
}
