//! A shared object's header: written by the creator, checked by whoever attaches.

use rustix::time::{clock_gettime, ClockId};

use crate::error::{ArenaError, Result};
use crate::layout::{
    fields_hash, header, Geometry, Layout, ABI_MAJOR, ABI_MINOR, CLASSES, HEADER_LEN, MAGIC,
};
use crate::memory::Memory;

/// Which object of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Written by the front end.
    Requests = 1,
    /// Written by its peer.
    Results = 2,
}

/// What tells one pair from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Random, drawn for each pair.
    pub instance: [u8; 16],
    /// The creator's count of restarts of this peer.
    pub epoch: u64,
}

/// Values of the header's `STATE`.
pub mod state {
    /// Created; its owner has not come yet.
    pub const CREATED: u64 = 0;
    pub const LIVE: u64 = 1;
    /// The owner has closed it and publishes nothing more.
    pub const CLOSED: u64 = 2;
}

fn abi_word() -> u64 {
    (u64::from(ABI_MAJOR) << 32) | u64::from(ABI_MINOR)
}

fn abi_text(word: u64, hash: u64) -> String {
    format!("{}.{} (layout {hash:016x})", word >> 32, word & 0xffff_ffff)
}

fn instance_words(instance: [u8; 16]) -> [u64; 2] {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&instance[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    [word(0), word(8)]
}

/// Fill in a zeroed object's header. The magic goes last, so that nobody takes a half-written header for a whole one.
pub fn write(memory: &impl Memory, role: Role, identity: &Identity, layout: &Layout) {
    memory.store(header::ABI, abi_word());
    memory.store(header::TOTAL_LEN, layout.total as u64);
    memory.store(header::FIELDS_HASH, fields_hash());
    let [low, high] = instance_words(identity.instance);
    memory.store(header::INSTANCE, low);
    memory.store(header::INSTANCE + 8, high);
    memory.store(header::EPOCH, identity.epoch);
    memory.store(header::ROLE, role as u64);
    memory.store(header::RING_CAPACITY, layout.geometry.ring as u64);
    memory.store(header::RETURNS_CAPACITY, layout.geometry.returns as u64);
    for class in 0..CLASSES {
        memory.store(
            header::CLASS_COUNTS + class * 8,
            layout.geometry.slots[class] as u64,
        );
    }
    memory.store(header::MAGIC, MAGIC);
}

/// Check a header that somebody else wrote, in an object of `len` bytes, and compute its layout.
pub fn read(
    memory: &impl Memory,
    len: usize,
    object: &str,
    role: Role,
    identity: &Identity,
) -> Result<Layout> {
    let bad = |reason: String| {
        Err(ArenaError::BadObject {
            object: object.to_string(),
            reason,
        })
    };
    if len < HEADER_LEN {
        return bad(format!("{len} bytes are too short for a header"));
    }
    match memory.load(header::MAGIC) {
        MAGIC => {}
        0 => return bad("its header was never completed".into()),
        other => return bad(format!("magic {other:016x} is not an arena's")),
    }
    let (abi, hash) = (memory.load(header::ABI), memory.load(header::FIELDS_HASH));
    let readable = abi >> 32 == u64::from(ABI_MAJOR) && abi & 0xffff_ffff <= u64::from(ABI_MINOR);
    if !readable || hash != fields_hash() {
        return Err(ArenaError::AbiMismatch {
            object: object.to_string(),
            ours: abi_text(abi_word(), fields_hash()),
            theirs: abi_text(abi, hash),
        });
    }
    let theirs = memory.load(header::EPOCH);
    if theirs != identity.epoch {
        return Err(ArenaError::EpochMismatch {
            object: object.to_string(),
            ours: identity.epoch,
            theirs,
        });
    }
    let instance = [
        memory.load(header::INSTANCE),
        memory.load(header::INSTANCE + 8),
    ];
    if instance != instance_words(identity.instance) {
        return bad("it belongs to another instance".into());
    }
    let found = memory.load(header::ROLE);
    if found != role as u64 {
        return bad(format!("role {found}, expected {role:?}"));
    }
    let word = |at: usize| usize::try_from(memory.load(at)).unwrap_or(usize::MAX);
    let mut slots = [0; CLASSES];
    for (class, count) in slots.iter_mut().enumerate() {
        *count = word(header::CLASS_COUNTS + class * 8);
    }
    let geometry = Geometry {
        ring: word(header::RING_CAPACITY),
        returns: word(header::RETURNS_CAPACITY),
        slots,
    };
    let layout = match Layout::new(geometry) {
        Ok(layout) => layout,
        Err(error) => return bad(error.to_string()),
    };
    let total = word(header::TOTAL_LEN);
    if total != layout.total || total > len {
        return bad(format!(
            "{len} bytes long, its header says {total}, its geometry needs {}",
            layout.total
        ));
    }
    Ok(layout)
}

/// Write who owns the object, then mark it live.
pub fn claim(memory: &impl Memory) {
    memory.store(header::WRITER_PID, u64::from(std::process::id()));
    memory.store(header::WRITER_START, start_time());
    memory.store(header::STATE, state::LIVE);
}

/// This process's start, in clock ticks since boot: with the pid it names a process for good. 0 if `/proc` is hidden.
fn start_time() -> u64 {
    // The command name, in parentheses, may hold anything: count fields after the last one.
    std::fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(|stat| {
            let (_, fields) = stat.rsplit_once(')')?;
            fields.split_whitespace().nth(19)?.parse().ok()
        })
        .unwrap_or(0)
}

/// Nanoseconds on the clock that all processes of the machine share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
