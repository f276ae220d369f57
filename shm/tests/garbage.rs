//! Nothing that a broken or hostile peer writes makes this side panic, read out of range or loop.

mod common;

use std::sync::Arc;

use common::{direction, layouts, pattern, EPOCH};
use denizen_shm::header::{self, Identity, Role};
use denizen_shm::layout::{header as at, slot, Geometry, Layout, DESCRIPTOR_LEN, HEADER_LEN};
use denizen_shm::memory::{HeapMemory, Memory};
use denizen_shm::{Answer, ArenaError, Attach, Descriptor, Hello};
use proptest::prelude::*;

const IDENTITY: Identity = Identity {
    instance: [3; 16],
    epoch: EPOCH,
};

fn read(memory: &HeapMemory, len: usize) -> Result<Layout, ArenaError> {
    header::read(memory, len, "object", Role::Results, &IDENTITY)
}

/// Numbers near the borders, and any.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..10,
        Just(u64::MAX),
        Just(u64::from(u32::MAX)),
        (0u32..64).prop_map(|bit| 1 << bit),
        any::<u64>(),
    ]
}

fn good_header() -> (HeapMemory, Layout) {
    let layout = Layout::new(Geometry {
        ring: 4,
        returns: 3,
        slots: [2, 1, 0, 0, 0],
    })
    .unwrap();
    let memory = HeapMemory::new(layout.total);
    header::write(&memory, Role::Results, &IDENTITY, &layout);
    (memory, layout)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 600 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_random_header_is_refused(bytes in proptest::collection::vec(any::<u8>(), HEADER_LEN)) {
        prop_assert!(read(&HeapMemory::from_bytes(&bytes), HEADER_LEN).is_err());
    }

    /// A good header with one word changed is refused, or describes an object that ends where this one does (unused
    /// bytes before a page border leave some room).
    #[test]
    fn a_header_with_one_bad_word_is_refused(word in 0usize..40, value in number()) {
        let (memory, layout) = good_header();
        prop_assert_eq!(read(&memory, layout.total).unwrap(), layout);
        memory.store(word * 8, value);
        if let Ok(found) = read(&memory, layout.total) {
            prop_assert_eq!(found.total, layout.total);
        }
    }

    #[test]
    fn a_short_object_is_refused(len in 0usize..200_000) {
        let (memory, layout) = good_header();
        prop_assert_eq!(read(&memory, len).is_ok(), len >= layout.total);
    }

    #[test]
    fn descriptor_decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), DESCRIPTOR_LEN)) {
        let mut bytes: [u8; DESCRIPTOR_LEN] = bytes.try_into().unwrap();
        let _ = Descriptor::decode(&bytes);
        // Past the first checks: kind and flags right, lengths random.
        let flags = bytes[10] & 7;
        bytes[8..12].copy_from_slice(&[1, 0, flags, 0]);
        if let Ok(descriptor) = Descriptor::decode(&bytes) {
            let _ = Descriptor::decode(&descriptor.encode()).unwrap();
        }
    }

    #[test]
    fn attach_and_answer_decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Attach::decode(&bytes);
        let _ = Answer::decode(&bytes);
        if let Ok(hello) = Hello::decode(&bytes) {
            prop_assert_eq!(hello.encode(), bytes);
        }
    }

    /// Cutting or changing a good attach message gives an error, or the same meaning, or other well-formed names.
    #[test]
    fn a_damaged_attach_message_never_panics(
        cut in 0usize..200,
        place in 0usize..120,
        value in any::<u8>(),
        client in any::<bool>(),
    ) {
        let attach = Attach {
            identity: IDENTITY,
            requests: "denizen-0-1-req".into(),
            results: "denizen-0-1-res".into(),
            bell: client.then(|| "denizen-0-1-bell".into()),
        };
        let mut packet = attach.encode();
        prop_assert_eq!(&Attach::decode(&packet).unwrap(), &attach);
        if cut < packet.len() {
            // Without its last name a client's message is a worker's.
            let workers = Attach { bell: None, ..attach }.encode();
            let whole = cut == workers.len();
            prop_assert_eq!(Attach::decode(&packet[..cut]).is_ok(), whole);
        }
        let place = place % packet.len();
        packet[place] = value;
        if let Ok(found) = Attach::decode(&packet) {
            for name in [found.requests, found.results].into_iter().chain(found.bell) {
                prop_assert!(name.starts_with("denizen-") && !name.contains('/'));
            }
        }
    }

    /// Words of the peer's object changed at random under a receiver with messages waiting.
    #[test]
    fn a_receiver_survives_a_peer_that_scribbles(
        scribbles in proptest::collection::vec((0usize..400, number()), 1..6),
    ) {
        let (own_layout, peer_layout) = layouts(4, [4, 1, 0, 0, 0]);
        let own = Arc::new(HeapMemory::new(own_layout.total));
        let peer = Arc::new(HeapMemory::new(peer_layout.total));
        let (mut sender, mut receiver) = direction(Arc::clone(&own), own_layout, peer, peer_layout);
        sender.send(&pattern(1, 10_000), None).unwrap();
        sender.send(&pattern(2, 100), Some(&pattern(3, 5_000))).unwrap();
        for (place, value) in scribbles {
            let at = match place {
                0 => at::TAIL,
                1 => at::RETURNS_HEAD,
                // Ring and slots table.
                _ => HEADER_LEN + (place * 8) % (own_layout.class_at[0] - HEADER_LEN),
            };
            own.store(at, value);
        }
        for _ in 0..6 {
            match receiver.try_recv() {
                Ok(Some(message)) => prop_assert!(message.envelope.len() as u64 <= own_layout.slab_bytes()),
                Ok(None) => break,
                Err(error) => {
                    prop_assert!(matches!(error, ArenaError::Corrupt(_)), "{error}");
                    prop_assert!(receiver.try_recv().is_err(), "nothing more is read from a broken peer");
                }
            }
        }
    }

    /// Words of the receiver's object changed at random under a sender.
    #[test]
    fn a_sender_survives_a_peer_that_scribbles(
        head in number(),
        tail in number(),
        returns in proptest::collection::vec(number(), 5),
    ) {
        let (own_layout, peer_layout) = layouts(4, [4, 1, 0, 0, 0]);
        let own = HeapMemory::new(own_layout.total);
        let peer = Arc::new(HeapMemory::new(peer_layout.total));
        let (mut sender, _) = direction(Arc::new(own), own_layout, Arc::clone(&peer), peer_layout);
        let total = sender.slab().free_bytes();
        sender.send(&pattern(1, 10_000), None).unwrap();
        for (position, word) in returns.into_iter().enumerate() {
            peer.store(peer_layout.return_word(position as u64), word);
        }
        peer.store(at::RETURNS_TAIL, tail);
        peer.store(at::HEAD, head);
        for _ in 0..6 {
            let _ = sender.send(&pattern(1, 5_000), None);
            prop_assert!(sender.slab().free_bytes() <= total);
        }
    }
}

