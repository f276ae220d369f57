//! `Invitation` and `ClientArena`: a client's way to its end of a pair, and that end.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use denizen_shm::{ArenaError, PeerEnd};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::raise;
use crate::message::{timeout, to_dict, to_list, Payload, LARGE};

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
            .map(ClientArena)
            .map_err(raise)
    }

    fn refuse(&self, reason: &str) -> PyResult<()> {
        self.take()?.refuse(reason);
        Ok(())
    }
}

#[pyclass(frozen, module = "denizen._native")]
pub struct ClientArena(PeerEnd);

impl ClientArena {
    /// Sends, or finds no room until `until`.
    fn send_until(
        &self,
        envelope: &[u8],
        attachment: Option<&[u8]>,
        until: Instant,
    ) -> Result<(), ArenaError> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.0.send(envelope, attachment) {
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

#[pymethods]
impl ClientArena {
    #[getter]
    fn part_bytes(&self) -> usize {
        self.0.part_bytes()
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
            match self.0.send(envelope, bytes) {
                Err(error) if full(&error) && timeout_ms != 0 => {}
                outcome => return outcome.map_err(raise),
            }
        }
        let deadline = timeout(timeout_ms).and_then(|wait| Instant::now().checked_add(wait));
        loop {
            let slice = Instant::now() + SIGNALS;
            let until = deadline.map_or(slice, |deadline| deadline.min(slice));
            match py.detach(|| self.send_until(envelope, bytes, until)) {
                Err(error) if full(&error) && Some(until) != deadline => py.check_signals()?,
                outcome => return outcome.map_err(raise),
            }
        }
    }

    #[pyo3(signature = (max_messages=256, timeout_ms=-1))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        max_messages: usize,
        timeout_ms: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let messages = py
            .detach(|| self.0.recv(max_messages.max(1), timeout(timeout_ms)))
            .map_err(raise)?;
        if messages.is_empty() {
            py.check_signals()?;
        }
        to_list(py, messages)
    }

    fn wake(&self) -> PyResult<()> {
        self.0.wake().map_err(raise)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, &self.0.stats())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
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
