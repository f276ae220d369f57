//! Sizes of a pair.

use crate::error::{ArenaError, Result};
use crate::layout::{Geometry, Layout, CLASSES};

/// One direction: how many messages may wait, and how many slab slots of each class of [`crate::layout::CLASS_SIZES`] there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
    pub ring: usize,
    pub slots: [usize; CLASSES],
}

/// What [`crate::HostEnd::create`] needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What error messages call the peer, such as `worker 0`.
    pub peer_name: String,
    /// Which life of this peer it is: raise it at every restart.
    pub epoch: u64,
    /// Host to peer.
    pub requests: Direction,
    /// Peer to host.
    pub results: Direction,
}

impl Config {
    /// Sizes for a text worker: about 19 MiB, so that a container's default `/dev/shm` of 64 MB holds three.
    pub fn text(peer_name: impl Into<String>, epoch: u64) -> Self {
        Config {
            peer_name: peer_name.into(),
            epoch,
            requests: Direction {
                ring: 1024,
                slots: [256, 64, 16, 2, 0],
            },
            results: Direction {
                ring: 4096,
                slots: [256, 32, 8, 1, 0],
            },
        }
    }

    /// Sizes for a worker that also gets audio: about 35 MiB, with room for ten windows of 30 s, 1.92 MB each, on
    /// their way to it.
    pub fn audio(peer_name: impl Into<String>, epoch: u64) -> Self {
        let mut config = Config::text(peer_name, epoch);
        config.requests.slots[3] += 8;
        config
    }

    /// Sizes for a client, about 1 MiB, so that dozens fit beside a worker; with `audio` 4 MiB more, for two messages
    /// of 33 s at 16 kHz.
    pub fn client(peer_name: impl Into<String>, epoch: u64, audio: bool) -> Self {
        Config {
            peer_name: peer_name.into(),
            epoch,
            requests: Direction {
                ring: 512,
                slots: [16, 4, 1, 0, 0],
            },
            results: Direction {
                ring: 128,
                slots: [8, 4, 1, if audio { 2 } else { 0 }, 0],
            },
        }
    }

    /// Layouts of the objects: (requests, results). Each object's return ring fits the other's slots.
    pub fn layouts(&self) -> Result<(Layout, Layout)> {
        let layout = |what: &str, own: &Direction, other: &Direction| {
            Layout::new(Geometry {
                ring: own.ring,
                returns: other.slots.iter().fold(0, |sum, n| sum.saturating_add(*n)),
                slots: own.slots,
            })
            .map_err(|error| match error {
                ArenaError::Config(reason) => ArenaError::Config(format!("{what}: {reason}")),
                other => other,
            })
        };
        Ok((
            layout("requests", &self.requests, &self.results)?,
            layout("results", &self.results, &self.requests)?,
        ))
    }

    /// Bytes of `/dev/shm` that one pair takes.
    pub fn bytes(&self) -> Result<u64> {
        let (requests, results) = self.layouts()?;
        Ok((requests.total + results.total) as u64)
    }
}
