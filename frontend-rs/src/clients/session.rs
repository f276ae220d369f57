//! One client: what it says is taken out of its arena, its calls are started and cancelled, its output is sent.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use denizen_shm::{ArenaError, HostEnd, Link, Message as Received};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::call::{self, Endpoint};
use super::envelope::{decode, FromClient, Message};
use super::outbox::{Lane, Outbox, Pumped};
use super::upload::{Intake, Upload};
use crate::http::outlet::Outlet;
use crate::http::{ApiError, App};

/// Messages handled before other tasks get a turn.
const SLICE: usize = 64;
/// Pauses between two looks for room in the arena of a client that does not take its messages.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Why a client is cut off: the name in `/metrics`, and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutOff {
    pub reason: &'static str,
    pub why: String,
}

impl From<ArenaError> for CutOff {
    fn from(error: ArenaError) -> Self {
        Self {
            reason: "arena",
            why: error.to_string(),
        }
    }
}

impl From<io::Error> for CutOff {
    fn from(error: io::Error) -> Self {
        Self {
            reason: "arena",
            why: format!("its arena cannot be waited for: {error}"),
        }
    }
}

/// Calls that are open or whose output is still on its way, by the client's number.
type Calls = Arc<Mutex<HashMap<u64, Running>>>;

struct Running {
    lane: Lane,
    task: AbortHandle,
    intake: Intake,
}

fn lock(calls: &Calls) -> MutexGuard<'_, HashMap<u64, Running>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Session {
    app: Arc<App>,
    host: Arc<HostEnd>,
    outbox: Arc<Outbox>,
    calls: Calls,
    /// Dropped with the session: nobody waits for a call of a client that has gone.
    tasks: JoinSet<()>,
}

/// Wait for a descriptor that stays open.
pub fn readable(fd: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    // The owned descriptors stay open and the same, which is all that the unsafe successor of this call asks for.
    #[allow(deprecated)]
    AsyncFd::with_interest(fd.try_clone_to_owned()?, Interest::READABLE)
}

/// When the server stops: the time until which open calls may finish.
pub type Stop = watch::Receiver<Option<Instant>>;

impl Session {
    pub fn new(app: Arc<App>, host: Arc<HostEnd>) -> Self {
        let outbox = Outbox::new(app.clone(), host.clone());
        Self {
            app,
            host,
            outbox,
            calls: Calls::default(),
            tasks: JoinSet::new(),
        }
    }

    /// Serves the client until it goes, or the server stops.
    pub async fn run(mut self, welcome: Message, stop: &mut Stop) -> Result<(), CutOff> {
        self.outbox.post(welcome);
        let ended = self.serve(stop).await;
        match &ended {
            Ok(Gone::Left) => {}
            Ok(Gone::Stopped) => {
                let why = "the server is shutting down";
                self.farewell(Message::bye("shutting_down", why));
            }
            Err(cut) => {
                let code = if cut.reason == "hung" {
                    "hung"
                } else {
                    "protocol"
                };
                self.farewell(Message::bye(code, &cut.why));
            }
        }
        self.outbox.close();
        self.host.close();
        ended.map(drop)
    }

    /// The last envelope, if there is room for what waits and for it.
    fn farewell(&self, bye: Message) {
        self.outbox.post(bye);
        let _ = self.outbox.pump();
    }

