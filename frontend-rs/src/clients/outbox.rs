//! Output to one client, bounded in bytes.
//!
//! A message goes straight into the arena if it has room. Else it waits here, and all later ones behind it; the
//! session's task tries again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use denizen_shm::{ArenaError, HostEnd};
use tokio::sync::Notify;
use tokio::time::{timeout_at, Instant};

use super::envelope::Message;
use crate::http::outlet::Outlet;
use crate::http::sse::Unsendable;
use crate::http::{ApiError, App};

/// Bytes that wait for one client, over all its calls.
const MAX_CLIENT: usize = 16 << 20;

pub struct Outbox {
    app: Arc<App>,
    host: Arc<HostEnd>,
    state: Mutex<State>,
    /// Something that waited has left.
    moved: Notify,
    /// Something waits: the session is to try again.
    waits: Notify,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    bytes: usize,
    /// Messages that were sent after they had waited.
    moved: u64,
    sequence: u64,
    /// Nothing more can be sent.
    closed: bool,
    /// Why, until the session has been told.
    fault: Option<ArenaError>,
}

struct Waiting {
    call: Option<Arc<Open>>,
    message: Message,
}

/// What [`Outbox::pump`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pumped {
    /// Nothing waits.
    Empty,
    /// Something went, and something still waits.
    Some,
    /// There is no room.
    None,
}

/// A call that has not had its terminal. All fields change under the outbox's lock.
struct Open {
    app: Arc<App>,
    endpoint: &'static str,
    request: u64,
    open: AtomicBool,
    /// Of its terminal; 499 before that.
    status: AtomicU16,
    /// Waiting in the queue.
    bytes: AtomicUsize,
}

impl Drop for Open {
    fn drop(&mut self) {
        let status = self.status.load(Ordering::Relaxed);
        self.app.clients.request(self.endpoint, status);
    }
}

