//! `Arena`: a worker's end.

use denizen_shm::{PeerEnd, Phase};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::raise;
use crate::message::{timeout, to_dict, to_list, Payload, LARGE};

#[pyclass(frozen, module = "denizen._native")]
pub struct Arena(PeerEnd);

#[pymethods]
impl Arena {
    #[staticmethod]
    fn attach(py: Python<'_>, fd: i32) -> PyResult<Self> {
        py.detach(|| PeerEnd::attach_inherited(fd))
            .map(Arena)
            .map_err(raise)
    }

    #[pyo3(signature = (envelope, attachment=None))]
    fn send(
        &self,
        py: Python<'_>,
        envelope: &[u8],
        attachment: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let payload = attachment.map(Payload::of).transpose()?;
        let bytes = payload.as_ref().map(Payload::as_slice);
        if envelope.len() + bytes.map_or(0, <[u8]>::len) > LARGE {
            py.detach(|| self.0.send(envelope, bytes))
        } else {
            self.0.send(envelope, bytes)
        }
        .map_err(raise)
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

    fn set_phase(&self, phase: u8) -> PyResult<()> {
        Phase::try_from(phase)
            .and_then(|phase| self.0.set_phase(phase))
            .map_err(raise)
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
