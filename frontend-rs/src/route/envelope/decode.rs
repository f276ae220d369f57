//! Worker → front end. Bytes from a worker are never trusted: garbage is an error, never a panic.

use super::wire::{DecodeError, Reader};
use super::{
    AsrResult, AudioChunk, Done, Envelope, FromWorker, Load, ReadyModel, Stats, TokenRow,
    WorkerError, WorkerHello, MAX_BYTES, SCHEMA, VERSION,
};
use crate::route::request::{FinishReason, TokenLogprob, Usage};

/// The envelope in `bytes`, without its attachment.
pub fn decode(bytes: &[u8]) -> Result<Envelope, DecodeError> {
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let mut reader = Reader::new(bytes);
    let r = &mut reader;
    if r.array()? != 5 {
        return Err(DecodeError::Expected("an array of five", bytes.len()));
    }
    let version = r.uint()?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let (kind, request, sequence) = (r.uint()?, r.uint()?, r.uint()?);
    // nil stands for an empty map.
    let empty = &mut Reader::new(&[0x80]);
    let body = if r.nil() { empty } else { &mut *r };
    let body = match kind {
        1 => Some(FromWorker::Hello(read_hello(body)?)),
        2 => Some(read_ready(body)?),
        5 => Some(FromWorker::Tokens(read_tokens(body)?)),
        6 => Some(FromWorker::Audio(read_audio(body)?)),
        7 => Some(FromWorker::Done(read_done(body)?)),
        8 => Some(FromWorker::Error(read_error(body)?)),
        9 => Some(FromWorker::Stats(read_stats(body)?)),
        11 => Some(read_bye(body)?),
        _ => {
            body.skip()?;
            None
        }
    };
    reader.finish()?;
    Ok(Envelope {
        request,
        sequence,
        body,
        attachment: None,
    })
}

