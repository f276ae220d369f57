//! Payloads that do not fit into a descriptor: slots of a few size classes, chained where one is not enough.
//!
//! The free lists live in the writer's private memory ([`Slab`]); shared memory holds a generation and a chain link per
//! slot. The reader copies a payload out ([`read_chain`]) and hands its slots back through its return ring.

use crate::error::{ArenaError, Result};
use crate::layout::{slot, Layout, CLASSES, CLASS_SIZES};
use crate::memory::Memory;

/// Names one use of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRef {
    pub class: u8,
    /// Index within the class, 24 bits.
    pub index: u32,
    /// Raised whenever the slot is freed; never 0, so that a packed reference is never 0.
    pub generation: u32,
}

impl BlobRef {
    pub fn pack(self) -> u64 {
        (u64::from(self.class) << 56) | (u64::from(self.index) << 32) | u64::from(self.generation)
    }

    pub fn unpack(word: u64) -> Self {
        BlobRef {
            class: (word >> 56) as u8,
            index: ((word >> 32) & 0xff_ffff) as u32,
            generation: word as u32,
        }
    }

    fn valid_in(self, layout: &Layout) -> bool {
        let class = usize::from(self.class);
        class < CLASSES && (self.index as usize) < layout.geometry.slots[class]
    }
}

/// Why a payload was not stored.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room now.
    Full { free: u64 },
    /// Larger than the whole slab.
    TooLarge,
}

/// The writer's private book of its own slab.
pub struct Slab {
    layout: Layout,
    free: [Vec<u32>; CLASSES],
    /// Current generation of every slot, and whether the reader holds it.
    slots: Vec<(u32, bool)>,
    free_bytes: u64,
}

impl Slab {
    /// All slots free; writes the first generations into `own`.
    pub fn new(own: &impl Memory, layout: Layout) -> Self {
        let mut free: [Vec<u32>; CLASSES] = Default::default();
        for (class, list) in free.iter_mut().enumerate() {
            // Popped from the end: low slots first, so that an idle arena touches few pages.
            list.extend((0..layout.geometry.slots[class] as u32).rev());
            for index in 0..layout.geometry.slots[class] {
                own.store(layout.slot_entry(class, index) + slot::GENERATION, 1);
            }
        }
        Slab {
            layout,
            free,
            slots: vec![(1, false); layout.geometry.slot_count()],
            free_bytes: layout.slab_bytes(),
        }
    }

    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Slots that the reader holds, or has handed back without our having looked.
    pub fn in_use(&self) -> usize {
        self.slots.iter().filter(|(_, busy)| *busy).count()
    }

    /// Copy `bytes` (not empty) into slots and return the first. All or nothing.
    pub fn store(
        &mut self,
        own: &impl Memory,
        bytes: &[u8],
    ) -> std::result::Result<BlobRef, Refused> {
        let len = bytes.len() as u64;
        if len > self.layout.slab_bytes() {
            return Err(Refused::TooLarge);
        }
        let chain = self.reserve(bytes.len()).ok_or(Refused::Full {
            free: self.free_bytes,
        })?;
        let mut rest = bytes;
        for (position, blob) in chain.iter().enumerate() {
            let (class, index) = (usize::from(blob.class), blob.index as usize);
            let (part, tail) = rest.split_at(rest.len().min(CLASS_SIZES[class]));
            own.write(self.layout.slot_bytes(class, index), part);
            let next = chain.get(position + 1).map_or(0, |next| next.pack());
            own.store(self.layout.slot_entry(class, index) + slot::NEXT, next);
            rest = tail;
        }
        Ok(chain[0])
    }

