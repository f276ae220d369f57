//! Both ends of a real pair in one process: real objects, mappings, doorbells, socket.

mod common;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::pattern;
use denizen_shm::{ArenaError, Config, Direction, HostEnd, Link, PeerEnd, Phase};
use rustix::event::{PollFd, PollFlags};

const PATIENCE: Duration = Duration::from_secs(20);

fn small(name: &str) -> Config {
    Config {
        peer_name: name.into(),
        epoch: 5,
        requests: Direction {
            ring: 4,
            slots: [3, 1, 0, 0, 0],
        },
        results: Direction {
            ring: 8,
            slots: [4, 1, 0, 0, 0],
        },
    }
}

fn pair(config: &Config) -> (HostEnd, PeerEnd) {
    let (host, child) = HostEnd::create(config).unwrap();
    let peer = PeerEnd::attach(child.into_fd()).unwrap();
    assert_eq!(host.poll_socket().unwrap(), Link::Up);
    (host, peer)
}

fn exists(name: &str) -> bool {
    Path::new("/dev/shm").join(name).exists()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        thread::yield_now();
    }
}

#[test]
fn messages_travel_both_ways() {
    let (host, peer) = pair(&small("w"));
    for len in [0, 1, 207, 208, 209, 4096, 4097, 30_000, 44_000] {
        let envelope = pattern(len as u64, len);
        host.send(&envelope, None).unwrap();
        let message = peer.try_recv().unwrap().unwrap();
        assert_eq!(
            (message.envelope, message.attachment),
            (envelope.clone(), None)
        );
        peer.send(b"reply", Some(&envelope)).unwrap();
        let message = host.try_recv().unwrap().unwrap();
        assert_eq!(message.envelope, b"reply");
        assert_eq!(message.attachment, Some(envelope));
    }
    assert_eq!(host.stats().slots_in_use, 0);
    assert_eq!(peer.stats().slots_in_use, 0);
    assert_eq!(host.try_recv().unwrap(), None);
}

#[test]
fn names_vanish_as_soon_as_the_peer_has_attached() {
    let (host, child) = HostEnd::create(&small("w")).unwrap();
    let (requests, results) = (host.names().0.to_string(), host.names().1.to_string());
    assert!(exists(&requests) && exists(&results));
    assert_eq!(host.poll_socket().unwrap(), Link::Waiting);
    let peer = PeerEnd::attach(child.into_fd()).unwrap();
    assert_eq!(host.poll_socket().unwrap(), Link::Up);
    assert!(!exists(&requests) && !exists(&results));
    host.send(b"the memory lives on", None).unwrap();
    assert!(peer.try_recv().unwrap().is_some());
}

#[test]
fn names_vanish_when_the_peer_never_attaches() {
    let (host, child) = HostEnd::create(&small("w")).unwrap();
    let requests = host.names().0.to_string();
    drop(child);
    assert_eq!(host.poll_socket().unwrap(), Link::Gone);
    assert!(!exists(&requests));

    let (host, _child) = HostEnd::create(&small("w")).unwrap();
    let results = host.names().1.to_string();
    drop(host);
    assert!(!exists(&results));
}

#[test]
fn what_was_sent_before_attaching_arrives() {
    let (host, child) = HostEnd::create(&small("w")).unwrap();
    host.send(b"early", None).unwrap();
    let peer = PeerEnd::attach(child.into_fd()).unwrap();
    assert_eq!(peer.recv(9, None).unwrap()[0].envelope, b"early");
}

