//! `Invitation` and `ClientArena`: a client's way to its end of a pair, and that end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use denizen_shm::{ArenaError, Inbox, PeerEnd, Protocol, Taken};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::address;
use crate::errors::raise;
use crate::message::{timeout, to_dict, to_list, Payload, LARGE};

const PROTOCOL: Protocol = Protocol {
    call_of: address::call_of,
    cancel: address::cancel,
};

/// First and longest pause before a message that found no room is tried again.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
/// How often a waiting `send` lets Python handle signals.
const SIGNALS: Duration = Duration::from_millis(100);

#[pyclass(frozen, module = "denizen._native")]
pub struct Invitation {
    /// Taken by whoever attaches or refuses.
    invitation: Mutex<Option<denizen_shm::Invitation>>,
    #[pyo3(get)]
    requests: String,
    #[pyo3(get)]
    results: String,
    #[pyo3(get)]
    bell: String,
}

impl Invitation {
    fn take(&self) -> PyResult<denizen_shm::Invitation> {
        self.invitation
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
            .ok_or_else(|| raise(ArenaError::Closed))
    }
}

#[pymethods]
impl Invitation {
    #[staticmethod]
    #[pyo3(signature = (path, audio=false, timeout_ms=10_000))]
    fn request(py: Python<'_>, path: PathBuf, audio: bool, timeout_ms: u64) -> PyResult<Self> {
        let patience = Duration::from_millis(timeout_ms);
        let invitation = py
            .detach(|| denizen_shm::Invitation::request(&path, audio, patience))
            .map_err(raise)?;
        Ok(Invitation {
            requests: format!("/{}", invitation.requests()),
            results: format!("/{}", invitation.results()),
            bell: format!("/{}", invitation.bell()),
            invitation: Mutex::new(Some(invitation)),
        })
    }

    fn attach(&self, py: Python<'_>, requests_fd: i32, results_fd: i32) -> PyResult<ClientArena> {
        let invitation = self.take()?;
        py.detach(|| invitation.attach_opened(requests_fd, results_fd))
            .map(ClientArena::new)
            .map_err(raise)
    }

    fn refuse(&self, reason: &str) -> PyResult<()> {
        self.take()?.refuse(reason);
        Ok(())
    }
}

#[pyclass(frozen, module = "denizen._native")]
pub struct ClientArena {
    end: PeerEnd,
    inbox: Arc<Inbox>,
    /// Threads that are in here without the GIL.
    inside: AtomicUsize,
}

impl ClientArena {
    fn new(end: PeerEnd) -> Self {
        Self {
            inbox: end.inbox(PROTOCOL),
            end,
            inside: AtomicUsize::new(0),
        }
    }

    /// Runs `work` without the GIL.
    fn apart<T: Send>(&self, py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
        self.inside.fetch_add(1, Ordering::Relaxed);
        let done = py.detach(work);
        self.inside.fetch_sub(1, Ordering::Relaxed);
        done
    }

