//! What comes over a client's arena, sorted by the call that it belongs to, for threads that each wait for one call.
//!
//! No thread has the task to receive. Of those that wait, one leads: it sleeps on the doorbell, takes what comes for all,
//! wakes whose it is, and hands the lead on when its own has come. So an answer wakes the very thread that waits for it.
//! What comes while nobody waits is taken by the thread that beats the heart, at its next beat: the peer sees an end that
//! takes its messages, however seldom the program reads.
//!
//! Nothing is lost between taking and sorting, whatever signal arrives: both happen in here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;
use crate::error::{ArenaError, Result};
use crate::receiver::Message;
use crate::watch::told_twice;

/// Messages taken at once.
const BATCH: usize = 256;
/// What a message counts besides its attachment while it waits.
const MESSAGE_BYTES: usize = 1024;

/// How the envelopes of a protocol are addressed.
#[derive(Clone, Copy)]
pub struct Protocol {
    /// The call that an envelope belongs to; `None` if it cannot be read.
    pub call_of: fn(&[u8]) -> Option<u64>,
    /// The envelope that tells the peer that a call is of no interest any more.
    pub cancel: fn(u64) -> Vec<u8>,
}

/// What [`Inbox::take`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// In the order in which they came; none on timeout or a signal.
    Messages(Vec<Message>),
    /// The call is not open, or not any more.
    Closed,
    /// More than the call's limit came and was not taken. What came later is lost, and the call was cancelled.
    Overflow,
}

/// The messages of one arena end. All methods may be called from any thread, each call's from one at a time.
pub struct Inbox {
    endpoint: Arc<Endpoint>,
    protocol: Protocol,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    boxes: HashMap<u64, Postbox>,
    lead: Lead,
    /// Calls that have got messages and that nobody waits for; kept for [`Inbox::arrivals`] alone.
    fresh: Vec<u64>,
    announced: bool,
    /// Calls of which the cancelling had no room yet.
    cancels: VecDeque<u64>,
    broken: Option<String>,
}

/// Who receives.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Lead {
    #[default]
    Nobody,
    /// The thread that waits for this call.
    Call(u64),
    /// [`Inbox::arrivals`].
    Announcer,
}

struct Postbox {
    messages: Vec<Message>,
    bytes: usize,
    limit: usize,
    overflow: bool,
    /// Its thread sleeps on `ready`, while another leads.
    waiting: bool,
    ready: Arc<Condvar>,
}