/// The message of a full ring names peer, pid, queue depth and the age of the heartbeat.
#[test]
fn a_full_ring_says_who_does_not_read() {
    let (host, peer) = pair(&small("worker 3"));
    for _ in 0..4 {
        host.send(b"x", None).unwrap();
    }
    let error = host.send(b"x", None).unwrap_err();
    assert!(!error.retryable());
    let text = error.to_string();
    let pid = format!("pid {}", std::process::id());
    for part in ["worker 3", &pid, "4 queued", "heartbeat", "ring"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    peer.try_recv().unwrap();
    host.send(b"x", None).unwrap();
    assert_eq!(host.stats().ring_full, 1);
}

#[test]
fn a_full_slab_is_retryable_and_takes_nothing() {
    let (host, peer) = pair(&small("w"));
    let big = pattern(1, 40_000);
    host.send(&big, None).unwrap();
    let before = host.stats();
    let error = host.send(&pattern(2, 300), Some(&big)).unwrap_err();
    assert!(
        matches!(error, ArenaError::SlabFull { .. }) && error.retryable(),
        "{error}"
    );
    assert_eq!(host.stats().slots_in_use, before.slots_in_use);
    assert_eq!(peer.try_recv().unwrap().unwrap().envelope, big);
    host.send(&big, None).unwrap();
    let error = host.send(&pattern(1, 1 << 20), None).unwrap_err();
    assert!(
        matches!(error, ArenaError::TooLarge { .. }) && !error.retryable(),
        "{error}"
    );
}

/// Consumer sleeps, producer sends, over and over with no pause that would hide a race.
#[test]
fn no_wake_up_is_lost() {
    let (host, peer) = pair(&Config::text("w", 1));
    let rounds = 20_000u64;
    let consumer = thread::spawn(move || {
        for round in 0..rounds {
            let messages = peer.recv(1, Some(PATIENCE)).unwrap();
            let number = u64::from_le_bytes(messages[0].envelope[..].try_into().unwrap());
            assert_eq!(
                number, round,
                "no message, or a wrong one, within {PATIENCE:?}"
            );
            peer.send(&messages[0].envelope, None).unwrap();
        }
        peer
    });
    for round in 0..rounds {
        host.send(&round.to_le_bytes(), None).unwrap();
        let messages = host.recv(1, Some(PATIENCE)).unwrap();
        assert_eq!(messages[0].envelope, round.to_le_bytes());
    }
    let peer = consumer.join().unwrap();
    assert!(peer.stats().sleeps > 0);
}

/// The pattern of the crate's documentation, with `poll` in place of tokio.
#[test]
fn an_event_loop_that_arms_before_it_polls_misses_nothing() {
    let (host, peer) = pair(&small("w"));
    let total = 20_000u64;
    let producer = thread::spawn(move || {
        for number in 0..total {
            loop {
                match peer.send(&number.to_le_bytes(), None) {
                    Ok(()) => break,
                    Err(ArenaError::RingFull { .. }) => thread::yield_now(),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    });
    let mut next = 0u64;
    let link = 'consume: loop {
        while let Some(message) = host.try_recv().unwrap() {
            assert_eq!(message.envelope, next.to_le_bytes());
            next += 1;
        }
        if !host.arm().unwrap() {
            continue;
        }
        let (bell, socket) = (host.doorbell_fd(), host.socket_fd());
        let mut fds = [
            PollFd::new(&bell, PollFlags::IN),
            PollFd::new(&socket, PollFlags::IN),
        ];
        let timeout = rustix::event::Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert!(
            rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0,
            "lost wake-up"
        );
        let socket_ready = !fds[1].revents().is_empty();
        host.disarm().unwrap();
        if socket_ready {
            let link = host.poll_socket().unwrap();
            if link == Link::Gone {
                break 'consume link;
            }
        }
    };
    while let Some(message) = host.try_recv().unwrap() {
        assert_eq!(message.envelope, next.to_le_bytes());
        next += 1;
    }
    assert_eq!((next, link), (total, Link::Gone));
    producer.join().unwrap();
}

#[test]
fn a_closed_peer_is_seen_after_its_last_message() {
    let (host, peer) = pair(&small("w"));
    peer.send(b"last", None).unwrap();
    peer.close();
    assert_eq!(host.recv(9, None).unwrap()[0].envelope, b"last");
    let error = host.recv(9, None).unwrap_err();
    assert!(error.to_string().contains("closed the arena"), "{error}");
    let error = host.send(b"x", None).unwrap_err();
    assert!(matches!(error, ArenaError::PeerGone { .. }), "{error}");
}

#[test]
fn wake_and_close_end_a_blocked_receive() {
    let (_host, peer) = pair(&small("w"));
    let peer = Arc::new(peer);
    let blocked = {
        let peer = Arc::clone(&peer);
        thread::spawn(move || (peer.recv(9, None), peer.recv(9, None)))
    };
    until("the first sleep", || peer_sleeps(&peer) == 1);
    peer.wake().unwrap();
    until("the second sleep", || peer_sleeps(&peer) == 2);
    peer.close();
    let (woken, closed) = blocked.join().unwrap();
    assert_eq!(woken.unwrap(), []);
    assert!(matches!(closed, Err(ArenaError::Closed)));
}

fn peer_sleeps(peer: &PeerEnd) -> u64 {
    peer.stats().sleeps
}

#[test]
fn a_receive_without_messages_times_out() {
    let (host, _peer) = pair(&small("w"));
    assert_eq!(host.recv(9, Some(Duration::ZERO)).unwrap(), []);
    assert_eq!(host.recv(9, Some(Duration::from_millis(5))).unwrap(), []);
}

#[test]
fn the_heartbeat_tells_beat_and_phase() {
    let (host, child) = HostEnd::create(&small("w")).unwrap();
    let beat = host.heartbeat();
    assert_eq!((beat.beat_age, beat.phase), (None, None));
    let peer = PeerEnd::attach(child.into_fd()).unwrap();
    assert_eq!(host.heartbeat().phase, Some(Phase::Load));
    peer.set_phase(Phase::Decode).unwrap();
    assert_eq!(host.heartbeat().phase, Some(Phase::Decode));
    let first = host.heartbeat();
    until("a later beat", || {
        host.heartbeat().beat_age < first.beat_age
    });
    until("the phase to age", || {
        host.heartbeat().phase_age > first.phase_age
    });
}

#[test]
fn attaching_to_nothing_is_an_error() {
    let error = PeerEnd::attach_inherited(0).map(drop).unwrap_err();
    assert!(
        error.to_string().contains("cannot be an inherited socket"),
        "{error}"
    );
    let error = PeerEnd::attach_inherited(987).map(drop).unwrap_err();
    assert!(error.to_string().contains("was not inherited"), "{error}");
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = PeerEnd::attach(file.as_fd().try_clone_to_owned().unwrap())
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("not a socket"), "{error}");
    let (host, child) = HostEnd::create(&small("w")).unwrap();
    drop(host);
    let error = PeerEnd::attach(child.into_fd()).map(drop).unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}

#[test]
fn a_pair_that_cannot_be_made_is_refused() {
    let mut config = small("w");
    config.requests.ring = 0;
    assert!(matches!(
        HostEnd::create(&config).map(drop),
        Err(ArenaError::Config(_))
    ));
    config = small("w");
    config.results.slots[4] = usize::MAX;
    assert!(matches!(
        HostEnd::create(&config).map(drop),
        Err(ArenaError::Config(_))
    ));
}
