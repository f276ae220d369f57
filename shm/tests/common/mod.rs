//! A direction over any [`Memory`], without system calls.
#![allow(dead_code)]

use std::sync::Arc;

use denizen_shm::layout::{Geometry, Layout, CLASSES};
use denizen_shm::memory::{HeapMemory, Memory};
use denizen_shm::receiver::Receiver;
use denizen_shm::sender::Sender;

pub const EPOCH: u64 = 7;

/// Layouts of an object with this ring and slab, and of the peer's, whose return ring fits it.
pub fn layouts(ring: usize, slots: [usize; CLASSES]) -> (Layout, Layout) {
    let own = Layout::new(Geometry {
        ring,
        returns: 0,
        slots,
    });
    let peer = Layout::new(Geometry {
        ring: 1,
        returns: slots.iter().sum(),
        slots: [0; CLASSES],
    });
    (own.unwrap(), peer.unwrap())
}

pub type Direction<M> = (Sender<Arc<M>, Arc<M>>, Receiver<Arc<M>, Arc<M>>);

/// A sender that writes `own`, and the receiver at the other end, which writes `peer`.
pub fn direction<M: Memory>(
    own: M,
    own_layout: Layout,
    peer: M,
    peer_layout: Layout,
) -> Direction<M> {
    let (own, peer) = (Arc::new(own), Arc::new(peer));
    let sender = Sender::new(
        Arc::clone(&own),
        Arc::clone(&peer),
        own_layout,
        peer_layout,
        EPOCH,
    );
    let receiver = Receiver::new(peer, own, peer_layout, own_layout, EPOCH);
    (sender, receiver)
}

/// The same on the heap.
pub fn heap(ring: usize, slots: [usize; CLASSES]) -> Direction<HeapMemory> {
    let (own, peer) = layouts(ring, slots);
    direction(
        HeapMemory::new(own.total),
        own,
        HeapMemory::new(peer.total),
        peer,
    )
}

/// Bytes that tell their place, so that a mixed-up or torn payload is seen.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| {
            (seed
                .wrapping_mul(31)
                .wrapping_add(i)
                .wrapping_mul(0x9e37_79b9)
                >> 16) as u8
        })
        .collect()
}
