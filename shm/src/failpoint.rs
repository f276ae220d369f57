//! Places where a test can have this process killed.

/// With the feature `failpoints`, and `DENIZEN_FAILPOINT` set to `name` or `name:N`, the process SIGKILLs itself here
/// (the Nth time, counted from 1). Otherwise nothing, at no cost.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn failpoint(_name: &str) {}

#[cfg(feature = "failpoints")]
pub(crate) fn failpoint(name: &str) {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let chosen = CHOSEN.get_or_init(|| {
        let value = std::env::var("DENIZEN_FAILPOINT").ok()?;
        match value.rsplit_once(':') {
            Some((name, count)) => Some((name.to_string(), count.parse().ok()?)),
            None => Some((value, 1)),
        }
    });
    if let Some((wanted, count)) = chosen {
        if wanted == name && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *count {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
}