impl Outbox {
    pub fn new(app: Arc<App>, host: Arc<HostEnd>) -> Arc<Self> {
        Arc::new(Self {
            app,
            host,
            state: Mutex::default(),
            moved: Notify::new(),
            waits: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message that belongs to no call.
    pub fn post(&self, message: Message) {
        self.put(&mut self.lock(), None, message);
    }

    fn put(&self, state: &mut State, call: Option<&Arc<Open>>, message: Message) {
        if state.closed {
            return;
        }
        if state.queue.is_empty() {
            match self.send(state, call.map_or(0, |call| call.request), &message) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    // The session learns it from its next look.
                    state.closed = true;
                    state.fault = Some(error);
                    self.waits.notify_one();
                    return;
                }
            }
        }
        let bytes = message.bytes();
        state.bytes += bytes;
        if let Some(call) = call {
            call.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        state.queue.push_back(Waiting {
            call: call.cloned(),
            message,
        });
        self.waits.notify_one();
    }

    /// False if there is no room.
    fn send(&self, state: &mut State, request: u64, message: &Message) -> Result<bool, ArenaError> {
        let envelope = message.encode(request, state.sequence);
        match self.host.send(&envelope, message.attachment.as_deref()) {
            Ok(()) => {
                state.sequence += 1;
                Ok(true)
            }
            Err(ArenaError::RingFull { .. } | ArenaError::SlabFull { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends what waits, as far as there is room. An error means that the client has gone, or writes nonsense.
    pub fn pump(&self) -> Result<Pumped, ArenaError> {
        let mut state = self.lock();
        if let Some(error) = state.fault.take() {
            return Err(error);
        }
        let mut pumped = Pumped::None;
        while let Some(waiting) = state.queue.pop_front() {
            let request = waiting.call.as_ref().map_or(0, |call| call.request);
            match self.send(&mut state, request, &waiting.message) {
                Ok(true) => {
                    self.left(&mut state, &waiting);
                    state.moved += 1;
                    pumped = Pumped::Some;
                }
                Ok(false) => {
                    state.queue.push_front(waiting);
                    break;
                }
                Err(error) => {
                    state.closed = true;
                    return Err(error);
                }
            }
        }
        if pumped == Pumped::Some {
            self.moved.notify_waiters();
        }
        Ok(if state.queue.is_empty() {
            Pumped::Empty
        } else {
            pumped
        })
    }

    fn left(&self, state: &mut State, waiting: &Waiting) {
        let bytes = waiting.message.bytes();
        state.bytes -= bytes;
        if let Some(call) = &waiting.call {
            call.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Returns when something has begun to wait.
    pub async fn waits(&self) {
        self.waits.notified().await;
    }

    /// Waits until `enough`, for as long as the client takes something now and then.
    async fn until(&self, enough: impl Fn(&State) -> bool) -> Result<(), Unsendable> {
        let patience = self.app.config.slow_client_timeout;
        let mut seen = None;
        let mut deadline = Instant::now() + patience;
        loop {
            let moved = self.moved.notified();
            {
                let state = self.lock();
                if enough(&state) || state.closed {
                    return Ok(());
                }
                if seen.replace(state.moved) != Some(state.moved) {
                    deadline = Instant::now() + patience;
                }
            }
            if timeout_at(deadline, moved).await.is_err() {
                return Err(Unsendable::Slow);
            }
        }
    }

    /// Nothing will be sent any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        state.bytes = 0;
        self.moved.notify_waiters();
    }
}

/// The way of one call's output to its client. Exactly one terminal gets through.
#[derive(Clone)]
pub struct Lane {
    outbox: Arc<Outbox>,
    call: Arc<Open>,
}

impl Lane {
    pub fn open(outbox: &Arc<Outbox>, request: u64, endpoint: &'static str) -> Self {
        Self {
            call: Arc::new(Open {
                app: outbox.app.clone(),
                endpoint,
                request,
                open: AtomicBool::new(true),
                status: AtomicU16::new(499),
                bytes: AtomicUsize::new(0),
            }),
            outbox: outbox.clone(),
        }
    }

    /// Whether both are of one call.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.call, &other.call)
    }

    pub fn is_open(&self) -> bool {
        self.call.open.load(Ordering::Relaxed)
    }

    /// Sends messages that belong together; after a terminal nothing more is sent.
    pub fn send(&self, messages: impl IntoIterator<Item = Message>) {
        let mut state = self.outbox.lock();
        for message in messages {
            if !self.is_open() {
                return;
            }
            if let Some(status) = message.status {
                self.call.open.store(false, Ordering::Relaxed);
                self.call.status.store(status, Ordering::Relaxed);
            }
            self.outbox.put(&mut state, Some(&self.call), message);
        }
    }
}

impl Lane {
    /// Adds to the call's piece of speech that waits last for room; false if none does. Few large messages need less of
    /// the client's shared memory than many small ones, so one that lags catches up.
    pub fn grow(&self, samples: &[u8], most: usize) -> bool {
        let mut state = self.outbox.lock();
        let Some(last) = state.queue.back_mut() else {
            return false;
        };
        let own = last
            .call
            .as_ref()
            .is_some_and(|call| Arc::ptr_eq(call, &self.call));
        if !own || !last.message.grow(samples, most) {
            return false;
        }
        state.bytes += samples.len();
        self.call.bytes.fetch_add(samples.len(), Ordering::Relaxed);
        true
    }
}

impl Outlet for Lane {
    async fn room(&self) -> Result<(), Unsendable> {
        let limit = self.outbox.app.config.max_buffered;
        let bytes = &self.call.bytes;
        self.outbox
            .until(|state| bytes.load(Ordering::Relaxed) < limit && state.bytes < MAX_CLIENT)
            .await
    }

    async fn drained(&self) -> Result<(), Unsendable> {
        let bytes = &self.call.bytes;
        self.outbox
            .until(|_| bytes.load(Ordering::Relaxed) == 0)
            .await
    }

    /// A call of a client that has gone is dropped with its session.
    async fn gone(&self) {
        std::future::pending().await
    }

    fn fail(&self, error: &ApiError) {
        self.send([Message::failed(error)]);
    }

    fn discard(&self) {
        let mut state = self.outbox.lock();
        let queue = std::mem::take(&mut state.queue);
        for waiting in queue {
            if !waiting
                .call
                .as_ref()
                .is_some_and(|call| Arc::ptr_eq(call, &self.call))
            {
                state.queue.push_back(waiting);
                continue;
            }
            self.outbox.left(&mut state, &waiting);
            if waiting.message.status.is_some() {
                // It has not been sent; another one can be.
                self.call.open.store(true, Ordering::Relaxed);
            }
        }
        self.outbox.moved.notify_waiters();
    }
}
