//! Every interleaving of the protocol's two sides, under the C11 memory model, by loom.
//!
//! [`Modelled`] is the arena's `Memory` with loom's atomics as words. Bulk bytes are tracked as blocks: loom fails the
//! test if one side writes a block while the other may read it, so a missing release or acquire cannot go unnoticed.

// Loom runs all "threads" of a model on one, and its cells are not `Sync`.
#![allow(clippy::arc_with_non_send_sync)]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{direction, layouts, pattern, Direction, EPOCH};
use denizen_shm::header::{self, state, Identity, Role};
use denizen_shm::layout::{header as at, Layout, DESCRIPTOR_LEN, HEADER_LEN};
use denizen_shm::memory::Memory;
use denizen_shm::sender::Unsent;
use denizen_shm::ArenaError;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex as LoomMutex};
use loom::thread;

struct Modelled {
    words: BTreeMap<usize, AtomicU64>,
    blocks: BTreeMap<usize, UnsafeCell<()>>,
    bytes: Mutex<Vec<u8>>,
}

impl Modelled {
    fn new(layout: &Layout) -> Self {
        let geometry = &layout.geometry;
        let mut words: Vec<usize> = denizen_shm::layout::FIELDS
            .iter()
            .filter(|field| field.name.starts_with("header."))
            .flat_map(|field| (field.offset..field.offset + field.size).step_by(8))
            .collect();
        words.extend(
            (layout.returns_at..layout.class_at[0])
                .step_by(8)
                .take(geometry.returns + 2 * geometry.slot_count()),
        );
        let ring = (0..geometry.ring).map(|i| HEADER_LEN + i * DESCRIPTOR_LEN);
        let slots = (0..geometry.slots.len())
            .flat_map(|class| (0..geometry.slots[class]).map(move |index| (class, index)))
            .map(|(class, index)| layout.slot_bytes(class, index));
        Modelled {
            words: words
                .into_iter()
                .map(|at| (at, AtomicU64::new(0)))
                .collect(),
            blocks: ring
                .chain(slots)
                .map(|at| (at, UnsafeCell::new(())))
                .collect(),
            bytes: Mutex::new(vec![0; layout.total]),
        }
    }
}

