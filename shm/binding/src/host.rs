//! `HostArena`: the front end's end, for tests and benchmarks.

use std::os::fd::{AsRawFd, IntoRawFd};

use denizen_shm::layout::CLASSES;
use denizen_shm::{Config, HostEnd, Link};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::raise;
use crate::message::{timeout, to_dict, to_list, Payload, LARGE};

#[pyclass(frozen, module = "denizen._native")]
pub struct HostArena(HostEnd);

#[pymethods]
impl HostArena {
    #[staticmethod]
    #[pyo3(signature = (peer_name="peer", epoch=1, request_ring=None, request_slots=None, result_ring=None, result_slots=None))]
    fn create(
        peer_name: &str,
        epoch: u64,
        request_ring: Option<usize>,
        request_slots: Option<[usize; CLASSES]>,
        result_ring: Option<usize>,
        result_slots: Option<[usize; CLASSES]>,
    ) -> PyResult<(Self, i32)> {
        let mut config = Config::text(peer_name, epoch);
        config.requests.ring = request_ring.unwrap_or(config.requests.ring);
        config.requests.slots = request_slots.unwrap_or(config.requests.slots);
        config.results.ring = result_ring.unwrap_or(config.results.ring);
        config.results.slots = result_slots.unwrap_or(config.results.slots);
        let (host, child) = HostEnd::create(&config).map_err(raise)?;
        Ok((HostArena(host), child.into_fd().into_raw_fd()))
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

    fn arm(&self) -> PyResult<bool> {
        self.0.arm().map_err(raise)
    }

    fn disarm(&self) -> PyResult<()> {
        self.0.disarm().map_err(raise)
    }

    fn doorbell_fd(&self) -> i32 {
        self.0.doorbell_fd().as_raw_fd()
    }

    fn socket_fd(&self) -> i32 {
        self.0.socket_fd().as_raw_fd()
    }

    fn poll(&self) -> PyResult<&'static str> {
        match self.0.poll_socket().map_err(raise)? {
            Link::Waiting => Ok("waiting"),
            Link::Up => Ok("up"),
            Link::Gone => Ok("gone"),
        }
    }

    fn heartbeat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let beat = self.0.heartbeat();
        let dict = PyDict::new(py);
        dict.set_item("beat_age", beat.beat_age.map(|age| age.as_secs_f64()))?;
        dict.set_item("phase", beat.phase.map(|phase| phase.name()))?;
        dict.set_item("phase_age", beat.phase_age.as_secs_f64())?;
        Ok(dict)
    }

    #[getter]
    fn peer_pid(&self) -> u32 {
        self.0.peer().pid
    }

    #[getter]
    fn names(&self) -> (String, String) {
        let (requests, results) = self.0.names();
        (requests.to_string(), results.to_string())
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
