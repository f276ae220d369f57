//! The Rust envelope codec against the golden files that Python reads too, and against garbage.

mod mistakes;
mod receiving;
mod sending;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use denizen_frontend::route::envelope::{
    decode, encode, AudioChunk, DecodeError, Done, FromWorker, Load, ReadyModel, RequestId, Stats,
    Submit, ToWorker, TokenRow, WorkerError, WorkerHello, MAX_BYTES,
};
use denizen_frontend::route::{
    AsrResult, AsrWindow, FinishReason, Pcm, Sampling, TokenLogprob, Usage, Utterance,
};
use proptest::prelude::*;

const REQUEST: u64 = 7 << 32 | 42;

fn golden(name: &str) -> Vec<u8> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/golden/envelope/{name}.bin"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn body(name: &str) -> FromWorker {
    decode(&golden(name)).expect(name).body.expect(name)
}

fn logprob(logprob: f32, top: &[(u32, f32)]) -> TokenLogprob {
    TokenLogprob {
        logprob,
        top: top.to_vec(),
    }
}
