//! Any bytes as a client's greeting, an attach message or an answer: an error, or one that survives encoding.
#![no_main]

use denizen_shm::{Answer, Attach, Hello};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(attach) = Attach::decode(data) {
        assert!(!attach.requests.contains('/') && !attach.results.contains('/'));
        assert_eq!(Attach::decode(&attach.encode()).unwrap(), attach);
    }
    if let Ok(hello) = Hello::decode(data) {
        assert_eq!(hello.encode(), data);
    }
    let _ = Answer::decode(data);
});
