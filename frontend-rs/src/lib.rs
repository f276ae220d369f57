//! Denizen's front end: one Rust process between HTTP clients and the GPU workers.
//!
//! # Layout
//!
//! A request goes `http` → `chat` / `text` → `route` → arena → worker, and its tokens come back the same way.
//!
//! - `http`: one file an endpoint; validation, OpenAI's shapes, server-sent events
//! - `chat`: chat templates and what a model family's format means (reasoning)
//! - `audio`: uploaded files to PCM; voice activity; subtitles; languages
//! - `speech`: what a speech model's ids mean; `transcribe`: long audio by windows, words, cuts
//! - `text`: tokenizer, incremental detokenizer, stop strings
//! - `listen`: windows of audio through the router; `speak`: texts through it to a worker that speaks
//! - `sound`: what is spoken to files, as it comes
//! - `route`: least-loaded choice of a worker, envelopes, requests in flight
//! - `supervise`: worker processes: start, heartbeat, restart, drain
//! - `terminal`: stderr and stdout; `progress`: bars
//! - `cli`, `config`, `serve`, `scribe`, `doctor`: the commands; `launch`: what two of them share; `fetch`, `checkpoint`, `python`, `gpu`: what they look at first

pub mod audio;
pub mod chat;
mod checkpoint;
pub mod cli;
pub mod clients;
pub mod config;
pub mod doctor;
mod fetch;
mod gpu;
pub mod http;
mod launch;
pub mod listen;
pub mod metrics;
pub mod model;
pub mod progress;
mod python;
pub mod route;
pub mod scribe;
pub mod serve;
mod shutdown;
pub mod sound;
pub mod speak;
pub mod speech;
pub mod supervise;
pub mod terminal;
pub mod text;
pub mod transcribe;
