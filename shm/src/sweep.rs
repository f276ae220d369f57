//! Removing what dead processes left in `/dev/shm`.

use std::fs;

use rustix::fs::{flock, fstat, FlockOperation, Mode};
use rustix::shm;

use crate::error::{ArenaError, Result};
use crate::object::{user, PREFIX, SEMAPHORE, SHM_DIR};

/// What [`sweep`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Names removed: their creators are dead.
    pub removed: Vec<String>,
    /// Objects of this user whose creators live.
    pub alive: usize,
    /// Objects of other users, left alone: a sticky `/dev/shm` lets only their owner remove them.
    pub foreign: usize,
}

/// Remove every arena object and doorbell of this user whose creator is dead: whose flock nobody holds. What is inside does not
/// matter, so objects of other versions, half-made ones and one half of a pair go the same way.
pub fn sweep() -> Result<Swept> {
    let mut swept = Swept::default();
    let uid = user();
    let entries = fs::read_dir(SHM_DIR).map_err(|e| ArenaError::io("cannot list /dev/shm", e))?;
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let ours = name.strip_prefix(SEMAPHORE).unwrap_or(&name);
        if !ours.starts_with(PREFIX) {
            continue;
        }
        // Opening fails for an object that vanished meanwhile, a symbolic link, or another user's.
        let Ok(fd) = shm::open(name.as_str(), shm::OFlags::RDWR, Mode::empty()) else {
            swept.foreign += 1;
            continue;
        };
        if !fstat(&fd).is_ok_and(|stat| stat.st_uid == uid) {
            swept.foreign += 1;
        } else if flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
            swept.alive += 1;
        } else if shm::unlink(name.as_str()).is_ok() {
            // Names are random, so no new object can have taken this one since it was opened.
            swept.removed.push(name);
        }
    }
    Ok(swept)
}
