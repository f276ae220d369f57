//! The envelopes between the front end and a client: `docs/design/sdk.md`.

use rmp::encode as put;
use serde_json::{json, Value};

use super::value;
use crate::http::ApiError;
use crate::route::envelope::wire::Reader;
use crate::route::envelope::DecodeError;

const VERSION: u64 = 1;
const WELCOME: u64 = 32;
const CALL: u64 = 33;
const CANCEL: u64 = 34;
const CHUNK: u64 = 35;
const RESULT: u64 = 36;
const FAILED: u64 = 37;
const BYE: u64 = 38;
const PART: u64 = 39;

/// What a client said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromClient {
    Call { request: u64, call: Call },
    Cancel { request: u64 },
    Part { request: u64 },
    Bye,
}

/// A CALL as it came, its body unread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    pub endpoint: String,
    /// The msgpack of `body`.
    pub body: Option<Vec<u8>>,
    /// Or how long it is, where it comes as an attachment.
    pub body_len: Option<u64>,
    pub audio_len: Option<u64>,
    pub rate: Option<u32>,
}

/// Reads one envelope. An error is something that no client sends.
pub fn decode(bytes: &[u8]) -> Result<FromClient, DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.array()? != 5 {
        return Err(DecodeError::Expected("an array of five", bytes.len()));
    }
    let version = reader.uint()?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let (kind, request, _sequence) = (reader.uint()?, reader.uint()?, reader.uint()?);
    let said = match kind {
        CALL => FromClient::Call {
            request,
            call: call(&mut reader)?,
        },
        CANCEL | PART | BYE => {
            reader.skip()?;
            match kind {
                CANCEL => FromClient::Cancel { request },
                PART => FromClient::Part { request },
                _ => FromClient::Bye,
            }
        }
        _ => return Err(DecodeError::Expected("a client's kind", bytes.len())),
    };
    reader.finish()?;
    if request == 0 && said != FromClient::Bye {
        return Err(DecodeError::Missing("request"));
    }
    Ok(said)
}

fn call(reader: &mut Reader<'_>) -> Result<Call, DecodeError> {
    let mut call = Call::default();
    reader.fields(|key, reader| {
        match key {
            "endpoint" => call.endpoint = reader.text()?.to_owned(),
            "body" => call.body = Some(reader.raw()?.to_vec()),
            "body_len" => call.body_len = Some(reader.uint()?),
            "audio_len" => call.audio_len = Some(reader.uint()?),
            "rate" => call.rate = Some(reader.uint32()?),
            _ => drop(reader.raw()?),
        }
        Ok(())
    })?;
    if call.body.is_some() == call.body_len.is_some() {
        return Err(DecodeError::Missing("body or body_len"));
    }
    Ok(call)
}

/// Something for a client: kind and body, without request and sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    kind: u64,
    body: Vec<u8>,
    /// Of a terminal: the status that HTTP would have answered with.
    pub status: Option<u16>,
    pub attachment: Option<Vec<u8>>,
}

impl Message {
    fn of(kind: u64, body: &Value) -> Self {
        let mut bytes = Vec::with_capacity(128);
        value::write(&mut bytes, body);
        Self {
            kind,
            body: bytes,
            status: None,
            attachment: None,
        }
    }

    pub fn welcome(version: &str, models: Vec<Value>, limits: Value) -> Self {
        let body = json!({"version": version, "models": models, "limits": limits});
        Self::of(WELCOME, &body)
    }

    pub fn bye(code: &str, why: &str) -> Self {
        Self::of(BYE, &json!({"code": code, "why": why}))
    }

    pub fn failed(error: &ApiError) -> Self {
        let mut body = error.body();
        let status = error.status.as_u16();
        body["status"] = status.into();
        if let Some(seconds) = error.retry_after_s {
            body["retry_after_s"] = seconds.into();
        }
        Self {
            status: Some(status),
            ..Self::of(FAILED, &body)
        }
    }

    pub fn chunk(chunk: Chunk<'_>) -> Self {
        let mut bytes = Vec::with_capacity(128);
        let written = chunk.write(&mut bytes);
        debug_assert!(written.is_ok());
        Self {
            kind: CHUNK,
            body: bytes,
            status: None,
            attachment: None,
        }
    }

    /// A piece of speech.
    pub fn audio(index: usize, rate: u32, samples: Vec<u8>) -> Self {
        Self {
            attachment: Some(samples),
            ..Self::of(CHUNK, &json!({"index": index, "rate": rate}))
        }
    }

    /// Adds to a piece of speech that has not been sent; false if it is none, or would be longer than `most` bytes.
    pub fn grow(&mut self, samples: &[u8], most: usize) -> bool {
        match &mut self.attachment {
            Some(held) if self.kind == CHUNK && held.len() + samples.len() <= most => {
                held.extend_from_slice(samples);
                true
            }
            _ => false,
        }
    }

