//! The arena behaves like a bounded queue: random runs against a `VecDeque`.

mod common;

use std::collections::VecDeque;

use common::{heap, pattern};
use denizen_shm::layout::{CLASS_SIZES, INLINE_LEN};
use denizen_shm::sender::Unsent;
use denizen_shm::Message;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Send {
        envelope: usize,
        attachment: Option<usize>,
    },
    Receive,
    Park,
}

/// Lengths around every border: empty, inline, one slot, chains.
fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..=INLINE_LEN + 1,
        2 => INLINE_LEN..=CLASS_SIZES[0] + 1,
        1 => CLASS_SIZES[0]..=3 * CLASS_SIZES[0],
        1 => CLASS_SIZES[1] - 1..=CLASS_SIZES[1] + 2 * CLASS_SIZES[0],
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (len(), proptest::option::of(len()))
            .prop_map(|(envelope, attachment)| Step::Send { envelope, attachment }),
        4 => Just(Step::Receive),
        1 => Just(Step::Park),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any ring size, any slab, bursts longer than either: a message is delivered whole, in order, exactly once, or
    /// refused with nothing taken; and when all is received, every slot is free again.
    #[test]
    fn any_ring_size_survives_bursts_beyond_its_capacity(
        ring in 1usize..9,
        small in 0usize..6,
        large in 0usize..3,
        steps in proptest::collection::vec(step(), 1..if cfg!(miri) { 12 } else { 120 }),
    ) {
        let (mut sender, mut receiver) = heap(ring, [small, large, 0, 0, 0]);
        let total = sender.slab().free_bytes();
        let mut model = VecDeque::new();
        let mut parked = false;
        for (seed, step) in steps.into_iter().enumerate() {
            match step {
                Step::Send { envelope, attachment } => {
                    let message = Message {
                        envelope: pattern(seed as u64, envelope),
                        attachment: attachment.map(|len| pattern(!seed as u64, len)),
                    };
                    match sender.send(&message.envelope, message.attachment.as_deref()) {
                        Ok(ring) => {
                            prop_assert_eq!(ring, parked);
                            parked = false;
                            model.push_back(message);
                        }
                        Err(Unsent::RingFull { capacity }) => {
                            prop_assert_eq!(capacity, ring as u64);
                            prop_assert_eq!(model.len(), ring);
                        }
                        Err(Unsent::SlabFull { need, free, .. }) => prop_assert!(need > free && need <= total),
                        Err(Unsent::TooLarge { len, max }) => prop_assert!(len > max && max == total),
                        Err(Unsent::Corrupt(what)) => panic!("{what}"),
                    }
                    prop_assert_eq!(sender.depth().unwrap(), model.len() as u64);
                }
                Step::Receive => {
                    receiver.disarm();
                    parked = false;
                    prop_assert_eq!(receiver.try_recv().unwrap(), model.pop_front());
                }
                Step::Park => {
                    // A flag that is up stays up, and rings only once.
                    receiver.disarm();
                    parked = receiver.arm().unwrap();
                    prop_assert_eq!(parked, model.is_empty());
                }
            }
            prop_assert_eq!(receiver.depth().unwrap(), model.len() as u64);
        }
        while let Some(expected) = model.pop_front() {
            prop_assert_eq!(receiver.try_recv().unwrap(), Some(expected));
        }
        prop_assert_eq!(receiver.try_recv().unwrap(), None);
        sender.take_returns().unwrap();
        prop_assert_eq!(sender.slab().in_use(), 0);
        prop_assert_eq!(sender.slab().free_bytes(), total);
        prop_assert_eq!(sender.bad_returns(), 0);
    }
}

/// Many messages, a tenth of them through the slab, leave every slot free. `DENIZEN_SOAK` sets how many.
#[test]
fn a_soak_leaves_every_slot_free() {
    let rounds: u64 = match std::env::var("DENIZEN_SOAK") {
        Ok(count) => count.parse().unwrap(),
        Err(_) if cfg!(miri) => 50,
        Err(_) => 50_000,
    };
    let (mut sender, mut receiver) = heap(64, [8, 2, 0, 0, 0]);
    let small = pattern(1, 100);
    let large = pattern(2, 9000);
    for round in 0..rounds {
        let payload = if round % 10 == 0 { &large } else { &small };
        sender.send(payload, None).unwrap();
        // Depth wanders between 0 and 1, so that positions and slots wrap out of step.
        if round % 3 != 0 {
            while receiver.try_recv().unwrap().is_some() {}
        }
    }
    while receiver.try_recv().unwrap().is_some() {}
    sender.take_returns().unwrap();
    assert_eq!(sender.slab().in_use(), 0);
}
