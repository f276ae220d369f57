//! What is sent to one client while it is made, bounded in bytes: server-sent events, or raw bytes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use tokio::sync::Notify;

/// The producing end. Events (or raw bytes) wait here until the client's connection takes them; more than `limit` bytes never do, but
/// for the one event that crosses it.
pub struct Sink {
    shared: Arc<Shared>,
    limit: usize,
    patience: Duration,
}

/// The response body that drains a [`Sink`].
pub struct Events {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// The client took something, or went away. One waiter: the sink.
    taken: Notify,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Bytes>,
    bytes: usize,
    complete: bool,
    /// The body breaks off instead of ending.
    failed: bool,
    gone: bool,
    waker: Option<Waker>,
}

/// A body that cannot be finished. The connection is closed without the body's end, by which a client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the response cannot be finished")]
pub struct BrokenOff;

/// Why nothing more can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsendable {
    /// The client closed its connection.
    Gone,
    /// The client took nothing for too long while its buffer was full.
    Slow,
}

/// Most bytes that are handed to the connection at once.
const BATCH: usize = 64 * 1024;

pub fn channel(limit: usize, patience: Duration) -> (Sink, Events) {
    let shared = Arc::new(Shared::default());
    (
        Sink {
            shared: shared.clone(),
            limit,
            patience,
        },
        Events { shared },
    )
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Sink {
    /// Queues an event with this data (one line).
    pub fn send(&self, data: &str) {
        // Exactly as long as it is: the spare room of a string that has grown would count for nothing and be held.
        let event = ["data: ", data, "\n\n"].concat();
        self.push(Bytes::from(event));
    }

    /// Queues bytes of a body that is no stream of events.
    pub fn push(&self, bytes: Bytes) {
        let mut state = self.shared.lock();
        state.bytes += bytes.len();
        state.queue.push_back(bytes);
        state.wake();
    }

    /// Waits until there is room for more.
    pub async fn room(&self) -> Result<(), Unsendable> {
        self.wait_below(self.limit).await
    }

    /// Waits until the client has taken everything.
    pub async fn drained(&self) -> Result<(), Unsendable> {
        self.wait_below(1).await
    }

    /// Returns once the client has closed its connection.
    pub async fn gone(&self) {
        while !self.shared.lock().gone {
            self.shared.taken.notified().await;
        }
    }

    /// The stream ends after what is queued.
    pub fn complete(&self) {
        let mut state = self.shared.lock();
        state.complete = true;
        state.wake();
    }

    /// The body breaks off after what is queued.
    pub fn fail(&self) {
        let mut state = self.shared.lock();
        state.failed = true;
        state.complete = true;
        state.wake();
    }

    /// Drops what the client has not taken.
    pub fn discard(&self) {
        let mut state = self.shared.lock();
        state.queue.clear();
        state.bytes = 0;
    }

    async fn wait_below(&self, limit: usize) -> Result<(), Unsendable> {
        loop {
            let before = {
                let state = self.shared.lock();
                // A client that has taken everything may well have gone by now.
                if state.bytes < limit {
                    return Ok(());
                }
                if state.gone {
                    return Err(Unsendable::Gone);
                }
                state.bytes
            };
            let wait = async {
                loop {
                    self.shared.taken.notified().await;
                    let state = self.shared.lock();
                    if state.gone || state.bytes < before {
                        return;
                    }
                }
            };
            if tokio::time::timeout(self.patience, wait).await.is_err() {
                return Err(Unsendable::Slow);
            }
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What a fault cut off must not look whole.
            self.fail();
        } else {
            self.complete();
        }
    }
}

impl Stream for Events {
    type Item = Result<Bytes, BrokenOff>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.shared.lock();
        let Some(first) = state.queue.pop_front() else {
            if std::mem::take(&mut state.failed) {
                return Poll::Ready(Some(Err(BrokenOff)));
            }
            if state.complete {
                return Poll::Ready(None);
            }
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        // What has piled up goes out in one write.
        let batch = if state.queue.is_empty() {
            first
        } else {
            let mut batch = BytesMut::from(first);
            while state
                .queue
                .front()
                .is_some_and(|next| batch.len() + next.len() <= BATCH)
            {
                batch.extend_from_slice(&state.queue.pop_front().expect("looked at it just now"));
            }
            batch.freeze()
        };
        state.bytes -= batch.len();
        drop(state);
        self.shared.taken.notify_one();
        Poll::Ready(Some(Ok(batch)))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.gone = true;
        state.queue.clear();
        drop(state);
        self.shared.taken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn queued(sink: &Sink) -> usize {
        sink.shared.lock().bytes
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_slow_once_the_bound_is_reached() {
        let (sink, _events) = channel(100, SHORT);
        let mut sent = 0;
        while sink.room().await.is_ok() {
            sink.send("0123456789");
            sent += 1;
            assert!(
                queued(&sink) < 100 + 18,
                "one event crosses the bound at most"
            );
        }
        assert_eq!(sent, 100usize.div_ceil(18));
        assert_eq!(sink.room().await, Err(Unsendable::Slow));
        sink.discard();
        assert_eq!(sink.room().await, Ok(()));
    }

    #[tokio::test]
    async fn each_taken_event_makes_room_and_nothing_is_lost() {
        let (sink, events) = channel(1, LONG);
        let writer = async {
            for i in 0..1000 {
                sink.room().await.unwrap();
                sink.send(&i.to_string());
            }
            sink.complete();
            sink.drained().await.unwrap();
        };
        let reader = events
            .map(|batch| String::from_utf8(batch.unwrap().to_vec()).unwrap())
            .collect::<String>();
        let ((), text) = tokio::join!(writer, reader);
        let expected: String = (0..1000).map(|i| format!("data: {i}\n\n")).collect();
        assert_eq!(text, expected);
    }

    #[tokio::test]
    async fn a_reader_that_goes_away_is_noticed_by_whoever_waits() {
        let (sink, events) = channel(1, LONG);
        sink.send("x");
        let (room, ()) = tokio::join!(sink.room(), async { drop(events) });
        assert_eq!(room, Err(Unsendable::Gone));
        sink.gone().await;
        assert_eq!(sink.drained().await, Err(Unsendable::Gone));
    }

    #[tokio::test]
    async fn a_body_that_fails_gives_out_what_there_is_and_breaks_off() {
        let (sink, mut events) = channel(100, LONG);
        sink.push(Bytes::from_static(b"half"));
        sink.fail();
        drop(sink);
        assert_eq!(&events.next().await.unwrap().unwrap()[..], b"half");
        assert_eq!(events.next().await, Some(Err(BrokenOff)));
    }

    #[tokio::test]
    async fn a_panic_breaks_a_body_off() {
        let (sink, mut events) = channel(100, LONG);
        let writer = tokio::spawn(async move {
            sink.push(Bytes::from_static(b"half"));
            panic!("on purpose");
        });
        assert!(writer.await.is_err());
        assert!(events.next().await.unwrap().is_ok());
        assert_eq!(events.next().await, Some(Err(BrokenOff)));
    }

    #[tokio::test]
    async fn what_has_piled_up_goes_out_together_in_order() {
        let (sink, mut events) = channel(1 << 20, LONG);
        for i in 0..3 {
            sink.send(&i.to_string());
        }
        assert_eq!(
            &events.next().await.unwrap().unwrap()[..],
            b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        );
        assert_eq!(queued(&sink), 0);
        let large = "y".repeat(BATCH);
        sink.send(&large);
        sink.send("z");
        assert_eq!(events.next().await.unwrap().unwrap().len(), BATCH + 8);
        drop(sink);
        assert_eq!(&events.next().await.unwrap().unwrap()[..], b"data: z\n\n");
        assert!(events.next().await.is_none());
    }
}
