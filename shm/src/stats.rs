//! Counters of one end.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since creation, and how full things are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub sent: u64,
    pub received: u64,
    /// Envelope and attachment bytes.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Times this side woke its peer.
    pub rings: u64,
    /// Times this side slept.
    pub sleeps: u64,
    pub ring_full: u64,
    pub slab_full: u64,
    /// Slab slots that the peer handed back without holding them.
    pub bad_returns: u64,
    /// Messages that the peer has not taken.
    pub out_depth: u64,
    /// Messages that wait for this side.
    pub in_depth: u64,
    pub slots_in_use: u64,
    pub slab_free: u64,
    pub slab_total: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub bytes_sent: AtomicU64,
    pub bytes_received: AtomicU64,
    pub rings: AtomicU64,
    pub sleeps: AtomicU64,
    pub ring_full: AtomicU64,
    pub slab_full: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    /// The counts; the fill levels are left 0.
    pub fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            sent: get(&self.sent),
            received: get(&self.received),
            bytes_sent: get(&self.bytes_sent),
            bytes_received: get(&self.bytes_received),
            rings: get(&self.rings),
            sleeps: get(&self.sleeps),
            ring_full: get(&self.ring_full),
            slab_full: get(&self.slab_full),
            ..Stats::default()
        }
    }
}