fn read_hello(r: &mut Reader<'_>) -> Result<WorkerHello, DecodeError> {
    let mut hello = WorkerHello {
        schema: SCHEMA,
        ..WorkerHello::default()
    };
    r.fields(|key, r| {
        match key {
            "abi" => hello.abi = r.text()?.to_owned(),
            "schema" => hello.schema = r.uint()?,
            "version" => hello.version = r.text()?.to_owned(),
            "pid" => hello.pid = r.uint32()?,
            "python" => hello.python = r.text()?.to_owned(),
            "torch" => hello.torch = r.text()?.to_owned(),
            "device" => hello.device = r.text()?.to_owned(),
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(hello)
}

fn read_ready(r: &mut Reader<'_>) -> Result<FromWorker, DecodeError> {
    let (mut models, mut credits) = (Vec::new(), 0);
    r.fields(|key, r| {
        match key {
            "models" => models = read_list(r, read_ready_model)?,
            "credits" => credits = r.uint32()?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(FromWorker::Ready { models, credits })
}

fn read_ready_model(r: &mut Reader<'_>) -> Result<ReadyModel, DecodeError> {
    let mut model = ReadyModel {
        kind: "text".to_owned(),
        ..ReadyModel::default()
    };
    r.fields(|key, r| {
        match key {
            "name" => model.name = r.text()?.to_owned(),
            "family" => model.family = r.text()?.to_owned(),
            "kind" => model.kind = r.text()?.to_owned(),
            "context" => model.context = r.uint32()?,
            "vocab" => model.vocab = r.uint32()?,
            "rows" => model.rows = r.uint32()?,
            "kv_tokens" => model.kv_tokens = r.uint()?,
            "fingerprint" => model.fingerprint = r.text()?.to_owned(),
            "sample_rate" => model.sample_rate = r.uint32()?,
            "voices" => model.voices = read_list(r, |r| r.text().map(str::to_owned))?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    if model.name.is_empty() {
        return Err(DecodeError::Missing("name"));
    }
    if model.kind == "tts" && model.sample_rate == 0 {
        return Err(DecodeError::Missing("sample_rate"));
    }
    Ok(model)
}

/// An array of what `item` reads. The memory grows with what was read, not with what the length promises.
fn read_list<'a, T>(
    r: &mut Reader<'a>,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let length = r.array()?;
    let mut items = Vec::with_capacity(length.min(256));
    for _ in 0..length {
        items.push(item(r)?);
    }
    Ok(items)
}

fn read_tokens(r: &mut Reader<'_>) -> Result<Vec<TokenRow>, DecodeError> {
    let mut rows = Vec::new();
    r.fields(|key, r| {
        match key {
            "rows" => rows = read_list(r, read_token_row)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(rows)
}

fn read_token_row(r: &mut Reader<'_>) -> Result<TokenRow, DecodeError> {
    let length = r.array()?;
    let (request, index, token) = (r.uint()?, r.uint32()?, r.uint32()?);
    let logprob = match length {
        3 => None,
        5 => Some(TokenLogprob {
            logprob: r.float()?,
            top: read_top(r)?,
        }),
        _ => return Err(DecodeError::Expected("a row of three or five", 0)),
    };
    Ok(TokenRow {
        request,
        index,
        token,
        logprob,
    })
}

fn read_audio(r: &mut Reader<'_>) -> Result<AudioChunk, DecodeError> {
    let mut audio = AudioChunk::default();
    r.fields(|key, r| {
        match key {
            "index" => audio.index = r.uint32()?,
            "samples" => audio.samples = r.uint32()?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(audio)
}

fn read_top(r: &mut Reader<'_>) -> Result<Vec<(u32, f32)>, DecodeError> {
    read_list(r, |r| match r.array()? {
        2 => Ok((r.uint32()?, r.float()?)),
        _ => Err(DecodeError::Expected("[id, logprob]", 0)),
    })
}

fn read_prompt_logprob(r: &mut Reader<'_>) -> Result<Option<TokenLogprob>, DecodeError> {
    if r.nil() {
        return Ok(None);
    }
    match r.array()? {
        2 => Ok(Some(TokenLogprob {
            logprob: r.float()?,
            top: read_top(r)?,
        })),
        _ => Err(DecodeError::Expected("[logprob, alternatives]", 0)),
    }
}

fn read_done(r: &mut Reader<'_>) -> Result<Done, DecodeError> {
    let (mut reason, mut stop_id, mut usage, mut prompt_logprobs, mut asr, mut samples) =
        (None, None, Usage::default(), Vec::new(), None, None);
    r.fields(|key, r| {
        match key {
            "reason" => {
                reason = Some(match r.text()? {
                    "stop" => FinishReason::Stop,
                    "length" => FinishReason::Length,
                    "abort" => FinishReason::Abort,
                    _ => return Err(DecodeError::Expected("stop, length or abort", 0)),
                });
            }
            "stop_id" => stop_id = Some(r.uint32()?),
            "prompt" => usage.prompt = r.uint32()?,
            "completion" => usage.completion = r.uint32()?,
            "cached" => usage.cached = r.uint32()?,
            "prompt_logprobs" => prompt_logprobs = read_list(r, read_prompt_logprob)?,
            "asr" => asr = Some(read_asr(r)?),
            "samples" => samples = Some(r.uint()?),
            _ => r.skip()?,
        }
        Ok(())
    })?;
    let reason = reason.ok_or(DecodeError::Missing("reason"))?;
    Ok(Done {
        reason,
        stop_id,
        usage,
        prompt_logprobs,
        asr,
        samples,
    })
}

fn read_asr(r: &mut Reader<'_>) -> Result<AsrResult, DecodeError> {
    let mut asr = AsrResult::default();
    r.fields(|key, r| {
        match key {
            "no_speech" => asr.no_speech = r.float()?,
            "avg_logprob" => asr.avg_logprob = r.float()?,
            "times" => asr.times = read_list(r, Reader::float)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(asr)
}

fn read_error(r: &mut Reader<'_>) -> Result<WorkerError, DecodeError> {
    let mut error = WorkerError::default();
    r.fields(|key, r| {
        match key {
            "code" => error.code = r.text()?.to_owned(),
            "message" => error.message = r.text()?.to_owned(),
            "param" => error.param = Some(r.text()?.to_owned()),
            "retryable" => error.retryable = r.flag()?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    if error.code.is_empty() {
        return Err(DecodeError::Missing("code"));
    }
    Ok(error)
}

fn read_stats(r: &mut Reader<'_>) -> Result<Stats, DecodeError> {
    let mut stats = Stats::default();
    r.fields(|key, r| {
        let field = match key {
            "load" => {
                stats.load = Some(read_load(r)?);
                return Ok(());
            }
            "waiting" => &mut stats.waiting,
            "running" => &mut stats.running,
            "rows" => &mut stats.rows,
            "rows_total" => &mut stats.rows_total,
            "kv_pages" => &mut stats.kv_pages,
            "kv_pages_total" => &mut stats.kv_pages_total,
            "state_slots" => &mut stats.state_slots,
            "state_slots_total" => &mut stats.state_slots_total,
            "preemptions" => &mut stats.preemptions,
            "steps" => &mut stats.steps,
            "prefill_tokens" => &mut stats.prefill_tokens,
            "decode_tokens" => &mut stats.decode_tokens,
            _ => return r.skip(),
        };
        *field = r.uint()?;
        Ok(())
    })?;
    Ok(stats)
}

fn read_load(r: &mut Reader<'_>) -> Result<Load, DecodeError> {
    let mut load = Load::default();
    r.fields(|key, r| {
        match key {
            "model" => load.model = r.text()?.to_owned(),
            "done" => load.done = r.uint()?,
            "total" => load.total = r.uint()?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(load)
}

fn read_bye(r: &mut Reader<'_>) -> Result<FromWorker, DecodeError> {
    let mut why = String::new();
    r.fields(|key, r| {
        match key {
            "why" => why = r.text()?.to_owned(),
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(FromWorker::Bye { why })
}
