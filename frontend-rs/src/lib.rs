//! Denizen's front end: one Rust process between HTTP clients and the GPU workers.
//!
//! # Layout
//!
//! A request goes `http` → `chat` / `text` → `route` → arena → worker, and its tokens come back the same way.
//!
//! - `http`: one file an endpoint; validation, OpenAI's shapes, server-sent events
//! - `chat`: chat templates and what a model family's format means (reasoning)
//! - `text`: tokenizer, incremental detokenizer, stop strings
//! - `route`: least-loaded choice of a worker, envelopes, requests in flight
//! - `supervise`: worker processes: start, heartbeat, restart, drain

pub mod chat;
pub mod http;
pub mod metrics;
pub mod model;
pub mod route;
pub mod text;
