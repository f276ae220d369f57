//! Signs of life in the control words of an object: the beat says that the process is scheduled at all, the phase what
//! its engine does, and since when.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::doorbell::poll_for;
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

/// A thread that beats until dropped. It can also end this process when the host has gone and nobody reacted.
pub(crate) struct Beat {
    shared: Arc<BeatShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct BeatShared {
    stopped: Mutex<bool>,
    changed: Condvar,
    /// Milliseconds that this process may outlive the host's end of `socket`; 0 = as long as it likes.
    grace_ms: AtomicU64,
}

impl Beat {
    pub fn start(own: Arc<impl Memory + Send + Sync + 'static>, socket: OwnedFd) -> Result<Self> {
        let shared = Arc::new(BeatShared::default());
        let theirs = Arc::clone(&shared);
        own.store(header::BEAT, monotonic_ns());
        let thread = std::thread::Builder::new()
            .name("denizen-beat".into())
            .spawn(move || {
                let mut gone_since = None;
                let mut guard = lock(&theirs.stopped);
                while !*guard {
                    own.store(header::BEAT, monotonic_ns());
                    let grace = Duration::from_millis(theirs.grace_ms.load(Ordering::Relaxed));
                    if !grace.is_zero() && hung_up(&socket) {
                        let since = *gone_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= grace {
                            end_orphan(grace);
                        }
                    }
                    guard = theirs
                        .changed
                        .wait_timeout(guard, BEAT_INTERVAL)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            })
            .map_err(|e| ArenaError::io("cannot start the heartbeat thread", e))?;
        Ok(Beat {
            shared,
            thread: Some(thread),
        })
    }

    /// Kill this process if it still runs, with the arena open, `grace` after the host has gone.
    pub fn end_with_host(&self, grace: Duration) {
        let milliseconds = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX).max(1);
        self.shared.grace_ms.store(milliseconds, Ordering::Relaxed);
    }

    /// Leave the thread alone: in a forked child it does not exist.
    pub fn forget(&mut self) {
        self.thread = None;
    }
}

fn lock(mutex: &Mutex<bool>) -> MutexGuard<'_, bool> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the other end of `socket` is closed. Reads nothing.
fn hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    poll_for(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready)
}

/// Nothing in this process reacts any more, so no destructor or exit handler can be trusted to.
fn end_orphan(grace: Duration) {
    eprintln!(
        "denizen: the front end has gone, and this worker (pid {}) did not stop within {:.1} s: killing it",
        std::process::id(),
        grace.as_secs_f64()
    );
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

impl Drop for Beat {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            *lock(&self.shared.stopped) = true;
            self.shared.changed.notify_all();
            let _ = thread.join();
        }
    }
}
