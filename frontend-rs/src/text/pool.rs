//! Threads for work that takes the CPU for long: templates and tokenization.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// A few threads with a bounded queue, apart from the HTTP runtime, so that a long prompt never delays `/health`.
///
/// Jobs whose caller has gone are skipped when their turn comes. Small jobs do not queue behind large ones: the two take
/// turns, and one thread, where there are several, takes small jobs only.
pub struct TextPool {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct Queue {
    small: VecDeque<Job>,
    large: VecDeque<Job>,
    /// Whose turn it is where both wait.
    large_next: bool,
    closed: bool,
}

/// Bytes of input from which on a job counts as large: some milliseconds of tokenization.
const LARGE: usize = 32 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("{0} requests wait for tokenization already; try again later")]
    Full(usize),
    /// The job panicked; the thread lives on.
    #[error("the request could not be prepared because of a fault in the server")]
    Panicked,
}

impl TextPool {
    /// Starts `threads` (at least one) threads that share a queue of at most `capacity` jobs.
    pub fn new(threads: usize, capacity: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            ready: Condvar::new(),
            capacity,
        });
        let pool = Self {
            shared: shared.clone(),
        };
        for index in 0..threads.max(1) {
            let shared = shared.clone();
            let small_only = index > 0 && index + 1 == threads;
            std::thread::Builder::new()
                .name(format!("denizen-text-{index}"))
                .spawn(move || {
                    while let Some(job) = shared.next(small_only) {
                        // The caller learns of a panic from its closed channel.
                        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                    }
                })?;
        }
        Ok(pool)
    }

    /// Runs `work` on the pool. `size` is the length of its input in bytes. Dropping the future before the job has
    /// started takes the job out of the queue's work.
    pub async fn run<T: Send + 'static>(
        &self,
        size: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let (sender, receiver) = oneshot::channel();
        let job = Box::new(move || {
            if !sender.is_closed() {
                let _ = sender.send(work());
            }
        });
        {
            let mut queue = self.shared.lock();
            let waiting = queue.small.len() + queue.large.len();
            if waiting >= self.shared.capacity {
                return Err(PoolError::Full(waiting));
            }
            if size < LARGE {
                queue.small.push_back(job)
            } else {
                queue.large.push_back(job)
            }
        }
        // All, not one: the woken thread might be the one that does not take large jobs.
        self.shared.ready.notify_all();
        receiver.await.map_err(|_| PoolError::Panicked)
    }

    /// Jobs that wait for a thread.
    pub fn waiting(&self) -> usize {
        let queue = self.shared.lock();
        queue.small.len() + queue.large.len()
    }
}

impl Drop for TextPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.ready.notify_all();
    }
}

impl Queue {
    fn pop(&mut self, small_only: bool) -> Option<Job> {
        if small_only {
            return self.small.pop_front();
        }
        self.large_next = !self.large_next;
        if self.large_next {
            self.large.pop_front().or_else(|| self.small.pop_front())
        } else {
            self.small.pop_front().or_else(|| self.large.pop_front())
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        // No code that can panic runs under the lock.
        self.queue
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next job; `None` once the pool is dropped.
    fn next(&self, small_only: bool) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(job) = queue.pop(small_only) {
                return Some(job);
            }
            queue = self
                .ready
                .wait(queue)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// A pool whose `threads` are all stuck in a large job until the sender is dropped.
    async fn stuck(threads: usize, capacity: usize) -> (Arc<TextPool>, mpsc::Sender<()>) {
        let pool = Arc::new(TextPool::new(threads, capacity).unwrap());
        let (release, stuck) = mpsc::channel::<()>();
        let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let pool_ = pool.clone();
        tokio::spawn(async move {
            let job = move || {
                started.send(()).unwrap();
                let _ = stuck.recv();
            };
            pool_.run(LARGE, job).await
        });
        starts.recv().await.unwrap();
        (pool, release)
    }

    #[tokio::test]
    async fn a_full_queue_refuses_and_says_how_many_wait() {
        let (pool, release) = stuck(1, 2).await;
        let mut waiting = Vec::new();
        for _ in 0..2 {
            let pool = pool.clone();
            waiting.push(tokio::spawn(async move { pool.run(1, || 7).await }));
        }
        while pool.waiting() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.run(1, || 7).await, Err(PoolError::Full(2)));
        drop(release);
        for job in waiting {
            assert_eq!(job.await.unwrap(), Ok(7));
        }
    }

    #[tokio::test]
    async fn a_job_whose_caller_has_gone_does_not_run() {
        let (pool, release) = stuck(1, 10).await;
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..5 {
            let ran = ran.clone();
            let job = pool.run(1, move || ran.fetch_add(1, Ordering::SeqCst));
            // Polled once, so that it is queued, then dropped.
            assert!(tokio::time::timeout(std::time::Duration::ZERO, job)
                .await
                .is_err());
        }
        assert_eq!(pool.waiting(), 5);
        drop(release);
        pool.run(1, || ()).await.unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_small_job_passes_large_ones_where_there_are_two_threads() {
        let (pool, release) = stuck(2, 10).await;
        let large = {
            let pool = pool.clone();
            tokio::spawn(async move { pool.run(LARGE, || ()).await })
        };
        while pool.waiting() < 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.run(LARGE - 1, || 7).await, Ok(7));
        assert_eq!(
            pool.waiting(),
            1,
            "the large one waits for the other thread"
        );
        drop(release);
        large.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_panic_reaches_its_caller_alone() {
        let pool = TextPool::new(1, 10).unwrap();
        let panicked: Result<(), _> = pool.run(1, || panic!("on purpose")).await;
        assert_eq!(panicked, Err(PoolError::Panicked));
        assert_eq!(pool.run(1, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn threads_end_with_the_pool() {
        let (pool, release) = stuck(1, 10).await;
        let shared = Arc::downgrade(&pool.shared);
        drop(release);
        let pool = loop {
            // The first job's caller holds the pool until it has ended.
            tokio::task::yield_now().await;
            if Arc::strong_count(&pool) == 1 {
                break pool;
            }
        };
        drop(pool);
        while shared.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