    async fn serve(&mut self, stop: &mut Stop) -> Result<Gone, CutOff> {
        let host = self.host.clone();
        let (bell, socket) = (readable(host.doorbell_fd())?, readable(host.socket_fd())?);
        let mut pause = FIRST_PAUSE;
        let mut moved = Instant::now();
        loop {
            if self.take_some()? {
                tokio::task::yield_now().await;
                continue;
            }
            let pumped = match self.outbox.pump() {
                Err(ArenaError::PeerGone { .. }) => return Ok(Gone::Left),
                pumped => pumped?,
            };
            if pumped == Pumped::None {
                pause = (pause * 2).min(LONGEST_PAUSE);
                if moved.elapsed() > self.app.config.hung_client_timeout {
                    let why = "it took nothing, not even the ends of its calls".to_owned();
                    return Err(CutOff {
                        reason: "hung",
                        why,
                    });
                }
            } else {
                (pause, moved) = (FIRST_PAUSE, Instant::now());
            }
            let ending = *stop.borrow_and_update();
            if let Some(deadline) = ending {
                let done = pumped == Pumped::Empty && lock(&self.calls).is_empty();
                if done || Instant::now() >= deadline {
                    return Ok(Gone::Stopped);
                }
            }
            if !host.arm()? {
                continue;
            }
            // What waits is tried again; else only the end of the server's patience is waited for.
            let again = match ending {
                _ if pumped != Pumped::Empty => Some(Instant::now() + pause),
                deadline => deadline,
            };
            let nap = tokio::time::sleep_until(again.unwrap_or_else(Instant::now));
            let link = tokio::select! {
                ready = bell.readable() => {
                    // First the doorbell, then tokio's note of it: a ring in between is not lost.
                    host.disarm()?;
                    ready?.clear_ready();
                    Link::Up
                }
                ready = socket.readable() => {
                    host.disarm()?;
                    let link = host.poll_socket();
                    ready?.clear_ready();
                    link?
                }
                () = self.outbox.waits() => Link::Up,
                () = nap, if again.is_some() => Link::Up,
                Some(_) = self.tasks.join_next() => Link::Up,
                Ok(()) = stop.changed() => Link::Up,
            };
            host.disarm()?;
            if link == Link::Gone {
                // What it published before it went asks for nothing any more.
                return Ok(Gone::Left);
            }
        }
    }

    /// Handles a slice of what has come; false if there was nothing.
    fn take_some(&mut self) -> Result<bool, CutOff> {
        let mut any = false;
        for _ in 0..SLICE {
            let Some(message) = self.host.try_recv()? else {
                break;
            };
            any = true;
            self.handle(message).map_err(|why| CutOff {
                reason: "envelope",
                why,
            })?;
        }
        Ok(any)
    }

    fn handle(&mut self, message: Received) -> Result<(), String> {
        let said = decode(&message.envelope)
            .map_err(|error| format!("it sent a malformed message: {error}"))?;
        match said {
            FromClient::Call { request, call } => {
                return self.begin(request, call, message.attachment);
            }
            FromClient::Cancel { request } => self.cancel(request),
            FromClient::Part { request } => {
                let part = message.attachment.unwrap_or_default();
                let mut calls = lock(&self.calls);
                // One that has ended takes nothing: its end may have crossed the part.
                let open = calls.get_mut(&request).filter(|call| call.lane.is_open());
                if open.is_some_and(|call| !call.intake.push(part)) {
                    return Err(format!("call {request} sent more than it announced"));
                }
            }
            // The end of its socket follows.
            FromClient::Bye => {}
        }
        Ok(())
    }

    fn begin(
        &mut self,
        request: u64,
        mut call: super::envelope::Call,
        attachment: Option<Vec<u8>>,
    ) -> Result<(), String> {
        let mut calls = lock(&self.calls);
        if calls.get(&request).is_some_and(|call| call.lane.is_open()) {
            return Err(format!("call {request} was begun twice"));
        }
        let endpoint = Endpoint::of(&call.endpoint);
        let (upload, intake) = Upload::of(&mut call, attachment)
            .ok_or_else(|| format!("call {request} sent more than it announced"))?;
        let lane = Lane::open(&self.outbox, request, endpoint.name());
        let work = call::answer(self.app.clone(), endpoint, upload, call.rate, lane.clone());
        let (table, own) = (self.calls.clone(), lane.clone());
        // The task cannot take itself out before it is in: the lock is held until then.
        let task = self.tasks.spawn(async move {
            work.await;
            let mut calls = lock(&table);
            if calls.get(&request).is_some_and(|call| call.lane.is(&own)) {
                calls.remove(&request);
            }
        });
        let running = Running { lane, task, intake };
        calls.insert(request, running);
        Ok(())
    }

    fn cancel(&self, request: u64) {
        let mut calls = lock(&self.calls);
        let Some(call) = calls.get(&request).filter(|call| call.lane.is_open()) else {
            return;
        };
        call.task.abort();
        call.lane.discard();
        call.lane.fail(&cancelled());
        self.app.counters.aborted("cancelled");
        calls.remove(&request);
    }
}

enum Gone {
    Left,
    Stopped,
}

/// 499, as proxies call it.
fn cancelled() -> ApiError {
    let status = StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST);
    ApiError::new(status, "cancelled", "the client cancelled the call")
}