    /// Sends, or finds no room until `until`.
    fn send_until(
        &self,
        envelope: &[u8],
        attachment: Option<&[u8]>,
        until: Instant,
    ) -> Result<(), ArenaError> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.end.send(envelope, attachment) {
                Err(error) if full(&error) && Instant::now() < until => std::thread::sleep(pause),
                outcome => return outcome,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn full(error: &ArenaError) -> bool {
    matches!(
        error,
        ArenaError::SlabFull { .. } | ArenaError::RingFull { .. }
    )
}

/// A list; `None` of a call of which too much was left unread.
fn to_python(py: Python<'_>, taken: Taken) -> PyResult<Option<Bound<'_, PyList>>> {
    match taken {
        Taken::Messages(messages) => to_list(py, messages).map(Some),
        Taken::Closed => Ok(Some(PyList::empty(py))),
        Taken::Overflow => Ok(None),
    }
}

#[pymethods]
impl ClientArena {
    #[staticmethod]
    fn inherited(py: Python<'_>, fd: i32) -> PyResult<Self> {
        py.detach(|| PeerEnd::attach_inherited(fd))
            .map(Self::new)
            .map_err(raise)
    }

    #[getter]
    fn part_bytes(&self) -> usize {
        self.end.part_bytes()
    }

    #[getter]
    fn gone(&self) -> bool {
        self.end.gone()
    }

    #[getter]
    fn inside(&self) -> usize {
        self.inside.load(Ordering::Relaxed)
    }

    #[getter]
    fn open_calls(&self) -> usize {
        self.inbox.open_calls()
    }

    #[pyo3(signature = (envelope, attachment=None, timeout_ms=0))]
    fn send(
        &self,
        py: Python<'_>,
        envelope: &[u8],
        attachment: Option<&Bound<'_, PyAny>>,
        timeout_ms: i64,
    ) -> PyResult<()> {
        let payload = attachment.map(Payload::of).transpose()?;
        let bytes = payload.as_ref().map(Payload::as_slice);
        if envelope.len() + bytes.map_or(0, <[u8]>::len) <= LARGE {
            match self.end.send(envelope, bytes) {
                Err(error) if full(&error) && timeout_ms != 0 => {}
                outcome => return outcome.map_err(raise),
            }
        }
        let deadline = timeout(timeout_ms).and_then(|wait| Instant::now().checked_add(wait));
        loop {
            let slice = Instant::now() + SIGNALS;
            let until = deadline.map_or(slice, |deadline| deadline.min(slice));
            match self.apart(py, || self.send_until(envelope, bytes, until)) {
                Err(error) if full(&error) && Some(until) != deadline => py.check_signals()?,
                outcome => return outcome.map_err(raise),
            }
        }
    }

    fn open(&self, call: u64, limit: usize) -> PyResult<()> {
        self.inbox.open(call, limit).map_err(raise)
    }

    #[pyo3(signature = (call, timeout_ms=-1))]
    fn take<'py>(
        &self,
        py: Python<'py>,
        call: u64,
        timeout_ms: i64,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let deadline = timeout(timeout_ms).and_then(|wait| Instant::now().checked_add(wait));
        loop {
            let slice = Instant::now() + SIGNALS;
            let until = deadline.map_or(slice, |deadline| deadline.min(slice));
            let wait = until.saturating_duration_since(Instant::now());
            let taken = self
                .apart(py, || self.inbox.take(call, Some(wait)))
                .map_err(raise)?;
            match taken {
                Taken::Messages(none) if none.is_empty() => {
                    py.check_signals()?;
                    if Some(until) == deadline {
                        return to_python(py, Taken::Messages(none));
                    }
                }
                taken => return to_python(py, taken),
            }
        }
    }

    fn collect<'py>(&self, py: Python<'py>, call: u64) -> PyResult<Option<Bound<'py, PyList>>> {
        to_python(py, self.inbox.collect(call))
    }

    fn announce(&self) {
        self.inbox.announce();
    }

    #[pyo3(signature = (timeout_ms=-1))]
    fn arrivals(&self, py: Python<'_>, timeout_ms: i64) -> PyResult<Vec<u64>> {
        let calls = self
            .apart(py, || self.inbox.arrivals(timeout(timeout_ms)))
            .map_err(raise)?;
        if calls.is_empty() {
            py.check_signals()?;
        }
        Ok(calls)
    }

    fn close_call(&self, call: u64) {
        self.inbox.close(call);
    }

    fn cancel(&self, call: u64) {
        self.inbox.cancel(call);
    }

    #[pyo3(signature = (max_messages=256, timeout_ms=-1))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        max_messages: usize,
        timeout_ms: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let messages = self
            .apart(py, || {
                self.end.recv(max_messages.max(1), timeout(timeout_ms))
            })
            .map_err(raise)?;
        if messages.is_empty() {
            py.check_signals()?;
        }
        to_list(py, messages)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, &self.end.stats())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.end.close());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }
}