    /// One slot of the smallest class that holds `len` and has a free slot, else a chain of what is left, largest
    /// slots first. `None`, with nothing taken, if that is not enough.
    fn reserve(&mut self, len: usize) -> Option<Vec<BlobRef>> {
        if let Some(class) =
            (0..CLASSES).find(|&class| CLASS_SIZES[class] >= len && !self.free[class].is_empty())
        {
            return Some(vec![self.take(class)?]);
        }
        if (len as u64) > self.free_bytes {
            return None;
        }
        let mut chain = Vec::new();
        let mut left = len;
        for class in (0..CLASSES).rev() {
            // A large slot for a small rest would waste it: smaller ones first for the rest, if they can hold it.
            while left > 0 && !self.free[class].is_empty() {
                let below: u64 = (0..class)
                    .map(|c| (self.free[c].len() * CLASS_SIZES[c]) as u64)
                    .sum();
                if left < CLASS_SIZES[class] && below >= left as u64 {
                    break;
                }
                chain.push(self.take(class)?);
                left = left.saturating_sub(CLASS_SIZES[class]);
            }
        }
        debug_assert_eq!(left, 0, "enough bytes were free");
        Some(chain)
    }

    fn take(&mut self, class: usize) -> Option<BlobRef> {
        let index = self.free[class].pop()?;
        let entry = &mut self.slots[self.layout.class_first[class] + index as usize];
        entry.1 = true;
        self.free_bytes -= CLASS_SIZES[class] as u64;
        Some(BlobRef {
            class: class as u8,
            index,
            generation: entry.0,
        })
    }

    /// Free one slot that the reader handed back. False for one that it does not hold (a stale or invented reference),
    /// which is left alone.
    pub fn release(&mut self, own: &impl Memory, blob: BlobRef) -> bool {
        if !blob.valid_in(&self.layout) {
            return false;
        }
        let (class, index) = (usize::from(blob.class), blob.index as usize);
        let entry = &mut self.slots[self.layout.class_first[class] + index];
        if *entry != (blob.generation, true) {
            return false;
        }
        let generation = match entry.0.wrapping_add(1) {
            0 => 1,
            next => next,
        };
        *entry = (generation, false);
        own.store(
            self.layout.slot_entry(class, index) + slot::GENERATION,
            u64::from(generation),
        );
        self.free[class].push(blob.index);
        self.free_bytes += CLASS_SIZES[class] as u64;
        true
    }

    /// Free every slot of a chain that was stored but never published.
    pub fn unstore(&mut self, own: &impl Memory, first: BlobRef) {
        let mut next = first.pack();
        while next != 0 {
            let blob = BlobRef::unpack(next);
            let entry = self
                .layout
                .slot_entry(usize::from(blob.class), blob.index as usize);
            next = own.load(entry + slot::NEXT);
            self.release(own, blob);
        }
    }
}

/// Reader's side: copy `len` bytes out of the peer's slab, checking every step. `slots` receives the chain's slots.
pub fn read_chain(
    peer: &impl Memory,
    layout: &Layout,
    first: BlobRef,
    len: u64,
    slots: &mut Vec<BlobRef>,
) -> Result<Vec<u8>> {
    if len > layout.slab_bytes() {
        return Err(ArenaError::Corrupt(format!(
            "a blob of {len} bytes in a slab of {}",
            layout.slab_bytes()
        )));
    }
    let mut bytes = vec![0; len as usize];
    let mut rest = bytes.as_mut_slice();
    let mut blob = first;
    loop {
        if !blob.valid_in(layout) {
            return Err(ArenaError::Corrupt(format!(
                "a blob in slot {blob:?}, which does not exist"
            )));
        }
        let (class, index) = (usize::from(blob.class), blob.index as usize);
        let entry = layout.slot_entry(class, index);
        let generation = peer.load(entry + slot::GENERATION);
        if generation != u64::from(blob.generation) {
            return Err(ArenaError::Corrupt(format!(
                "a blob in slot {blob:?}, which is at generation {generation}"
            )));
        }
        // Every slot has at least 4 KiB, so that a cyclic chain ends with `rest`.
        let (part, tail) = rest.split_at_mut(rest.len().min(CLASS_SIZES[class]));
        peer.read(layout.slot_bytes(class, index), part);
        slots.push(blob);
        rest = tail;
        if rest.is_empty() {
            return Ok(bytes);
        }
        match peer.load(entry + slot::NEXT) {
            0 => {
                return Err(ArenaError::Corrupt(format!(
                    "a chain that ends {} bytes early",
                    rest.len()
                )))
            }
            next => blob = BlobRef::unpack(next),
        }
    }
}