impl Inbox {
    pub(crate) fn new(endpoint: Arc<Endpoint>, protocol: Protocol) -> Self {
        Inbox {
            endpoint,
            protocol,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `call` gets its messages, of which at most `limit` bytes may wait.
    pub fn open(&self, call: u64, limit: usize) -> Result<()> {
        self.endpoint.check_usable()?;
        let postbox = Postbox {
            messages: Vec::new(),
            bytes: 0,
            limit,
            overflow: false,
            waiting: false,
            ready: Arc::default(),
        };
        self.lock().boxes.insert(call, postbox);
        Ok(())
    }

    /// Calls that are open.
    pub fn open_calls(&self) -> usize {
        self.lock().boxes.len()
    }

    /// What has come for `call`; waits for it, at most `timeout`. The errors of [`crate::PeerEnd::recv`], once everything
    /// that came before has been taken.
    pub fn take(&self, call: u64, timeout: Option<Duration>) -> Result<Taken> {
        self.endpoint.check_usable()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        let taken = loop {
            match state.collect(call) {
                Taken::Messages(none) if none.is_empty() => {}
                taken => break Ok(taken),
            }
            if let Err(error) = state.check() {
                break Err(error);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if state.lead == Lead::Nobody {
                state.lead = Lead::Call(call);
                drop(state);
                let received = self.receive(left);
                state = self.lock();
                state.lead = Lead::Nobody;
                match received.and_then(|messages| self.sort(&mut state, messages)) {
                    Ok(0) => break Ok(state.collect(call)),
                    Ok(_) => {}
                    Err(error) => break Err(error),
                }
            } else if left == Some(Duration::ZERO) {
                break Ok(Taken::Messages(Vec::new()));
            } else {
                state = Self::follow(state, call, left);
            }
        };
        state.hand_on();
        taken
    }

    /// From now on [`Inbox::arrivals`] will be told of what comes.
    pub fn announce(&self) {
        self.lock().announced = true;
    }

    /// What has come for `call` and was sorted already. For use beside [`Inbox::arrivals`].
    pub fn collect(&self, call: u64) -> Taken {
        if self.endpoint.forked() {
            return Taken::Closed;
        }
        self.lock().collect(call)
    }

    /// Waits until messages have come for calls that nobody waits for, and says for which. Empty on a signal. For one
    /// thread that tells others, which then [`Inbox::collect`]; [`Inbox::announce`] comes first.
    pub fn arrivals(&self, timeout: Option<Duration>) -> Result<Vec<u64>> {
        self.endpoint.check_usable()?;
        let mut state = self.lock();
        while state.fresh.is_empty() {
            state.check()?;
            state.lead = Lead::Announcer;
            drop(state);
            let received = self.receive(timeout);
            state = self.lock();
            state.lead = Lead::Nobody;
            if self.sort(&mut state, received?)? == 0 {
                break;
            }
        }
        Ok(std::mem::take(&mut state.fresh))
    }

    /// `call` has ended: what still comes for it is dropped.
    pub fn close(&self, call: u64) {
        if !self.endpoint.forked() {
            self.lock().boxes.remove(&call);
        }
    }

    /// Ends `call` here and at the peer. A thread that waits for it gets nothing.
    pub fn cancel(&self, call: u64) {
        if self.endpoint.forked() {
            return;
        }
        let mut state = self.lock();
        if let Some(postbox) = state.boxes.remove(&call) {
            postbox.ready.notify_all();
        }
        if state.lead == Lead::Call(call) {
            // Of a closed end nobody waits.
            let _ = self.endpoint.wake();
        }
        state.cancels.push_back(call);
        self.send_cancels(&mut state);
    }

    /// Takes what waits if nobody else does. Called at every beat.
    pub(crate) fn tend(&self) {
        let mut state = self.lock();
        if state.lead != Lead::Nobody || state.boxes.is_empty() {
            return;
        }
        self.send_cancels(&mut state);
        // An error is for those who wait: they see it too.
        while let Ok(Some(message)) = self.endpoint.try_recv() {
            if self.sort(&mut state, vec![message]).is_err() {
                break;
            }
        }
    }

    fn receive(&self, timeout: Option<Duration>) -> Result<Vec<Message>> {
        let on_socket = || self.endpoint.read_socket(told_twice);
        self.endpoint.recv(BATCH, timeout, on_socket)
    }

    /// Waits until the leader has something for `call`, or the lead.
    fn follow(
        mut state: MutexGuard<'_, State>,
        call: u64,
        left: Option<Duration>,
    ) -> MutexGuard<'_, State> {
        let Some(postbox) = state.boxes.get_mut(&call) else {
            return state;
        };
        postbox.waiting = true;
        let ready = postbox.ready.clone();
        state = match left {
            None => ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(left) => {
                let waited = ready.wait_timeout(state, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if let Some(postbox) = state.boxes.get_mut(&call) {
            postbox.waiting = false;
        }
        state
    }

    /// Puts each message into its box. Returns how many there were.
    fn sort(&self, state: &mut State, messages: Vec<Message>) -> Result<usize> {
        let count = messages.len();
        for message in messages {
            if state.broken.is_none() {
                match (self.protocol.call_of)(&message.envelope) {
                    Some(call) => state.put(call, message),
                    None => {
                        state.broken = Some("an envelope that belongs to no call".to_owned());
                    }
                }
            }
        }
        self.send_cancels(state);
        state.check().map(|()| count)
    }

    fn send_cancels(&self, state: &mut State) {
        while let Some(call) = state.cancels.front() {
            let sent = self.endpoint.send(&(self.protocol.cancel)(*call), None);
            if let Err(ArenaError::RingFull { .. } | ArenaError::SlabFull { .. }) = sent {
                return;
            }
            // Sent, or there is nobody to tell.
            state.cancels.pop_front();
        }
    }
}

impl State {
    fn check(&self) -> Result<()> {
        match &self.broken {
            Some(what) => Err(ArenaError::Corrupt(what.clone())),
            None => Ok(()),
        }
    }

    /// Empties a box.
    fn collect(&mut self, call: u64) -> Taken {
        let Some(postbox) = self.boxes.get_mut(&call) else {
            return Taken::Closed;
        };
        if postbox.messages.is_empty() && postbox.overflow {
            return Taken::Overflow;
        }
        postbox.bytes = 0;
        Taken::Messages(std::mem::take(&mut postbox.messages))
    }

    fn put(&mut self, call: u64, message: Message) {
        let Some(postbox) = self.boxes.get_mut(&call) else {
            return; // late
        };
        if postbox.overflow {
            return;
        }
        postbox.bytes += MESSAGE_BYTES + message.attachment.as_ref().map_or(0, Vec::len);
        if postbox.bytes > postbox.limit {
            postbox.overflow = true;
            self.cancels.push_back(call);
        } else {
            postbox.messages.push(message);
        }
        if postbox.waiting {
            postbox.ready.notify_one();
        } else if self.announced && !self.fresh.contains(&call) {
            self.fresh.push(call);
        }
    }

    /// Whoever leaves wakes one of those who wait, lest nobody receives.
    fn hand_on(&mut self) {
        if self.lead == Lead::Nobody {
            let next = self.boxes.values().find(|postbox| postbox.waiting);
            if let Some(postbox) = next {
                postbox.ready.notify_one();
            }
        }
    }
}