    /// The result of a call that gives audio, with all of it, in pieces of at most `most` bytes.
    pub fn result_with_audio(result: &Value, audio: &[u8], most: usize) -> Vec<Self> {
        let body = json!({"result": result, "audio_len": audio.len()});
        let mut last = Self {
            status: Some(200),
            ..Self::of(RESULT, &body)
        };
        let mut pieces = audio.chunks(most);
        last.attachment = pieces.next_back().map(<[u8]>::to_vec);
        let mut messages: Vec<Self> = pieces.map(Self::part).collect();
        messages.push(last);
        messages
    }

    fn part(piece: &[u8]) -> Self {
        Self {
            kind: PART,
            body: vec![0x80],
            status: None,
            attachment: Some(piece.to_vec()),
        }
    }

    /// The result, preceded by parts where it is longer than `most`.
    pub fn result(result: &Value, tokens: Option<&[Vec<u32>]>, most: usize) -> Vec<Self> {
        let mut packed = Vec::new();
        value::write(&mut packed, result);
        let mut head = Vec::new();
        let keys = 1 + u32::from(tokens.is_some());
        let _ = put::write_map_len(&mut head, keys);
        if let Some(tokens) = tokens {
            let _ = put::write_str(&mut head, "tokens");
            let _ = put::write_array_len(&mut head, tokens.len() as u32);
            tokens.iter().for_each(|ids| write_ids(&mut head, ids));
        }
        if head.len() + packed.len() <= most {
            let _ = put::write_str(&mut head, "result");
            head.extend(packed);
            return vec![Self {
                kind: RESULT,
                body: head,
                status: Some(200),
                attachment: None,
            }];
        }
        let _ = put::write_str(&mut head, "result_len");
        let _ = put::write_uint(&mut head, packed.len() as u64);
        let mut messages: Vec<Self> = packed.chunks(most).map(Self::part).collect();
        if let Some(last) = messages.last_mut() {
            (last.kind, last.body, last.status) = (RESULT, head, Some(200));
        }
        messages
    }

    /// Memory that it takes while it waits, roughly.
    pub fn bytes(&self) -> usize {
        64 + self.body.len() + self.attachment.as_ref().map_or(0, Vec::len)
    }

    /// The whole envelope.
    pub fn encode(&self, request: u64, sequence: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.body.len() + 32);
        let _ = put::write_array_len(&mut bytes, 5);
        for number in [VERSION, self.kind, request, sequence] {
            let _ = put::write_uint(&mut bytes, number);
        }
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A part of a streamed answer. What is empty is left out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chunk<'a> {
    pub index: Option<usize>,
    pub text: &'a str,
    pub reasoning: &'a str,
    pub tokens: &'a [u32],
    pub logprobs: Option<&'a Value>,
    pub finish_reason: Option<&'a str>,
    pub segments: Option<&'a Value>,
    pub words: Option<&'a Value>,
}

impl Chunk<'_> {
    fn write(self, out: &mut Vec<u8>) -> Result<(), put::ValueWriteError> {
        let texts = [
            ("text", Some(self.text).filter(|text| !text.is_empty())),
            (
                "reasoning",
                Some(self.reasoning).filter(|text| !text.is_empty()),
            ),
            ("finish_reason", self.finish_reason),
        ];
        let values = [
            ("logprobs", self.logprobs),
            ("segments", self.segments),
            ("words", self.words),
        ];
        let keys = usize::from(self.index.is_some())
            + usize::from(!self.tokens.is_empty())
            + texts.iter().filter(|(_, text)| text.is_some()).count()
            + values.iter().filter(|(_, value)| value.is_some()).count();
        put::write_map_len(out, keys as u32)?;
        if let Some(index) = self.index {
            put::write_str(out, "index")?;
            put::write_uint(out, index as u64)?;
        }
        for (key, text) in texts {
            if let Some(text) = text {
                put::write_str(out, key)?;
                put::write_str(out, text)?;
            }
        }
        if !self.tokens.is_empty() {
            put::write_str(out, "tokens")?;
            write_ids(out, self.tokens);
        }
        for (key, value) in values {
            if let Some(value) = value {
                put::write_str(out, key)?;
                value::write(out, value);
            }
        }
        Ok(())
    }
}

fn write_ids(out: &mut Vec<u8>, ids: &[u32]) {
    let _ = put::write_array_len(out, ids.len() as u32);
    for id in ids {
        let _ = put::write_uint(out, u64::from(*id));
    }
}

#[cfg(test)]
mod tests;
