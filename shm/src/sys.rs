//! System calls without a safe wrapper. The second of the crate's two files with `unsafe`.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

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
            return Err(std::io::Error::last_os_error());
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
        let error = std::io::Error::last_os_error();
        return Err(ArenaError::io(
            format!("file descriptor {fd} was not inherited"),
            error,
        ));
    }
    // SAFETY: the descriptor is open (checked above), and nobody else in this process owns it: it was inherited, and the
    // caller passes it on by number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
