//! One suite for every kind of doorbell.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use denizen_shm::{Doorbell, EventDoorbell, SemaphoreDoorbell};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
const NOT_AT_ALL: Option<Duration> = Some(Duration::ZERO);

/// `rings` and `waits` are the two ends of one bell.
fn conforms(rings: impl Doorbell + 'static, waits: impl Doorbell + 'static) {
    assert!(!waits.wait(NOT_AT_ALL).unwrap(), "silent at first");
    assert!(!waits.wait(Some(Duration::from_millis(3))).unwrap());

    rings.ring().unwrap();
    assert!(
        waits.wait(PATIENCE).unwrap(),
        "a ring before the wait is kept"
    );
    assert!(!waits.wait(NOT_AT_ALL).unwrap(), "the wait cleared it");

    for _ in 0..1000 {
        rings.ring().unwrap();
    }
    assert!(waits.wait(None).unwrap());
    assert!(
        !waits.wait(NOT_AT_ALL).unwrap(),
        "a thousand rings are one wake-up"
    );

    rings.ring().unwrap();
    waits.clear().unwrap();
    waits.clear().unwrap();
    assert!(!waits.wait(NOT_AT_ALL).unwrap(), "clear forgets");

    let (rings, waits) = (Arc::new(rings), Arc::new(waits));
    let sleeper = {
        let waits = Arc::clone(&waits);
        thread::spawn(move || waits.wait(PATIENCE))
    };
    rings.ring().unwrap();
    assert!(sleeper.join().unwrap().unwrap(), "a sleeper wakes");
}

#[test]
fn an_eventfd_conforms() {
    let waits = EventDoorbell::new().unwrap();
    let rings = EventDoorbell::from_fd(waits.as_fd().try_clone_to_owned().unwrap());
    conforms(rings, waits);
}

#[test]
fn a_named_semaphore_conforms() {
    let (waits, file) = SemaphoreDoorbell::create().unwrap();
    let name = file.semaphore_name().to_owned();
    let rings = SemaphoreDoorbell::open(&name).unwrap();
    conforms(rings, waits);
    drop(file);
    let error = SemaphoreDoorbell::open(&name).map(drop).unwrap_err();
    assert!(
        error.to_string().contains(&name),
        "gone with its file: {error}"
    );
    assert!(SemaphoreDoorbell::open("zero\0byte").is_err());
}

#[test]
fn a_semaphore_whose_name_is_gone_still_rings() {
    let (waits, file) = SemaphoreDoorbell::create().unwrap();
    let rings = SemaphoreDoorbell::open(file.semaphore_name()).unwrap();
    drop(file);
    conforms(rings, waits);
}

/// An eventfd whose counter is at its maximum, and any other, rings without blocking.
#[test]
fn a_ring_never_blocks() {
    let bell = EventDoorbell::new().unwrap();
    rustix::io::write(bell.as_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    bell.ring().unwrap();
    assert!(bell.wait(NOT_AT_ALL).unwrap());
    // The descriptor is not inherited by other processes.
    let flags = rustix::io::fcntl_getfd(bell.as_fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}
