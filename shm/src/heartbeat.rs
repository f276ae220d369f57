//! Signs of life in the control words of an object: the beat says that the process is scheduled at all, the phase what
//! its engine does, and since when.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{ArenaError, Result};
use crate::header::monotonic_ns;
use crate::layout::header;
use crate::memory::Memory;

/// How often [`Beat`] beats.
pub const BEAT_INTERVAL: Duration = Duration::from_millis(250);

/// What an engine does. Each phase may last for its own time before the peer takes the engine for hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Load = 0,
    Capture = 1,
    Prefill = 2,
    Decode = 3,
    Idle = 4,
}

impl Phase {
    pub const ALL: [Phase; 5] = [
        Phase::Load,
        Phase::Capture,
        Phase::Prefill,
        Phase::Decode,
        Phase::Idle,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Capture => "capture",
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Idle => "idle",
        }
    }
}

impl TryFrom<u8> for Phase {
    type Error = ArenaError;

    fn try_from(value: u8) -> Result<Self> {
        Phase::ALL
            .into_iter()
            .find(|phase| *phase as u8 == value)
            .ok_or_else(|| ArenaError::Config(format!("phase {value} is not one of 0 to 4")))
    }
}

/// One look at a peer's signs of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time since the last beat; `None` before the first.
    pub beat_age: Option<Duration>,
    /// `None` before the peer has set one.
    pub phase: Option<Phase>,
    /// Time since the phase was entered.
    pub phase_age: Duration,
}

/// The phase takes the top byte of its word, the time of entry in microseconds the rest (2,284 years): one word, so
/// that a reader never sees one without the other.
const SINCE_BITS: u32 = 56;

/// Enter `phase` now.
pub fn set_phase(own: &impl Memory, phase: Phase) {
    let since = (monotonic_ns() / 1000) & ((1 << SINCE_BITS) - 1);
    own.store(header::PHASE, ((phase as u64) << SINCE_BITS) | since);
}

/// Look at the words of the peer's object.
pub fn look(peer: &impl Memory) -> Heartbeat {
    let now = monotonic_ns();
    let beat = peer.load(header::BEAT);
    let word = peer.load(header::PHASE);
    let since = (word & ((1 << SINCE_BITS) - 1)).saturating_mul(1000);
    Heartbeat {
        beat_age: (beat != 0).then(|| Duration::from_nanos(now.saturating_sub(beat))),
        phase: (word != 0)
            .then(|| Phase::try_from((word >> SINCE_BITS) as u8).ok())
            .flatten(),
        phase_age: Duration::from_nanos(if word == 0 {
            0
        } else {
            now.saturating_sub(since)
        }),
    }
}

/// A thread that beats until dropped, and calls `tend` at every beat.
pub(crate) struct Beat {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Beat {
    pub fn start(
        own: Arc<impl Memory + Send + Sync + 'static>,
        tend: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let theirs = Arc::clone(&stop);
        own.store(header::BEAT, monotonic_ns());
        let thread = std::thread::Builder::new()
            .name("denizen-beat".into())
            .spawn(move || {
                let (stopped, changed) = &*theirs;
                let mut guard = lock(stopped);
                while !*guard {
                    own.store(header::BEAT, monotonic_ns());
                    tend();
                    guard = changed
                        .wait_timeout(guard, BEAT_INTERVAL)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            })
            .map_err(|e| ArenaError::io("cannot start the heartbeat thread", e))?;
        Ok(Beat {
            stop,
            thread: Some(thread),
        })
    }

    /// Leave the thread alone: in a forked child it does not exist.
    pub fn forget(&mut self) {
        self.thread = None;
    }
}

fn lock(mutex: &Mutex<bool>) -> MutexGuard<'_, bool> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Beat {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let (stopped, changed) = &*self.stop;
            *lock(stopped) = true;
            changed.notify_all();
            let _ = thread.join();
        }
    }
}
