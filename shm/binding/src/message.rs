//! Messages and their figures, from and to Python objects.

use std::time::Duration;

use denizen_shm::{Message, Stats};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

/// Copying more than this is done with the GIL released.
pub const LARGE: usize = 64 << 10;

/// An attachment's bytes: those of a `bytes` object as they are, those of any other buffer copied.
pub enum Payload<'a> {
    Borrowed(&'a [u8]),
    Copied(Vec<u8>),
}

impl<'a> Payload<'a> {
    pub fn of(object: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Payload::Borrowed(bytes.as_bytes()));
        }
        let buffer = PyBuffer::<u8>::get(object).map_err(|_| {
            PyValueError::new_err(
                "attachment must be bytes or a buffer of bytes: use memoryview(x).cast('B')",
            )
        })?;
        Ok(Payload::Copied(buffer.to_vec(object.py())?))
    }

    pub fn as_slice(&self) -> &[u8] {
        match self {
            Payload::Borrowed(bytes) => bytes,
            Payload::Copied(bytes) => bytes,
        }
    }
}

/// `timeout_ms` as Python gives it: negative = for ever.
pub fn timeout(milliseconds: i64) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// `[(envelope, attachment or None), …]`
pub fn to_list(py: Python<'_>, messages: Vec<Message>) -> PyResult<Bound<'_, PyList>> {
    PyList::new(
        py,
        messages.into_iter().map(|message| {
            (
                PyBytes::new(py, &message.envelope),
                message.attachment.map(|bytes| PyBytes::new(py, &bytes)),
            )
        }),
    )
}

pub fn to_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let figures = [
        ("sent", stats.sent),
        ("received", stats.received),
        ("bytes_sent", stats.bytes_sent),
        ("bytes_received", stats.bytes_received),
        ("rings", stats.rings),
        ("sleeps", stats.sleeps),
        ("ring_full", stats.ring_full),
        ("slab_full", stats.slab_full),
        ("bad_returns", stats.bad_returns),
        ("out_depth", stats.out_depth),
        ("in_depth", stats.in_depth),
        ("slots_in_use", stats.slots_in_use),
        ("slab_free", stats.slab_free),
        ("slab_total", stats.slab_total),
    ];
    for (name, value) in figures {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
