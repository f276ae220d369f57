//! The producer's half of a direction: ring, slab and the decision to ring the doorbell.

use crate::descriptor::{stamp, Descriptor, Part};
use crate::failpoint::failpoint;
use crate::layout::{descriptor, header, Layout, INLINE_LEN};
use crate::memory::Memory;
use crate::slab::{BlobRef, Refused, Slab};

/// Why nothing was sent. The endpoint adds who the peer is.
#[derive(Debug, PartialEq, Eq)]
pub enum Unsent {
    RingFull { capacity: u64 },
    SlabFull { need: u64, free: u64, total: u64 },
    TooLarge { len: u64, max: u64 },
    Corrupt(String),
}

/// Publishes messages in `own`, reads the peer's position, parked flag and returned slots in `peer`.
pub struct Sender<O, P> {
    own: O,
    peer: P,
    layout: Layout,
    peer_layout: Layout,
    epoch: u64,
    tail: u64,
    returns_head: u64,
    rung: u64,
    slab: Slab,
    bad_returns: u64,
}

impl<O: Memory, P: Memory> Sender<O, P> {
    /// Start with an empty ring; `own` must be fresh.
    pub fn new(own: O, peer: P, layout: Layout, peer_layout: Layout, epoch: u64) -> Self {
        let slab = Slab::new(&own, layout);
        Sender {
            own,
            peer,
            layout,
            peer_layout,
            epoch,
            tail: 0,
            returns_head: 0,
            rung: 0,
            slab,
            bad_returns: 0,
        }
    }

    /// Publish one message. `Ok(true)`: the peer is parked, ring its doorbell.
    pub fn send(
        &mut self,
        envelope: &[u8],
        attachment: Option<&[u8]>,
    ) -> std::result::Result<bool, Unsent> {
        let capacity = self.layout.geometry.ring as u64;
        if self.depth()? >= capacity {
            return Err(Unsent::RingFull { capacity });
        }
        self.take_returns()?;

        let mut inline = Vec::with_capacity(INLINE_LEN);
        let envelope_part = self.place(envelope, &mut inline)?;
        let attachment_part = match attachment.map(|bytes| self.place(bytes, &mut inline)) {
            None => None,
            Some(Ok(part)) => Some(part),
            Some(Err(refused)) => {
                if let Part::Blob { first, .. } = envelope_part {
                    self.slab.unstore(&self.own, first);
                }
                return Err(refused);
            }
        };
        failpoint("send.stored");
        let mut bytes = Descriptor {
            stamp: stamp(self.epoch, self.tail),
            envelope: envelope_part,
            attachment: attachment_part,
        }
        .encode();
        bytes[descriptor::INLINE..descriptor::INLINE + inline.len()].copy_from_slice(&inline);
        self.own.write(self.layout.descriptor(self.tail), &bytes);
        failpoint("send.written");
        self.tail = self.tail.wrapping_add(1);
        self.own.store(header::TAIL, self.tail);
        failpoint("send.published");

        // Store tail, fence, load parked here; store parked, fence, load tail in `Receiver::arm`. One of the two sides
        // sees the other's store, so that no message waits while its reader sleeps.
        self.own.fence();
        let parked = self.peer.load(header::PARKED);
        let ring = parked % 2 == 1 && parked != self.rung;
        if ring {
            // The flag is the peer's to clear. Once for each time it parked is enough, as a doorbell keeps its ring.
            self.rung = parked;
        }
        Ok(ring)
    }

    /// Put `bytes` into the inline part if they fit, else into the slab.
    fn place(&mut self, bytes: &[u8], inline: &mut Vec<u8>) -> std::result::Result<Part, Unsent> {
        if inline.len() + bytes.len() <= INLINE_LEN {
            inline.extend_from_slice(bytes);
            return Ok(Part::Inline(bytes.len()));
        }
        let len = bytes.len() as u64;
        let total = self.layout.slab_bytes();
        match self.slab.store(&self.own, bytes) {
            Ok(first) => Ok(Part::Blob { first, len }),
            Err(Refused::Full { free }) => Err(Unsent::SlabFull {
                need: len,
                free,
                total,
            }),
            Err(Refused::TooLarge) => Err(Unsent::TooLarge { len, max: total }),
        }
    }

    /// Messages that the peer has not taken.
    pub fn depth(&self) -> std::result::Result<u64, Unsent> {
        let head = self.peer.load(header::HEAD);
        let depth = self.tail.wrapping_sub(head);
        if depth > self.layout.geometry.ring as u64 {
            return Err(Unsent::Corrupt(format!(
                "read position {head} while {} messages were written",
                self.tail
            )));
        }
        Ok(depth)
    }

    /// Free the slots that the peer has handed back.
    pub fn take_returns(&mut self) -> std::result::Result<(), Unsent> {
        let tail = self.peer.load(header::RETURNS_TAIL);
        let count = tail.wrapping_sub(self.returns_head);
        if count == 0 {
            return Ok(());
        }
        if count > self.peer_layout.geometry.returns as u64 {
            return Err(Unsent::Corrupt(format!(
                "{count} slots handed back at once"
            )));
        }
        for _ in 0..count {
            let word = self
                .peer
                .load(self.peer_layout.return_word(self.returns_head));
            if !self.slab.release(&self.own, BlobRef::unpack(word)) {
                self.bad_returns += 1;
            }
            self.returns_head = self.returns_head.wrapping_add(1);
        }
        self.own.store(header::RETURNS_HEAD, self.returns_head);
        Ok(())
    }

    /// The private book of the slab.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// References that the peer handed back without holding them.
    pub fn bad_returns(&self) -> u64 {
        self.bad_returns
    }
}
