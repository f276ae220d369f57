//! `multipart/form-data` requests: a file and text fields.
//!
//! # Layout
//!
//! `form` (the body to fields, within limits) → `transcription` (the fields of the audio endpoints, typed).

mod form;
mod transcription;

pub use transcription::{
    Chunking, Granularities, ResponseFormat, Transcription, Upload, VoiceActivity,
};
