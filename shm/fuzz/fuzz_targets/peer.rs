//! A live direction whose shared words the fuzzer overwrites between operations, on both sides.
#![no_main]

use std::sync::Arc;

use denizen_shm::layout::{header as at, Geometry, Layout, HEADER_LEN};
use denizen_shm::memory::{HeapMemory, Memory};
use denizen_shm::receiver::Receiver;
use denizen_shm::sender::Sender;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let slots = [3, 1, 0, 0, 0];
    let layout = |ring, returns, slots| {
        Layout::new(Geometry {
            ring,
            returns,
            slots,
        })
        .unwrap()
    };
    let (own_layout, peer_layout) = (layout(4, 0, slots), layout(1, 4, [0; 5]));
    let own = Arc::new(HeapMemory::new(own_layout.total));
    let peer = Arc::new(HeapMemory::new(peer_layout.total));
    let mut sender = Sender::new(own.clone(), peer.clone(), own_layout, peer_layout, 1);
    let mut receiver = Receiver::new(peer.clone(), own.clone(), peer_layout, own_layout, 1);
    let total = sender.slab().free_bytes();
    for step in data.chunks_exact(11) {
        let place = usize::from(u16::from_le_bytes([step[1], step[2]]));
        let value = u64::from_le_bytes(step[3..].try_into().unwrap());
        match step[0] % 8 {
            0 => own.store(at::TAIL, value),
            1 => own.store(
                HEADER_LEN + (place * 8) % (own_layout.class_at[0] - HEADER_LEN),
                value,
            ),
            2 => peer.store(at::HEAD, value),
            3 => peer.store(at::RETURNS_TAIL, value),
            4 => peer.store(peer_layout.return_word(place as u64), value),
            5 | 6 => {
                let _ = sender.send(
                    &vec![7; place % 50_000],
                    (step[0] > 127).then_some(&[8; 300][..]),
                );
            }
            _ => {
                if let Ok(Some(message)) = receiver.try_recv() {
                    assert!(message.envelope.len() as u64 <= total);
                }
            }
        }
        assert!(sender.slab().free_bytes() <= total);
    }
});
