//! Chat: templates, and what a model family's format means (reasoning).

mod python;
mod reasoning;
mod template;
mod tojson;

pub use reasoning::{Part, Reasoning};
pub use template::{ChatTemplate, RenderError};