impl Memory for Modelled {
    fn load(&self, at: usize) -> u64 {
        // As the real mapping does it.
        let value = self.words[&at].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    fn store(&self, at: usize, value: u64) {
        self.words[&at].store(value, Ordering::Release);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.blocks[&at]
            .with(|_| into.copy_from_slice(&self.bytes.lock().unwrap()[at..][..into.len()]));
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.blocks[&at]
            .with_mut(|_| self.bytes.lock().unwrap()[at..][..from.len()].copy_from_slice(from));
    }
}

fn modelled(ring: usize, slots: [usize; 5]) -> Direction<Modelled> {
    let (own, peer) = layouts(ring, slots);
    direction(Modelled::new(&own), own, Modelled::new(&peer), peer)
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Three forced switches find every known kind of lost wake-up; more only take longer.
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A doorbell keeps its ring until cleared, like an eventfd.
#[derive(Default)]
struct Bell(LoomMutex<bool>, Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !*rung {
            rung = self.1.wait(rung).unwrap();
        }
    }

    fn clear(&self) {
        *self.0.lock().unwrap() = false;
    }
}

#[test]
fn published_messages_arrive_whole_and_in_order() {
    check(|| {
        let (mut sender, mut receiver) = modelled(1, [0; 5]);
        let producer = thread::spawn(move || {
            for number in 0..2 {
                while let Err(unsent) = sender.send(&[number; 40], None) {
                    assert_eq!(unsent, Unsent::RingFull { capacity: 1 });
                    thread::yield_now();
                }
            }
        });
        for number in 0..2 {
            let message = loop {
                match receiver.try_recv().unwrap() {
                    Some(message) => break message,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(message.envelope, [number; 40]);
        }
        producer.join().unwrap();
    });
}

/// A lost wake-up leaves the consumer waiting for ever, which loom reports as a deadlock.
#[test]
fn a_parked_consumer_is_woken() {
    check(|| {
        let (mut sender, mut receiver) = modelled(2, [0; 5]);
        let bell = Arc::new(Bell::default());
        let ringer = Arc::clone(&bell);
        let producer = thread::spawn(move || {
            for number in 0..2 {
                if sender.send(&[number], None).unwrap() {
                    ringer.ring();
                }
            }
        });
        let mut next = 0;
        while next < 2 {
            if let Some(message) = receiver.try_recv().unwrap() {
                assert_eq!(message.envelope, [next]);
                next += 1;
            } else if receiver.arm().unwrap() {
                bell.wait();
                receiver.disarm();
                bell.clear();
            }
        }
        producer.join().unwrap();
    });
}

/// As above, when the first sleep ends for another reason (timeout, signal, socket), so that a ring meant for it may
/// come late.
#[test]
fn a_consumer_that_parks_again_is_woken() {
    check(|| {
        let (mut sender, mut receiver) = modelled(2, [0; 5]);
        let bell = Arc::new(Bell::default());
        let ringer = Arc::clone(&bell);
        let producer = thread::spawn(move || {
            if sender.send(b"only", None).unwrap() {
                ringer.ring();
            }
        });
        if receiver.arm().unwrap() {
            receiver.disarm();
            bell.clear();
        }
        loop {
            if receiver.try_recv().unwrap().is_some() {
                break;
            }
            if receiver.arm().unwrap() {
                bell.wait();
                receiver.disarm();
                bell.clear();
            }
        }
        producer.join().unwrap();
    });
}

/// The one slot is rewritten only after the reader has copied it and handed it back.
#[test]
fn a_returned_slot_is_reused_without_a_race() {
    check(|| {
        let (mut sender, mut receiver) = modelled(2, [1, 0, 0, 0, 0]);
        let producer = thread::spawn(move || {
            for seed in 0..2 {
                let payload = pattern(seed, 300);
                while let Err(unsent) = sender.send(&payload, None) {
                    assert!(matches!(unsent, Unsent::SlabFull { .. }), "{unsent:?}");
                    thread::yield_now();
                }
            }
        });
        for seed in 0..2 {
            let message = loop {
                match receiver.try_recv().unwrap() {
                    Some(message) => break message,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(message.envelope, pattern(seed, 300));
        }
        producer.join().unwrap();
    });
}

/// Whoever sees that the writer has closed finds everything it published before.
#[test]
fn nothing_published_before_a_close_is_missed() {
    check(|| {
        let (own_layout, peer_layout) = layouts(1, [0; 5]);
        let own = Arc::new(Modelled::new(&own_layout));
        let peer = Arc::new(Modelled::new(&peer_layout));
        let (mut sender, mut receiver) =
            direction(Arc::clone(&own), own_layout, Arc::clone(&peer), peer_layout);
        let writer = Arc::clone(&own);
        let producer = thread::spawn(move || {
            sender.send(b"last", None).unwrap();
            writer.store(at::STATE, state::CLOSED);
        });
        let closed = own.load(at::STATE) == state::CLOSED;
        let found = receiver.try_recv().unwrap().is_some();
        assert!(found || !closed);
        producer.join().unwrap();
    });
}

/// A reader of an object whose header is being written sees none of it, or all of it, and never another epoch's.
#[test]
fn a_header_is_seen_whole_with_its_epoch() {
    check(|| {
        let (layout, _) = layouts(1, [0; 5]);
        let memory = Arc::new(Modelled::new(&layout));
        let identity = |epoch| Identity {
            instance: [9; 16],
            epoch,
        };
        let writer = Arc::clone(&memory);
        let creator = thread::spawn(move || {
            header::write(&writer, Role::Requests, &identity(EPOCH), &layout);
        });
        let read = |epoch| {
            header::read(
                &memory,
                layout.total,
                "object",
                Role::Requests,
                &identity(epoch),
            )
        };
        match read(EPOCH) {
            Ok(found) => assert_eq!(found, layout),
            Err(ArenaError::BadObject { reason, .. }) => {
                assert!(reason.contains("never completed"), "{reason}");
            }
            Err(other) => panic!("{other}"),
        }
        match read(EPOCH + 1) {
            Err(ArenaError::EpochMismatch { theirs, .. }) => assert_eq!(theirs, EPOCH),
            Err(ArenaError::BadObject { reason, .. }) => {
                assert!(reason.contains("never completed"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        creator.join().unwrap();
    });
}
