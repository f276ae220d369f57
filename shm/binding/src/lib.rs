//! Python extension `denizen._native`: the arena for Python peers. What each name means stands in `_native.pyi`.

mod address;
mod arena;
mod client;
mod errors;
mod host;
mod message;

use denizen_shm::layout;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Remove what dead processes left in `/dev/shm`.
#[pyfunction]
fn sweep(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let swept = denizen_shm::sweep().map_err(errors::raise)?;
    let dict = PyDict::new(py);
    dict.set_item("removed", swept.removed)?;
    dict.set_item("alive", swept.alive)?;
    dict.set_item("foreign", swept.foreign)?;
    Ok(dict)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(module)?;
    module.add_class::<arena::Arena>()?;
    module.add_class::<host::HostArena>()?;
    module.add_class::<client::Invitation>()?;
    module.add_class::<client::ClientArena>()?;
    module.add_function(wrap_pyfunction!(sweep, module)?)?;
    module.add("ABI", (layout::ABI_MAJOR, layout::ABI_MINOR))?;
    module.add("MAGIC", layout::MAGIC)?;
    module.add("FIELDS_HASH", layout::fields_hash())?;
    module.add("HEADER_LEN", layout::HEADER_LEN)?;
    module.add("DESCRIPTOR_LEN", layout::DESCRIPTOR_LEN)?;
    module.add("INLINE_LEN", layout::INLINE_LEN)?;
    module.add("CLASS_SIZES", layout::CLASS_SIZES)?;
    let fields = PyDict::new(module.py());
    for field in layout::FIELDS {
        fields.set_item(field.name, (field.offset, field.size))?;
    }
    module.add("FIELDS", fields)
}
