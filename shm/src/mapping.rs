//! One shared object mapped into this process. The first of the crate's two files with `unsafe`.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{fence, AtomicU64, Ordering};

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

use crate::error::{ArenaError, Result};
use crate::memory::Memory;

/// A shared mapping. No Rust reference to its bytes is ever made: words are accessed as atomics through a raw pointer,
/// bulk bytes by raw copies, since the process at the other end may write at any time.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is plain memory that any thread may access; all accesses go through the methods below, which use
// atomics for words, and raw copies that the ring protocol orders.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map the first `len` bytes of `fd`, which must be that long already (the caller has checked it).
    pub fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self> {
        let access = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing in this process.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) }
            .map_err(|e| ArenaError::io(format!("cannot map {len} bytes of shared memory"), e))?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| ArenaError::Config("the kernel mapped the arena at address 0".into()))?;
        Ok(Mapping {
            base,
            len,
            writable,
        })
    }

    /// The address of `len` bytes at `at`; panics if they are not inside, or not writable when `write` is set.
    fn at(&self, at: usize, len: usize, write: bool) -> *mut u8 {
        assert!(
            at <= self.len && len <= self.len - at,
            "{len} bytes at {at} are outside a mapping of {}",
            self.len
        );
        assert!(
            !write || self.writable,
            "write to the peer's read-only object"
        );
        // SAFETY: `at` is inside the mapping (asserted above).
        unsafe { self.base.as_ptr().add(at) }
    }

    fn word(&self, at: usize, write: bool) -> *mut u64 {
        assert_eq!(at % 8, 0, "word at unaligned offset {at}");
        self.at(at, 8, write).cast::<u64>()
    }
}

impl Memory for Mapping {
    fn load(&self, at: usize) -> u64 {
        let word = self.word(at, false);
        // SAFETY: in range and aligned (the base is page aligned); both sides access words only as atomics. A relaxed
        // load is the only atomic operation that Rust allows on memory mapped read-only, hence the separate fence.
        let value = unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    fn store(&self, at: usize, value: u64) {
        let word = self.word(at, true);
        // SAFETY: in range, aligned, writable; both sides access words only as atomics.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        let from = self.at(at, into.len(), false);
        // SAFETY: source in range, destination is private memory of the same length, so they do not overlap. The ring
        // protocol orders this copy after the writer's; a peer that breaks the protocol can only spoil the copied
        // bytes, whose every value is valid for `u8` and validated by the caller.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    fn write(&self, at: usize, from: &[u8]) {
        let into = self.at(at, from.len(), true);
        // SAFETY: destination in range and writable, source is private memory, so they do not overlap. The peer reads
        // these bytes only after a word published them.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; no pointer into it outlives `self`. A failure cannot be handled
        // here and leaves the mapping in place.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
