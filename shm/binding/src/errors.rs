//! The exception hierarchy that Python sees.

use denizen_shm::ArenaError as Error;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    _native,
    ArenaError,
    PyException,
    "Base of all arena errors."
);
create_exception!(
    _native,
    ArenaFull,
    ArenaError,
    "The ring is full: more was sent than the peer granted."
);
create_exception!(
    _native,
    SlabFull,
    ArenaError,
    "The slab has no room now: retry when the peer has taken messages."
);
create_exception!(
    _native,
    MessageTooLarge,
    ArenaError,
    "The message exceeds the whole slab."
);
create_exception!(
    _native,
    PeerGone,
    ArenaError,
    "The process at the other end has closed or died."
);
create_exception!(
    _native,
    AttachError,
    ArenaError,
    "Attaching failed: wrong version, missing or broken object."
);
create_exception!(
    _native,
    NoServer,
    AttachError,
    "Nobody listens at the rendezvous."
);
create_exception!(
    _native,
    NoSpace,
    ArenaError,
    "/dev/shm cannot hold the arena."
);
create_exception!(
    _native,
    CorruptArena,
    ArenaError,
    "The peer wrote something impossible."
);
create_exception!(
    _native,
    ArenaClosed,
    ArenaError,
    "This end was closed, or belongs to the parent process."
);

/// The exception for an error of the crate.
pub fn raise(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::RingFull { .. } => ArenaFull::new_err(message),
        Error::SlabFull { .. } => SlabFull::new_err(message),
        Error::TooLarge { .. } => MessageTooLarge::new_err(message),
        Error::PeerGone { .. } => PeerGone::new_err(message),
        Error::NoServer { .. } => NoServer::new_err(message),
        Error::AttachRefused { .. }
        | Error::Uninvited(_)
        | Error::AbiMismatch { .. }
        | Error::EpochMismatch { .. }
        | Error::BadObject { .. }
        | Error::BadAttach(_) => AttachError::new_err(message),
        Error::NoSpace { .. } => NoSpace::new_err(message),
        Error::Corrupt(_) => CorruptArena::new_err(message),
        Error::Forked { .. } | Error::Closed => ArenaClosed::new_err(message),
        Error::Config(_) => PyValueError::new_err(message),
        _ => ArenaError::new_err(message),
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("ArenaError", py.get_type::<ArenaError>())?;
    module.add("ArenaFull", py.get_type::<ArenaFull>())?;
    module.add("SlabFull", py.get_type::<SlabFull>())?;
    module.add("MessageTooLarge", py.get_type::<MessageTooLarge>())?;
    module.add("PeerGone", py.get_type::<PeerGone>())?;
    module.add("AttachError", py.get_type::<AttachError>())?;
    module.add("NoServer", py.get_type::<NoServer>())?;
    module.add("NoSpace", py.get_type::<NoSpace>())?;
    module.add("CorruptArena", py.get_type::<CorruptArena>())?;
    module.add("ArenaClosed", py.get_type::<ArenaClosed>())
}
