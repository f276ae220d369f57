//! Threads that wait for their calls, of which one receives for all.

use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use denizen_shm::{ArenaError, Config, Direction, HostEnd, Inbox, PeerEnd, Protocol, Taken};

const PATIENCE: Duration = Duration::from_secs(20);
const LIMIT: usize = 1 << 20;

/// Envelopes are the call's number and the message's; 0xff is nobody's.
const PROTOCOL: Protocol = Protocol {
    call_of: |envelope| {
        let (&call, _) = envelope.split_first()?;
        (call != 0xff).then_some(call.into())
    },
    cancel: |call| vec![b'c', call as u8],
};

struct Pair {
    host: HostEnd,
    peer: PeerEnd,
    inbox: Arc<Inbox>,
}

fn pair() -> Pair {
    let config = Config {
        peer_name: "client".into(),
        epoch: 1,
        requests: Direction {
            ring: 64,
            slots: [8, 4, 1, 0, 0],
        },
        results: Direction {
            ring: 4,
            slots: [3, 0, 0, 0, 0],
        },
    };
    let (host, child) = HostEnd::create(&config).unwrap();
    let peer = PeerEnd::attach(child.into_fd()).unwrap();
    host.poll_socket().unwrap();
    let inbox = peer.inbox(PROTOCOL);
    Pair { host, peer, inbox }
}

/// What a thread says, long before it would give up waiting by itself.
fn soon<T>(said: &Receiver<T>) -> T {
    said.recv_timeout(PATIENCE / 2).expect("it waits too long")
}

impl Pair {
    /// A thread that waits for a call.
    fn waits<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        call: u64,
    ) -> Receiver<Result<Taken, ArenaError>> {
        let (say, said) = channel();
        scope.spawn(move || say.send(self.inbox.take(call, Some(PATIENCE))));
        said
    }

    /// A thread that waits for a call and receives for all: it sleeps on the doorbell.
    fn leads<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        call: u64,
    ) -> Receiver<Result<Taken, ArenaError>> {
        let before = self.peer.stats().sleeps;
        let said = self.waits(scope, call);
        let deadline = Instant::now() + PATIENCE;
        while self.peer.stats().sleeps == before {
            assert!(Instant::now() < deadline, "it does not sleep");
            thread::yield_now();
        }
        said
    }

    fn say(&self, call: u8, number: u8) {
        self.host.send(&[call, number], None).unwrap();
    }

    /// Numbers of the messages that come for a call next; none if nothing comes within `wait`.
    fn take(&self, call: u64, wait: Duration) -> Vec<u8> {
        numbers(self.inbox.take(call, Some(wait)).unwrap())
    }

    fn heard(&self) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(message) = self.host.try_recv().unwrap() {
                return message.envelope;
            }
            assert!(Instant::now() < deadline, "nothing was heard");
            thread::yield_now();
        }
    }
}

