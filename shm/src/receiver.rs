//! The consumer's half of a direction: take messages, hand slots back, park.

use crate::descriptor::{stamp, Descriptor, Part};
use crate::error::{ArenaError, Result};
use crate::failpoint::failpoint;
use crate::layout::{descriptor, header, Layout, DESCRIPTOR_LEN};
use crate::memory::Memory;
use crate::slab::{read_chain, BlobRef};

/// One message, in private memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub envelope: Vec<u8>,
    pub attachment: Option<Vec<u8>>,
}

/// Reads the ring and slab in `peer`; keeps its position, parked flag and return ring in `own`.
pub struct Receiver<O, P> {
    own: O,
    peer: P,
    layout: Layout,
    peer_layout: Layout,
    epoch: u64,
    head: u64,
    parked: u64,
    returns_tail: u64,
    slots: Vec<BlobRef>,
    broken: Option<String>,
}

impl<O: Memory, P: Memory> Receiver<O, P> {
    /// Start at the ring's beginning; `own` must be fresh.
    pub fn new(own: O, peer: P, layout: Layout, peer_layout: Layout, epoch: u64) -> Self {
        Receiver {
            own,
            peer,
            layout,
            peer_layout,
            epoch,
            head: 0,
            parked: 0,
            returns_tail: 0,
            slots: Vec::new(),
            broken: None,
        }
    }

    /// Messages that wait to be taken.
    pub fn depth(&self) -> Result<u64> {
        let tail = self.peer.load(header::TAIL);
        let depth = tail.wrapping_sub(self.head);
        if depth > self.peer_layout.geometry.ring as u64 {
            return Err(ArenaError::Corrupt(format!(
                "write position {tail} while {} messages were read from a ring of {}",
                self.head, self.peer_layout.geometry.ring
            )));
        }
        Ok(depth)
    }

    /// Take the next message, if there is one. After a [`ArenaError::Corrupt`] nothing more is read: every later call
    /// gives that error again.
    pub fn try_recv(&mut self) -> Result<Option<Message>> {
        if let Some(what) = &self.broken {
            return Err(ArenaError::Corrupt(what.clone()));
        }
        let result = self.take();
        if let Err(ArenaError::Corrupt(what)) = &result {
            self.broken = Some(what.clone());
        }
        result
    }

    fn take(&mut self) -> Result<Option<Message>> {
        if self.depth()? == 0 {
            return Ok(None);
        }
        // Copy, then validate the copy: the peer may write the shared bytes at any time.
        let mut bytes = [0; DESCRIPTOR_LEN];
        self.peer
            .read(self.peer_layout.descriptor(self.head), &mut bytes);
        let entry = Descriptor::decode(&bytes)?;
        if entry.stamp != stamp(self.epoch, self.head) {
            return Err(ArenaError::Corrupt(format!(
                "descriptor stamped {:#x} at position {} of epoch {}",
                entry.stamp, self.head, self.epoch
            )));
        }
        self.slots.clear();
        let mut inline = &bytes[descriptor::INLINE..];
        let mut fetch = |part: Part| match part {
            Part::Inline(len) => {
                let (bytes, rest) = inline.split_at(len);
                inline = rest;
                Ok(bytes.to_vec())
            }
            Part::Blob { first, len } => {
                read_chain(&self.peer, &self.peer_layout, first, len, &mut self.slots)
            }
        };
        let message = Message {
            envelope: fetch(entry.envelope)?,
            attachment: entry.attachment.map(fetch).transpose()?,
        };
        failpoint("recv.copied");
        self.hand_back()?;
        failpoint("recv.returned");
        self.head = self.head.wrapping_add(1);
        self.own.store(header::HEAD, self.head);
        Ok(Some(message))
    }

    /// Publish `self.slots` in the return ring.
    fn hand_back(&mut self) -> Result<()> {
        if self.slots.is_empty() {
            return Ok(());
        }
        let capacity = self.layout.geometry.returns as u64;
        let taken = self.peer.load(header::RETURNS_HEAD);
        let waiting = self.returns_tail.wrapping_sub(taken);
        // An honest peer has at most as many slots as the return ring has words.
        if waiting > capacity || self.slots.len() as u64 > capacity - waiting {
            return Err(ArenaError::Corrupt(format!(
                "{} slots to hand back, but {waiting} of {capacity} already wait",
                self.slots.len()
            )));
        }
        for slot in &self.slots {
            self.own
                .store(self.layout.return_word(self.returns_tail), slot.pack());
            self.returns_tail = self.returns_tail.wrapping_add(1);
        }
        self.own.store(header::RETURNS_TAIL, self.returns_tail);
        Ok(())
    }

    /// Announce that this side is about to sleep. True: nothing waits, and any message sent from now on rings the
    /// doorbell. False: something arrived meanwhile, take it first (the announcement is withdrawn).
    pub fn arm(&mut self) -> Result<bool> {
        if self.parked.is_multiple_of(2) {
            self.parked = self.parked.wrapping_add(1);
            self.own.store(header::PARKED, self.parked);
        }
        self.own.fence();
        if self.depth()? == 0 {
            return Ok(true);
        }
        self.disarm();
        Ok(false)
    }

    /// Awake again.
    pub fn disarm(&mut self) {
        if self.parked % 2 == 1 {
            self.parked = self.parked.wrapping_add(1);
            self.own.store(header::PARKED, self.parked);
        }
    }
}
