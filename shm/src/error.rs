//! Everything that can go wrong in the arena, one variant per situation.

use std::fmt;
use std::time::Duration;

pub type Result<T> = std::result::Result<T, ArenaError>;

/// Who is at the other end and how it was doing when the error arose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The name that this side gave to the peer, such as `worker 0`.
    pub name: String,
    /// Process id, 0 until the peer has attached.
    pub pid: u32,
    /// Messages published to the peer that it has not taken yet.
    pub depth: u64,
    /// Age of the peer's last heartbeat; `None` if it has never beaten.
    pub beat_age: Option<Duration>,
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            write!(f, "{} (not attached, {} queued", self.name, self.depth)?;
        } else {
            write!(f, "{} (pid {}, {} queued", self.name, self.pid, self.depth)?;
        }
        match self.beat_age {
            Some(age) => write!(f, ", last heartbeat {:.1} s ago)", age.as_secs_f64()),
            None => write!(f, ", no heartbeat)"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The peer granted fewer credits than were used: a bug on this side, or a peer that stands still.
    #[error("the ring to {peer} is full ({capacity} messages): it takes nothing, or more was sent than it granted")]
    RingFull { peer: PeerInfo, capacity: u64 },

    /// Retry after the peer has taken some messages.
    #[error("the slab to {peer} has no room for {need} bytes ({free} of {total} bytes free): retry when it has taken some messages")]
    SlabFull {
        peer: PeerInfo,
        need: u64,
        free: u64,
        total: u64,
    },

    /// Can never succeed with this arena.
    #[error("a message of {len} bytes exceeds the arena's slab of {max} bytes: make the message smaller or the slab larger")]
    TooLarge { len: u64, max: u64 },

    #[error("{peer} has gone: {why}")]
    PeerGone { peer: PeerInfo, why: &'static str },

    #[error("{peer} refused to attach: {reason}")]
    AttachRefused { peer: PeerInfo, reason: String },

    /// `/dev/shm` (a container's default is 64 MB) cannot hold the arena.
    #[error(
        "the arena needs {need} bytes in /dev/shm, but {free} of its {size} bytes are free: \
         give the container more with `docker run --shm-size={advice}`, or mount a larger tmpfs on /dev/shm"
    )]
    NoSpace {
        need: u64,
        free: u64,
        size: u64,
        advice: String,
    },

    #[error("{object}: arena ABI {theirs} cannot be read by this build, which speaks {ours}: use the same release on both sides")]
    AbiMismatch {
        object: String,
        ours: String,
        theirs: String,
    },

    #[error("{object}: belongs to epoch {theirs}, expected epoch {ours}: the peer was restarted, attach anew")]
    EpochMismatch {
        object: String,
        ours: u64,
        theirs: u64,
    },

    #[error("{object}: not a usable arena object: {reason}")]
    BadObject { object: String, reason: String },

    #[error("bad attach message: {0}")]
    BadAttach(String),

    /// A client found nobody.
    #[error("no server listens at {path}: {reason}")]
    NoServer { path: String, reason: &'static str },

    /// A client was refused; the reason is the front end's.
    #[error("the server refused this client: {0}")]
    Uninvited(String),

    /// A front end found another one in its place.
    #[error("a server that lives listens at {path} already")]
    NameTaken { path: String },

    /// The peer wrote something impossible. Nothing more is read from it.
    #[error("the peer wrote nonsense: {0}")]
    Corrupt(String),

    #[error("bad arena configuration: {0}")]
    Config(String),

    #[error("this arena belongs to process {owner}: a forked child cannot use it")]
    Forked { owner: u32 },

    #[error("the arena has been closed")]
    Closed,

    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
}

impl ArenaError {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        ArenaError::Io {
            what: what.into(),
            source: source.into(),
        }
    }

    /// True where the same call may succeed later with nothing else changed.
    pub fn retryable(&self) -> bool {
        matches!(self, ArenaError::SlabFull { .. })
    }
}