fn numbers(taken: Taken) -> Vec<u8> {
    match taken {
        Taken::Messages(messages) => messages.iter().map(|message| message.envelope[1]).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_call_gets_its_own_in_order() {
    let pair = pair();
    pair.inbox.open(1, LIMIT).unwrap();
    pair.inbox.open(2, LIMIT).unwrap();
    for number in 0..10 {
        pair.say(1 + number % 2, number);
    }
    pair.say(3, 0); // of no open call
    assert_eq!(pair.take(2, PATIENCE), [1, 3, 5, 7, 9]);
    assert_eq!(pair.take(1, PATIENCE), [0, 2, 4, 6, 8]);
    assert_eq!(pair.take(1, Duration::from_millis(1)), []);
    pair.inbox.close(1);
    pair.say(1, 11);
    assert_eq!(pair.inbox.take(1, Some(PATIENCE)).unwrap(), Taken::Closed);
    assert_eq!(pair.inbox.open_calls(), 1);
}

/// Whoever leads, and however often that changes: nobody sleeps on while his message is there.
#[test]
fn threads_wait_together() {
    let pair = pair();
    const CALLS: u8 = 8;
    const ROUNDS: u8 = 200;
    for call in 1..=CALLS {
        pair.inbox.open(call.into(), LIMIT).unwrap();
    }
    thread::scope(|scope| {
        for call in 1..=CALLS {
            let inbox = &pair.inbox;
            scope.spawn(move || {
                let mut seen = Vec::new();
                while seen.len() < ROUNDS.into() {
                    let more = numbers(inbox.take(call.into(), Some(PATIENCE)).unwrap());
                    assert!(
                        !more.is_empty(),
                        "call {call} waits after {} messages",
                        seen.len()
                    );
                    seen.extend(more);
                }
                assert_eq!(seen, (0..ROUNDS).collect::<Vec<_>>());
            });
        }
        for number in 0..ROUNDS {
            for call in 1..=CALLS {
                while let Err(error) = pair.host.send(&[call, number], None) {
                    assert!(matches!(error, ArenaError::RingFull { .. }), "{error}");
                    thread::yield_now();
                }
            }
        }
    });
}

/// The leader leaves without a message of its own: one that follows takes its place.
#[test]
fn the_lead_is_handed_on() {
    let pair = pair();
    pair.inbox.open(1, LIMIT).unwrap();
    pair.inbox.open(2, LIMIT).unwrap();
    thread::scope(|scope| {
        let leader = pair.leads(scope, 1);
        let follower = pair.waits(scope, 2);
        pair.inbox.cancel(1);
        assert_eq!(soon(&leader).unwrap(), Taken::Closed);
        pair.say(2, 7);
        assert_eq!(numbers(soon(&follower).unwrap()), [7]);
    });
    assert_eq!(pair.heard(), [b'c', 1]);
}

#[test]
fn the_leader_wakes_whose_message_it_is() {
    let pair = pair();
    pair.inbox.open(1, LIMIT).unwrap();
    pair.inbox.open(2, LIMIT).unwrap();
    thread::scope(|scope| {
        let leader = pair.leads(scope, 1);
        for number in 0..20 {
            let follower = pair.waits(scope, 2);
            pair.say(2, number);
            assert_eq!(numbers(soon(&follower).unwrap()), [number]);
        }
        pair.say(1, 9);
        assert_eq!(numbers(soon(&leader).unwrap()), [9]);
    });
}

#[test]
fn what_nobody_waits_for_is_taken_at_a_beat() {
    let pair = pair();
    pair.inbox.open(1, LIMIT).unwrap();
    let attachment = vec![1; 30_000];
    // More than fits: the peer takes it although no thread of it waits.
    let deadline = Instant::now() + PATIENCE;
    for number in 0..20 {
        while let Err(error) = pair.host.send(&[1, number], Some(&attachment)) {
            assert!(matches!(error, ArenaError::SlabFull { .. }), "{error}");
            assert!(Instant::now() < deadline, "message {number} finds no room");
            thread::yield_now();
        }
    }
    let mut seen = pair.take(1, PATIENCE);
    while seen.len() < 20 {
        seen.extend(pair.take(1, PATIENCE));
    }
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
}

#[test]
fn what_is_left_unread_is_bounded_and_cancels() {
    let pair = pair();
    pair.inbox.open(1, 40_000).unwrap();
    pair.inbox.open(2, LIMIT).unwrap();
    for number in 0..3 {
        pair.host.send(&[1, number], Some(&[0; 30_000])).unwrap();
    }
    pair.say(2, 9);
    assert_eq!(pair.take(2, PATIENCE), [9]);
    assert_eq!(pair.heard(), [b'c', 1]);
    // What fitted is still handed out.
    assert_eq!(pair.take(1, PATIENCE), [0]);
    assert_eq!(pair.inbox.take(1, Some(PATIENCE)).unwrap(), Taken::Overflow);
}

#[test]
fn cancels_wait_for_room() {
    let pair = pair();
    for call in 1..=12 {
        pair.inbox.open(call, LIMIT).unwrap();
        pair.inbox.cancel(call);
    }
    pair.inbox.open(20, LIMIT).unwrap();
    let heard: Vec<u8> = (1..=12).map(|_| pair.heard()[1]).collect();
    assert_eq!(heard, (1..=12).collect::<Vec<_>>());
}

#[test]
fn one_thread_may_announce_to_others() {
    let pair = pair();
    pair.inbox.announce();
    pair.inbox.open(1, LIMIT).unwrap();
    pair.inbox.open(2, LIMIT).unwrap();
    thread::scope(|scope| {
        let announcer = scope.spawn(|| pair.inbox.arrivals(Some(PATIENCE)).unwrap());
        pair.say(2, 5);
        assert_eq!(announcer.join().unwrap(), [2]);
    });
    assert_eq!(numbers(pair.inbox.collect(2)), [5]);
    assert_eq!(numbers(pair.inbox.collect(1)), []);
    assert_eq!(pair.inbox.collect(3), Taken::Closed);
}

#[test]
fn the_end_of_a_side_reaches_all_who_wait() {
    for host_ends in [true, false] {
        let pair = pair();
        for call in 1..=4 {
            pair.inbox.open(call, LIMIT).unwrap();
        }
        thread::scope(|scope| {
            let waiting: Vec<_> = (1..=4)
                .map(|call| {
                    let inbox = &pair.inbox;
                    scope.spawn(move || inbox.take(call, None))
                })
                .collect();
            if host_ends {
                pair.host.close();
            } else {
                pair.peer.close();
            }
            for thread in waiting {
                let error = thread.join().unwrap().unwrap_err();
                let expected = match error {
                    ArenaError::PeerGone { .. } => host_ends,
                    ArenaError::Closed => !host_ends,
                    _ => false,
                };
                assert!(expected, "{error}");
            }
        });
    }
}

#[test]
fn an_envelope_of_no_call_ends_all() {
    let pair = pair();
    pair.inbox.open(1, LIMIT).unwrap();
    pair.say(1, 1);
    pair.say(0xff, 0);
    pair.say(1, 2);
    thread::scope(|scope| {
        for _ in 0..2 {
            let error = loop {
                match soon(&pair.waits(scope, 1)) {
                    Ok(taken) => assert_eq!(numbers(taken), [1]),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, ArenaError::Corrupt(_)), "{error}");
        }
    });
}
