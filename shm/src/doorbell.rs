//! Waking a peer that sleeps. A doorbell is a hint: whoever wakes looks at the ring.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::error::{ArenaError, Result};
use crate::object::Object;
use crate::sys::{semaphore_name, Semaphore};

/// A bell between two processes. A ring before the wait counts: it is kept until cleared.
pub trait Doorbell: Send + Sync {
    /// Wake the one who waits, now or at its next wait. Never blocks.
    fn ring(&self) -> Result<()>;
    /// Forget all rings so far.
    fn clear(&self) -> Result<()>;
    /// Wait for a ring, at most `timeout` (`None`: for ever), and clear it. False on timeout, or if a signal
    /// interrupted the wait.
    fn wait(&self, timeout: Option<Duration>) -> Result<bool>;
}

/// The doorbell between front end and worker: an eventfd, which can be waited for together with sockets.
pub struct EventDoorbell(OwnedFd);

impl EventDoorbell {
    pub fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(EventDoorbell)
            .map_err(|e| ArenaError::io("cannot create an eventfd", e))
    }

    /// Take over an eventfd received from the peer.
    pub fn from_fd(fd: OwnedFd) -> Self {
        EventDoorbell(fd)
    }
}

impl AsFd for EventDoorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Doorbell for EventDoorbell {
    fn ring(&self) -> Result<()> {
        loop {
            match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
                // WouldBlock: the counter is at its maximum, so the bell rings already.
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(ArenaError::io("cannot ring the doorbell", e)),
            }
        }
    }

    fn clear(&self) -> Result<()> {
        loop {
            match rustix::io::read(&self.0, &mut [0u8; 8]) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(ArenaError::io("cannot clear the doorbell", e)),
            }
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let rung = poll_for(&mut fds, timeout)?;
        if rung {
            self.clear()?;
        }
        Ok(rung)
    }
}

/// The doorbell that wakes a client: a named POSIX semaphore, which a program in any language can open.
pub struct SemaphoreDoorbell(Semaphore);

impl SemaphoreDoorbell {
    /// Create a semaphore for this user alone, and the file that is its name: drop that to remove the name.
    pub fn create() -> Result<(Self, Object)> {
        let file = Object::create_semaphore()?;
        Ok((Self::open(file.semaphore_name())?, file))
    }

    /// Open a semaphore that the peer created; `name` without slash.
    pub fn open(name: &str) -> Result<Self> {
        Semaphore::open(semaphore_name(name)?.as_c_str())
            .map(SemaphoreDoorbell)
            .map_err(|e| ArenaError::io(format!("cannot open semaphore {name}"), e))
    }
}

impl Doorbell for SemaphoreDoorbell {
    fn ring(&self) -> Result<()> {
        match self.0.post() {
            // Overflow: it has been rung two billion times, so it rings.
            Err(e) if e.raw_os_error() != Some(Errno::OVERFLOW.raw_os_error()) => {
                Err(ArenaError::io("cannot ring the doorbell", e))
            }
            _ => Ok(()),
        }
    }

    fn clear(&self) -> Result<()> {
        loop {
            match self.0.try_wait() {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(ArenaError::io("cannot clear the doorbell", e)),
            }
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        match self.0.wait(timeout) {
            Ok(()) => self.clear().map(|()| true),
            Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted) => Ok(false),
            Err(e) => Err(ArenaError::io("cannot wait for the peer", e)),
        }
    }
}

/// `poll` with a [`Duration`]. False on timeout or interruption.
pub(crate) fn poll_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<bool> {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    match poll(fds, timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(ArenaError::io("cannot wait for the peer", e)),
    }
}
