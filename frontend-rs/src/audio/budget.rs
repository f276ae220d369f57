//! How much memory the audio of all requests may take together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use super::AudioError;

/// Bytes for uploads and what is decoded of them, shared by all requests.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Arc<Self> {
        let used = AtomicUsize::new(0);
        Arc::new(Self { limit, used })
    }

    /// Bytes that files hold now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// A file that holds nothing yet.
    pub fn share(self: &Arc<Self>) -> Share {
        let budget = self.clone();
        Share { budget, bytes: 0 }
    }
}

/// What one file holds of a budget; given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// Bytes that the file holds now.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The file holds `bytes` now. Fails where it, or it and the others, would take more than there is; the share stays as
    /// it was then.
    pub fn set(&mut self, bytes: usize) -> Result<(), AudioError> {
        let limit = self.budget.limit;
        if bytes > limit {
            return Err(AudioError::BeyondMemory { limit });
        }
        let others = |used: usize| used.saturating_sub(self.bytes);
        let take = |used| Some(others(used) + bytes).filter(|used| *used <= limit);
        self.budget
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| AudioError::NoMemory { limit })?;
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_share_what_there_is_and_give_it_back() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (budget.share(), budget.share());
        one.set(60).unwrap();
        two.set(40).unwrap();
        assert_eq!(two.set(41), Err(AudioError::NoMemory { limit: 100 }));
        assert_eq!(budget.used(), 100, "a refusal takes nothing");
        one.set(30).unwrap();
        two.set(70).unwrap();
        drop(one);
        assert_eq!(budget.used(), 70);
        assert_eq!(two.set(101), Err(AudioError::BeyondMemory { limit: 100 }));
        drop(two);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn threads_never_hold_more_than_there_is() {
        let budget = Budget::new(1000);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let budget = &budget;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let mut share = budget.share();
                        for step in 1..5 {
                            let _ = share.set((thread * 37 + round * 11 + step * 101) % 600);
                            assert!(budget.used() <= 1000);
                        }
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
    }
}
