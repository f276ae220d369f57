//! Any bytes as a descriptor: an error, or one that survives encoding.
#![no_main]

use denizen_shm::layout::DESCRIPTOR_LEN;
use denizen_shm::Descriptor;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut bytes = [0; DESCRIPTOR_LEN];
    let len = data.len().min(DESCRIPTOR_LEN);
    bytes[..len].copy_from_slice(&data[..len]);
    if let Ok(descriptor) = Descriptor::decode(&bytes) {
        assert_eq!(
            Descriptor::decode(&descriptor.encode()).unwrap(),
            descriptor
        );
    }
});
