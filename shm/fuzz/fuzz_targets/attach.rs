//! Any bytes as an attach message or an answer: an error, or one that survives encoding.
#![no_main]

use denizen_shm::{Answer, Attach};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(attach) = Attach::decode(data) {
        assert!(!attach.requests.contains('/') && !attach.results.contains('/'));
        assert_eq!(Attach::decode(&attach.encode()).unwrap(), attach);
    }
    let _ = Answer::decode(data);
});
