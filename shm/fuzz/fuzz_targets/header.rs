//! Any bytes as a header: an error, or a layout inside the object.
#![no_main]

use denizen_shm::header::{self, Identity, Role};
use denizen_shm::layout::{header as at, Geometry, Layout, HEADER_LEN};
use denizen_shm::memory::{HeapMemory, Memory};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let identity = Identity {
        instance: [1; 16],
        epoch: 1,
    };
    let check = |memory: &HeapMemory, len: usize| {
        if let Ok(layout) = header::read(memory, len, "object", Role::Requests, &identity) {
            assert!(layout.total <= len);
            assert!(layout.class_at.iter().all(|at| *at <= layout.total));
        }
    };
    let mut bytes = data.to_vec();
    bytes.resize(HEADER_LEN, 0);
    check(&HeapMemory::from_bytes(&bytes), HEADER_LEN);

    // A good header in which the geometry is the fuzzer's.
    let geometry = Geometry {
        ring: 1,
        returns: 0,
        slots: [0; 5],
    };
    let memory = HeapMemory::new(HEADER_LEN);
    header::write(
        &memory,
        Role::Requests,
        &identity,
        &Layout::new(geometry).unwrap(),
    );
    let end = at::CLASS_COUNTS + 40;
    for (place, word) in (at::RING_CAPACITY..end)
        .step_by(8)
        .zip(data.chunks_exact(8))
    {
        memory.store(place, u64::from_le_bytes(word.try_into().unwrap()));
    }
    if let Some(total) = data.last_chunk::<8>() {
        memory.store(at::TOTAL_LEN, u64::from_le_bytes(*total));
    }
    check(&memory, usize::MAX);
});
