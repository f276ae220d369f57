//! Denizen's front end: one Rust process between HTTP clients and the GPU workers.
//!
//! # Layout
//!
//! A request goes `http` → `chat` / `text` → `route` → arena → worker, and its tokens come back the same way.
//!
//! - `http`: one file an endpoint; validation, OpenAI's shapes, server-sent events
//! - `chat`: chat templates and what a model family's format means (reasoning)
//! - `audio`: uploaded files to PCM; subtitles; languages
//! - `text`: tokenizer, incremental detokenizer, stop strings
//! - `route`: least-loaded choice of a worker, envelopes, requests in flight
//! - `supervise`: worker processes: start, heartbeat, restart, drain
//! - `cli`, `config`, `serve`, `doctor`: the commands; `fetch`, `checkpoint`, `python`, `gpu`: what they look at first

pub mod audio;
pub mod chat;
mod checkpoint;
pub mod cli;
pub mod config;
pub mod doctor;
mod fetch;
mod gpu;
pub mod http;
pub mod metrics;
pub mod model;
pub mod progress;
mod python;
pub mod route;
pub mod serve;
mod shutdown;
pub mod supervise;
pub mod text;
