//! Named shared objects: creation with all their memory, the lock that says their creator lives, removal.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    fallocate, flock, fstat, fstatvfs, statvfs, FallocateFlags, FileType, FlockOperation, Mode,
};
use rustix::io::{pwrite, Errno};
use rustix::shm;

use crate::error::{ArenaError, Result};
use crate::sys::semaphore_bytes;

/// Where POSIX shared memory lives on Linux.
pub const SHM_DIR: &str = "/dev/shm";
pub(crate) const PREFIX: &str = "denizen-";
/// In front of a semaphore's name, in the name of the file that it is.
pub(crate) const SEMAPHORE: &str = "sem.";

/// Bytes of `/dev/shm`: (free, whole size).
pub fn shm_space() -> Result<(u64, u64)> {
    let stat = statvfs(SHM_DIR).map_err(|e| ArenaError::io("cannot look at /dev/shm", e))?;
    Ok((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
}

/// The user whose objects and sockets this process makes and uses.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| ArenaError::io("cannot draw random bytes", e))?;
    debug_assert_eq!(got, N, "up to 256 bytes come at once");
    Ok(bytes)
}

/// A shared object that this process created. Its flock is held as long as this value lives, or until the process dies
/// in whatever way; a sweep that gets the lock knows that the creator has gone.
pub struct Object {
    name: String,
    fd: OwnedFd,
    linked: bool,
    creator: u32,
}

impl Object {
    /// Create an object of `len` zero bytes, readable and writable by this user alone. `pair_bytes` is what the caller
    /// needs in all, for the error message.
    pub fn create(kind: &str, len: usize, pair_bytes: u64) -> Result<Self> {
        let object = Self::create_empty("", kind)?;
        object.allocate(len, pair_bytes)?;
        Ok(object)
    }

    /// Create a named semaphore with count 0, for this user alone. On Linux that is a file of this folder with a `sem_t`
    /// in it. `sem_open` would write it under a name of its own choice and then rename it: killed in between, it would
    /// leave a file that no sweep knows.
    pub fn create_semaphore() -> Result<Self> {
        let fault = |e: std::io::Error| ArenaError::io("cannot create a semaphore", e);
        let bytes = semaphore_bytes().map_err(fault)?;
        let object = Self::create_empty(SEMAPHORE, "bell")?;
        object.allocate(bytes.len(), bytes.len() as u64)?;
        // A file this short is written at once.
        pwrite(&object, &bytes, 0).map_err(|e| fault(e.into()))?;
        Ok(object)
    }

    fn create_empty(prefix: &str, kind: &str) -> Result<Self> {
        let uid = user();
        loop {
            let id = u64::from_le_bytes(random()?);
            let name = format!("{prefix}{PREFIX}{uid}-{id:016x}-{kind}");
            let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
            let fd = match shm::open(name.as_str(), flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => fd,
                Err(Errno::EXIST | Errno::INTR) => continue,
                Err(e) => {
                    return Err(ArenaError::io(
                        format!("cannot create shared memory {name}"),
                        e,
                    ))
                }
            };
            // Between creation and lock a sweep may have taken the object for a leftover: then draw another name.
            let mine = flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok()
                && fstat(&fd).is_ok_and(|stat| stat.st_nlink > 0);
            let object = Object {
                name,
                fd,
                linked: true,
                creator: std::process::id(),
            };
            if mine {
                return Ok(object);
            }
        }
    }

    /// Allocate every page now: `ftruncate` beyond what `/dev/shm` holds would succeed, and the first write to a missing
    /// page kill the process with SIGBUS.
    fn allocate(&self, len: usize, pair_bytes: u64) -> Result<()> {
        loop {
            match fallocate(&self.fd, FallocateFlags::empty(), 0, len as u64) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC) => return Err(self.no_space(pair_bytes)),
                Err(e) => {
                    let what = format!("cannot allocate {len} bytes of shared memory");
                    return Err(ArenaError::io(what, e));
                }
            }
        }
    }

    fn no_space(&self, need: u64) -> ArenaError {
        let (free, size) = fstatvfs(&self.fd).map_or((0, 0), |stat| {
            (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)
        });
        let mebibytes = (size - free.min(size) + need).div_ceil(1 << 20);
        ArenaError::NoSpace {
            need,
            free,
            size,
            advice: format!("{}m", mebibytes.next_power_of_two().max(64)),
        }
    }

    /// Its name in [`SHM_DIR`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name that `sem_open` knows it by, without the slash.
    pub fn semaphore_name(&self) -> &str {
        self.name.strip_prefix(SEMAPHORE).unwrap_or(&self.name)
    }

    /// Remove the name; the memory lives on while somebody maps it.
    pub fn unlink(&mut self) {
        // A forked child that drops its copy must not take the objects from its parent.
        if self.linked && self.creator == std::process::id() {
            let _ = shm::unlink(self.name.as_str());
        }
        self.linked = false;
    }
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.unlink();
    }
}

fn bad(name: &str, reason: String) -> ArenaError {
    ArenaError::BadObject {
        object: name.to_string(),
        reason,
    }
}

/// Open somebody's object.
pub(crate) fn open(name: &str, writable: bool) -> Result<OwnedFd> {
    let flags = if writable {
        shm::OFlags::RDWR
    } else {
        shm::OFlags::RDONLY
    };
    shm::open(name, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOENT => bad(
            name,
            "it does not exist (its creator has gone, or it was removed by hand)".into(),
        ),
        other => ArenaError::io(format!("cannot open shared memory {name}"), other),
    })
}

/// The length of an opened object, which must be a file of this user.
pub(crate) fn check(name: &str, fd: BorrowedFd<'_>) -> Result<usize> {
    let stat = fstat(fd).map_err(|e| ArenaError::io(format!("cannot look at {name}"), e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(bad(name, "it is not a regular file".into()));
    }
    if stat.st_uid != user() {
        return Err(bad(name, format!("it belongs to user {}", stat.st_uid)));
    }
    usize::try_from(stat.st_size).map_err(|_| bad(name, "its size is negative".into()))
}
