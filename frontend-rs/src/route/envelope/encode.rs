//! Front end → worker. Canonical: keys in the order of the contract, what equals its default left out.

use std::collections::BTreeMap;

use rmp::encode as put;

use super::{AsrWindow, Submit, ToWorker, Utterance, SCHEMA, VERSION};

/// The bytes of one envelope.
pub fn encode(body: &ToWorker<'_>, request: u64, sequence: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    // Writing to a vector cannot fail; the results below exist for other writers.
    let written = write(&mut bytes, body, request, sequence);
    debug_assert!(written.is_ok());
    bytes
}

type Written = Result<(), put::ValueWriteError>;

fn write(out: &mut Vec<u8>, body: &ToWorker<'_>, request: u64, sequence: u64) -> Written {
    let kind = match body {
        ToWorker::Hello { .. } => 1,
        ToWorker::Submit(_) => 3,
        ToWorker::Abort => 4,
        ToWorker::Drain => 10,
        ToWorker::Bye { .. } => 11,
    };
    put::write_array_len(out, 5)?;
    for number in [VERSION, kind, request, sequence] {
        put::write_uint(out, number)?;
    }
    match body {
        ToWorker::Hello {
            abi,
            version,
            pid,
            tokenizers,
        } => write_hello(out, abi, version, *pid, tokenizers),
        ToWorker::Submit(submit) => write_submit(out, submit),
        ToWorker::Abort | ToWorker::Drain => put::write_map_len(out, 0).map(drop),
        ToWorker::Bye { why } => {
            put::write_map_len(out, 1)?;
            put::write_str(out, "why")?;
            put::write_str(out, why)
        }
    }
}

fn write_hello(
    out: &mut Vec<u8>,
    abi: &str,
    version: &str,
    pid: u32,
    tokenizers: &BTreeMap<String, String>,
) -> Written {
    put::write_map_len(out, 5)?;
    put::write_str(out, "abi")?;
    put::write_str(out, abi)?;
    put::write_str(out, "version")?;
    put::write_str(out, version)?;
    put::write_str(out, "pid")?;
    put::write_uint(out, u64::from(pid))?;
    put::write_str(out, "tokenizers")?;
    put::write_map_len(out, tokenizers.len() as u32)?;
    for (model, sha256) in tokenizers {
        put::write_str(out, model)?;
        put::write_str(out, sha256)?;
    }
    put::write_str(out, "schema")?;
    put::write_uint(out, SCHEMA).map(drop)
}

fn write_submit(out: &mut Vec<u8>, submit: &Submit<'_>) -> Written {
    let mut fields = MapWriter::default();
    let sampling = submit.sampling;
    let mut ids = Vec::with_capacity(4 * submit.prompt.len());
    for id in submit.prompt {
        ids.extend_from_slice(&id.to_le_bytes());
    }
    fields.entry("model", |o| put::write_str(o, submit.model))?;
    fields.entry("ids", |o| put::write_bin(o, &ids))?;
    fields.entry("max_tokens", |o| {
        put::write_uint(o, submit.max_tokens.into()).map(drop)
    })?;
    fields.uint("min_tokens", submit.min_tokens.into(), 0)?;
    fields.ids("stop_ids", submit.stop_ids)?;
    fields.float("temperature", sampling.temperature, 1.0)?;
    fields.uint("top_k", sampling.top_k.into(), 0)?;
    fields.float("top_p", sampling.top_p, 1.0)?;
    fields.float("min_p", sampling.min_p, 0.0)?;
    fields.float("repetition_penalty", sampling.repetition_penalty, 1.0)?;
    fields.float("presence_penalty", sampling.presence_penalty, 0.0)?;
    fields.float("frequency_penalty", sampling.frequency_penalty, 0.0)?;
    fields.uint("seed", sampling.seed, 0)?;
    if !sampling.logit_bias.is_empty() {
        fields.entry("logit_bias", |o| {
            put::write_array_len(o, sampling.logit_bias.len() as u32)?;
            sampling.logit_bias.iter().try_for_each(|(id, bias)| {
                put::write_array_len(o, 2)?;
                put::write_uint(o, u64::from(*id))?;
                put::write_f32(o, *bias)
            })
        })?;
    }
    for (key, value) in [
        ("logprobs", sampling.logprobs),
        ("prompt_logprobs", submit.prompt_logprobs),
    ] {
        if let Some(count) = value {
            fields.entry(key, |o| put::write_uint(o, u64::from(count)).map(drop))?;
        }
    }
    if let Some(window) = submit.asr {
        fields.entry("asr", |o| write_asr(o, window))?;
    }
    if let Some(utterance) = submit.tts {
        fields.entry("tts", |o| write_tts(o, utterance))?;
    }
    fields.finish(out)
}

fn write_asr(out: &mut Vec<u8>, window: &AsrWindow) -> Written {
    let mut fields = MapWriter::default();
    fields.flag("timestamps", window.timestamps, true)?;
    fields.flag("detect", window.detect, false)?;
    fields.ids("forced", &window.forced)?;
    fields.flag("words", window.words, false)?;
    fields.finish(out)
}

fn write_tts(out: &mut Vec<u8>, utterance: &Utterance) -> Written {
    let mut fields = MapWriter::default();
    fields.text("voice", &utterance.voice)?;
    fields.text("language", utterance.language.unwrap_or_default())?;
    let instructions = utterance.instructions.as_deref();
    fields.text("instructions", instructions.unwrap_or_default())?;
    fields.float("speed", utterance.speed, 1.0)?;
    fields.finish(out)
}

/// A map whose length is known when its last entry is written. What equals its default is left out.
#[derive(Default)]
struct MapWriter {
    count: u32,
    bytes: Vec<u8>,
}

impl MapWriter {
    fn entry(&mut self, key: &str, value: impl FnOnce(&mut Vec<u8>) -> Written) -> Written {
        self.count += 1;
        put::write_str(&mut self.bytes, key)?;
        value(&mut self.bytes)
    }

    fn uint(&mut self, key: &str, value: u64, default: u64) -> Written {
        if value == default {
            return Ok(());
        }
        self.entry(key, |o| put::write_uint(o, value).map(drop))
    }

    fn flag(&mut self, key: &str, value: bool, default: bool) -> Written {
        if value == default {
            return Ok(());
        }
        self.entry(key, |o| {
            put::write_bool(o, value).map_err(put::ValueWriteError::InvalidMarkerWrite)
        })
    }

    fn text(&mut self, key: &str, value: &str) -> Written {
        if value.is_empty() {
            return Ok(());
        }
        self.entry(key, |o| put::write_str(o, value))
    }

    fn ids(&mut self, key: &str, ids: &[u32]) -> Written {
        if ids.is_empty() {
            return Ok(());
        }
        self.entry(key, |o| {
            put::write_array_len(o, ids.len() as u32)?;
            ids.iter()
                .try_for_each(|id| put::write_uint(o, u64::from(*id)).map(drop))
        })
    }

    fn finish(self, out: &mut Vec<u8>) -> Written {
        put::write_map_len(out, self.count)?;
        out.extend_from_slice(&self.bytes);
        Ok(())
    }

    fn float(&mut self, key: &str, value: f32, default: f32) -> Written {
        if value == default {
            return Ok(());
        }
        self.entry(key, |o| put::write_f32(o, value))
    }
}
