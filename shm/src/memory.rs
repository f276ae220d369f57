//! Access to shared bytes, behind a trait: the protocol above it runs unchanged over a mapping shared by two
//! processes, over a heap block (property tests, Miri) and over loom's model of the C11 memory (`tests/loom.rs`).

use std::sync::atomic::{fence, AtomicU64, Ordering};

/// A block of memory that two parties see. Words are 8 bytes, at offsets that are multiples of 8.
///
/// Every offset that reaches these methods was computed from a checked [`crate::layout::Layout`], so an offset out of
/// range is a bug of this crate: implementations panic on it.
pub trait Memory {
    /// Load a word; what was written before the matching [`Memory::store`] is visible afterwards (acquire).
    fn load(&self, at: usize) -> u64;
    /// Store a word, after everything written before it (release).
    fn store(&self, at: usize, value: u64);
    /// Full fence: a store before it and a load after it are not reordered (sequentially consistent).
    fn fence(&self);
    /// Copy bytes out. The caller knows, through a word, that nobody writes them now, or validates the copy.
    fn read(&self, at: usize, into: &mut [u8]);
    /// Copy bytes in. The caller knows, through a word, that nobody reads them now.
    fn write(&self, at: usize, from: &[u8]);
}

impl<M: Memory + ?Sized> Memory for std::sync::Arc<M> {
    fn load(&self, at: usize) -> u64 {
        (**self).load(at)
    }
    fn store(&self, at: usize, value: u64) {
        (**self).store(at, value);
    }
    fn fence(&self) {
        (**self).fence();
    }
    fn read(&self, at: usize, into: &mut [u8]) {
        (**self).read(at, into);
    }
    fn write(&self, at: usize, from: &[u8]) {
        (**self).write(at, from);
    }
}

/// A heap block for tests of the protocol inside one process.
pub struct HeapMemory(Box<[AtomicU64]>);

impl HeapMemory {
    /// `len` bytes of zeros, `len` rounded up to whole words.
    pub fn new(len: usize) -> Self {
        HeapMemory((0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect())
    }

    /// A block that starts with the given bytes, as a peer of unknown intent may have left it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let memory = HeapMemory::new(bytes.len());
        memory.write(0, bytes);
        memory
    }
}

impl Memory for HeapMemory {
    fn load(&self, at: usize) -> u64 {
        assert_eq!(at % 8, 0);
        self.0[at / 8].load(Ordering::Acquire)
    }

    fn store(&self, at: usize, value: u64) {
        assert_eq!(at % 8, 0);
        self.0[at / 8].store(value, Ordering::Release);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        for (index, chunk) in into.chunks_mut(8).enumerate() {
            let word = self.0[at / 8 + index].load(Ordering::Relaxed).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        for (index, chunk) in from.chunks(8).enumerate() {
            let cell = &self.0[at / 8 + index];
            let mut word = cell.load(Ordering::Relaxed).to_le_bytes();
            word[..chunk.len()].copy_from_slice(chunk);
            cell.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }
}
