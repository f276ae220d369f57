//! System calls without a safe wrapper. The second of the crate's two files with `unsafe`.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::NonNull;
use std::time::Duration;

use crate::error::{ArenaError, Result};

/// Let the process that `command` spawns have `fd` as file descriptor `at`. The command keeps `fd` open until dropped.
pub(crate) fn inherit(command: &mut Command, fd: OwnedFd, at: RawFd) {
    let place = move || {
        let from = fd.as_raw_fd();
        // SAFETY: system calls on integers. `dup2` on the same number would leave the close-on-exec flag set.
        let result = unsafe {
            if from == at {
                libc::fcntl(from, libc::F_SETFD, 0)
            } else {
                libc::dup2(from, at)
            }
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls that are safe there; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(place) };
}

/// Take over a file descriptor that this process inherited under a number it was told. The caller gives it up.
pub(crate) fn take_inherited(fd: RawFd) -> Result<OwnedFd> {
    if fd <= libc::STDERR_FILENO {
        return Err(ArenaError::BadAttach(format!(
            "file descriptor {fd} cannot be an inherited socket"
        )));
    }
    // SAFETY: a system call on an integer.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        let error = io::Error::last_os_error();
        return Err(ArenaError::io(
            format!("file descriptor {fd} was not inherited"),
            error,
        ));
    }
    // SAFETY: the descriptor is open (checked above), and nobody else in this process owns it: it was inherited, and the
    // caller passes it on by number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor of this process's own for what its descriptor number `fd` is open on.
pub(crate) fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: a system call on integers.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if own < 0 {
        let error = io::Error::last_os_error();
        return Err(ArenaError::io(
            format!("file descriptor {fd} cannot be used"),
            error,
        ));
    }
    // SAFETY: just made, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}

/// What the file of a named semaphore holds: a process-shared `sem_t` with count 0.
pub(crate) fn semaphore_bytes() -> io::Result<[u8; size_of::<libc::sem_t>()]> {
    let mut semaphore = MaybeUninit::<libc::sem_t>::zeroed();
    // SAFETY: `sem_init` writes one `sem_t`; nobody uses it where it is.
    status(unsafe { libc::sem_init(semaphore.as_mut_ptr(), 1, 0) })?;
    // SAFETY: zeroed at first, so that no byte of it is uninitialised; every value is valid for `u8`.
    Ok(unsafe { std::mem::transmute_copy(&semaphore) })
}

/// A named POSIX semaphore, closed when dropped. Its name lives on until unlinked.
pub(crate) struct Semaphore(NonNull<libc::sem_t>);

// SAFETY: POSIX semaphores may be used from any thread.
unsafe impl Send for Semaphore {}
// SAFETY: as above.
unsafe impl Sync for Semaphore {}

impl Semaphore {
    /// Open a semaphore that somebody created.
    pub fn open(name: &CStr) -> io::Result<Self> {
        // SAFETY: `name` is a C string; without O_CREAT no further argument is read.
        Self::check(unsafe { libc::sem_open(name.as_ptr(), 0) })
    }

    fn check(semaphore: *mut libc::sem_t) -> io::Result<Self> {
        if semaphore == libc::SEM_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(semaphore)
            .map(Semaphore)
            .ok_or_else(|| io::Error::other("sem_open returned null"))
    }

    pub fn post(&self) -> io::Result<()> {
        // SAFETY: the semaphore is open as long as `self` lives.
        status(unsafe { libc::sem_post(self.0.as_ptr()) })
    }

    pub fn try_wait(&self) -> io::Result<()> {
        // SAFETY: as in `post`.
        status(unsafe { libc::sem_trywait(self.0.as_ptr()) })
    }

    /// Wait until posted; `None` for ever. `TimedOut` or `Interrupted` otherwise.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let Some(timeout) = timeout else {
            // SAFETY: as in `post`.
            return status(unsafe { libc::sem_wait(self.0.as_ptr()) });
        };
        let mut until = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `until` is a timespec that the call fills in.
        status(unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut until) })?;
        let nanoseconds = until.tv_nsec as u64 + u64::from(timeout.subsec_nanos());
        let seconds = timeout.as_secs() + nanoseconds / 1_000_000_000;
        until.tv_sec = until.tv_sec.saturating_add_unsigned(seconds);
        until.tv_nsec = (nanoseconds % 1_000_000_000) as libc::c_long;
        // SAFETY: as in `post`; `until` outlives the call.
        status(unsafe { libc::sem_timedwait(self.0.as_ptr(), &until) })
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: opened by `create` or `open` and closed once. A failure leaves a mapping behind, no more.
        unsafe { libc::sem_close(self.0.as_ptr()) };
    }
}

fn status(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `name` as the C library wants it: with a leading slash.
pub(crate) fn semaphore_name(name: &str) -> Result<CString> {
    CString::new(format!("/{name}"))
        .map_err(|_| ArenaError::Config(format!("semaphore name {name:?} contains a zero byte")))
}