/// A chain that leads back to itself ends when the length is filled.
#[test]
fn a_cyclic_chain_ends() {
    let (own_layout, peer_layout) = layouts(2, [2, 0, 0, 0, 0]);
    let own = Arc::new(HeapMemory::new(own_layout.total));
    let peer = Arc::new(HeapMemory::new(peer_layout.total));
    let (mut sender, mut receiver) = direction(Arc::clone(&own), own_layout, peer, peer_layout);
    sender.send(&pattern(1, 8000), None).unwrap();
    let second = own.load(own_layout.slot_entry(0, 0) + slot::NEXT);
    own.store(own_layout.slot_entry(0, 1) + slot::NEXT, second);
    assert_eq!(receiver.try_recv().unwrap().unwrap().envelope.len(), 8000);
}

/// A slot handed back twice is freed once, and counted.
#[test]
fn a_slot_handed_back_twice_is_freed_once() {
    let (own_layout, peer_layout) = layouts(2, [3, 0, 0, 0, 0]);
    let own = Arc::new(HeapMemory::new(own_layout.total));
    let peer = Arc::new(HeapMemory::new(peer_layout.total));
    let (mut sender, mut receiver) = direction(own, own_layout, Arc::clone(&peer), peer_layout);
    sender.send(&pattern(1, 1000), None).unwrap();
    receiver.try_recv().unwrap().unwrap();
    let word = peer.load(peer_layout.return_word(0));
    peer.store(peer_layout.return_word(1), word);
    peer.store(at::RETURNS_TAIL, 2);
    sender.take_returns().unwrap();
    assert_eq!(sender.bad_returns(), 1);
    assert_eq!(sender.slab().free_bytes(), own_layout.slab_bytes());
}

/// A pair restarted under a living reader: the old objects' entries are never taken for the new epoch's.
#[test]
fn an_entry_of_another_epoch_is_refused() {
    let (own_layout, peer_layout) = layouts(2, [0; 5]);
    let own = Arc::new(HeapMemory::new(own_layout.total));
    let peer = Arc::new(HeapMemory::new(peer_layout.total));
    let (mut sender, _) = direction(Arc::clone(&own), own_layout, Arc::clone(&peer), peer_layout);
    sender.send(b"old", None).unwrap();
    let mut later =
        denizen_shm::receiver::Receiver::new(peer, own, peer_layout, own_layout, EPOCH + 1);
    let error = later.try_recv().unwrap_err().to_string();
    assert!(error.contains("epoch 8"), "{error}");
}
