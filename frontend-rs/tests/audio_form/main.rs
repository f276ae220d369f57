//! Forms of the audio endpoints, through a router.

mod fields;
mod mistakes;
mod support;
