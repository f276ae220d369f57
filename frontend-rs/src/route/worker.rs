//! What the router knows of one worker.

use std::collections::VecDeque;
use std::sync::Arc;

use denizen_shm::{ArenaError, HostEnd};

use super::envelope::{encode, Load, Stats, ToWorker};

/// The way to a worker. Sending never blocks.
pub trait Link: Send + Sync + 'static {
    fn send(&self, envelope: &[u8], attachment: Option<&[u8]>) -> Result<(), SendError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendError {
    /// No room now; the same message may be sent later.
    Full,
    /// The message can never be sent over this arena.
    TooLarge(String),
    /// The worker has gone; its death is handled where it is noticed.
    Gone,
}

impl Link for HostEnd {
    fn send(&self, envelope: &[u8], attachment: Option<&[u8]>) -> Result<(), SendError> {
        HostEnd::send(self, envelope, attachment).map_err(|error| match error {
            ArenaError::SlabFull { .. } | ArenaError::RingFull { .. } => SendError::Full,
            ArenaError::TooLarge { .. } => SendError::TooLarge(error.to_string()),
            _ => SendError::Gone,
        })
    }
}

/// Whether a worker takes requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerState {
    /// Not started yet, starting or loading.
    Starting(Option<Load>),
    Ready,
    /// Makes no progress; why.
    Stalled(String),
    /// Dead; it will be started again.
    Down(String),
}

/// Most requests in flight at one worker, whatever it grants: each may need a SUBMIT and an ABORT in the ring.
const MAX_CREDITS: u32 = 480;

/// One worker, through all its lives.
pub struct Worker {
    /// For messages and metrics: `worker 0 (cpu)`.
    pub name: String,
    /// Names of the models that it hosts.
    pub models: Vec<String>,
    pub state: WorkerState,
    /// Which life it is in; messages of an earlier one are dropped.
    pub epoch: u64,
    pub stats: Stats,
    pub in_flight: u32,
    credits: u32,
    link: Option<Arc<dyn Link>>,
    sequence: u64,
    /// ABORT and DRAIN that found no room; small, at most one a request.
    outbox: VecDeque<Vec<u8>>,
    /// It had no room a moment ago: not worth encoding another request for.
    full: bool,
}

impl Worker {
    pub fn new(name: String, models: Vec<String>) -> Self {
        Self {
            name,
            models,
            state: WorkerState::Starting(None),
            epoch: 0,
            stats: Stats::default(),
            in_flight: 0,
            credits: 0,
            link: None,
            sequence: 0,
            outbox: VecDeque::new(),
            full: false,
        }
    }

    /// A new life begins.
    pub fn start(&mut self, epoch: u64, link: Arc<dyn Link>) {
        self.state = WorkerState::Starting(None);
        self.epoch = epoch;
        self.link = Some(link);
        self.credits = 0;
        self.sequence = 0;
        self.stats = Stats::default();
        self.outbox.clear();
    }

    pub fn stop(&mut self, why: String) {
        self.state = WorkerState::Down(why);
        self.link = None;
        self.in_flight = 0;
        self.stats = Stats::default();
        self.outbox.clear();
    }

    /// How far its weights are.
    pub fn loads(&mut self, load: Load) {
        if matches!(self.state, WorkerState::Starting(_)) {
            self.state = WorkerState::Starting(Some(load));
        }
    }

    pub fn grant(&mut self, credits: u32) {
        self.credits = credits.min(MAX_CREDITS);
        self.state = WorkerState::Ready;
    }

    pub fn has_room(&self) -> bool {
        self.state == WorkerState::Ready && self.in_flight < self.credits && !self.full
    }

    /// It is ready, but its arena had no room.
    pub fn is_full(&self) -> bool {
        self.state == WorkerState::Ready && self.full
    }

    pub fn hosts(&self, model: &str) -> bool {
        self.models.iter().any(|name| name == model)
    }

    /// Sends, or says why not. Messages that wait go first.
    pub fn try_send(
        &mut self,
        body: &ToWorker<'_>,
        request: u64,
        attachment: Option<&[u8]>,
    ) -> Result<(), SendError> {
        if !self.flush() {
            return Err(SendError::Full);
        }
        let link = self.link.as_ref().ok_or(SendError::Gone)?;
        let sent = link.send(&encode(body, request, self.sequence), attachment);
        self.full = sent == Err(SendError::Full);
        sent?;
        self.sequence += 1;
        Ok(())
    }

    /// Sends now or as soon as there is room.
    pub fn post(&mut self, body: &ToWorker<'_>, request: u64) {
        if self.link.is_some() {
            self.outbox.push_back(encode(body, request, self.sequence));
            self.sequence += 1;
            self.flush();
        }
    }

    /// Sends what waits; true if nothing does any more. A worker that was full may be asked again.
    pub fn flush(&mut self) -> bool {
        self.full = false;
        while let (Some(envelope), Some(link)) = (self.outbox.front(), &self.link) {
            match link.send(envelope, None) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(SendError::Full) => {
                    self.full = true;
                    return false;
                }
                Err(_) => self.outbox.clear(),
            }
        }
        true
    }

    /// Why this worker does not serve now; `None` if it does.
    pub fn not_ready(&self) -> Option<String> {
        let why = match &self.state {
            WorkerState::Ready => return None,
            WorkerState::Starting(None) => "starting".to_owned(),
            WorkerState::Starting(Some(load)) => {
                let percent = load.done.saturating_mul(100) / load.total.max(1);
                format!("loading {}: {percent} %", load.model)
            }
            WorkerState::Stalled(why) => why.clone(),
            WorkerState::Down(why) => format!("{why}; it will be started again"),
        };
        Some(format!("{}: {why}", self.name))
    }
}
