//! A toy speech model, a toy text model, a scripted backend, and a client for forms.

#[path = "../http_api/support/mod.rs"]
#[allow(dead_code, unused_imports)]
mod http;

use std::sync::{Arc, OnceLock};

use denizen_frontend::model::ModelEntry;
use denizen_frontend::route::{AsrResult, Event, FinishReason, Generate, TokenLogprob, Usage};
use serde_json::{json, Value};

pub use http::backend::{bytes, done, failed, Scripted, Step};
pub use http::client::{request, Reply};
pub use http::models::{asset, tiny, Folder};
pub use http::server::Server;

/// The `tokenizer.json` of the toys: a byte is a token.
pub fn tokenizer() -> String {
    http::models::tiny_tokenizer().to_string()
}

pub const EOT: u32 = 300;
pub const SOT: u32 = 301;
pub const EN: u32 = 302;
pub const DE: u32 = 303;
pub const TRANSLATE: u32 = 304;
pub const TRANSCRIBE: u32 = 305;
pub const PREV: u32 = 306;
const NO_TIMES: u32 = 308;
const FIRST_TIME: u32 = 309;

pub fn time(seconds: f64) -> u32 {
    FIRST_TIME + (seconds / 0.02).round() as u32
}

fn speech_model(name: &str, multilingual: bool) -> Arc<ModelEntry> {
    let folder = Folder::new(name);
    folder.write("tokenizer.json", tokenizer());
    folder.write_json(
        "config.json",
        &json!({
            "architectures": ["WhisperForConditionalGeneration"], "vocab_size": FIRST_TIME + 1501,
            "max_target_positions": 448,
        }),
    );
    folder.write_json(
        "generation_config.json",
        &json!({
            "is_multilingual": multilingual, "eos_token_id": EOT, "decoder_start_token_id": SOT,
            "no_timestamps_token_id": NO_TIMES, "prev_sot_token_id": PREV,
            "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
            "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
        }),
    );
    Arc::new(ModelEntry::load(name, &folder.0, None).unwrap())
}

/// `whisper` (English and German), `english`, and `tiny`, which continues text.
pub fn models() -> Vec<Arc<ModelEntry>> {
    static MODELS: OnceLock<Vec<Arc<ModelEntry>>> = OnceLock::new();
    let make = || {
        vec![
            speech_model("whisper", true),
            speech_model("english", false),
            tiny(),
        ]
    };
    MODELS.get_or_init(make).clone()
}

/// A window in which these words are said, each a segment of a second; with detection the language is German.
pub fn says(request: &Generate, words: &[&str]) -> Vec<Step> {
    let window = request.asr.as_ref().expect("a window");
    let scored = request.sampling.logprobs.is_some();
    let token = |id: u32| {
        let logprob = scored.then(|| TokenLogprob {
            logprob: -(id as f32) / 1024.0,
            top: Vec::new(),
        });
        Step::Event(Event::Token { id, logprob })
    };
    let mut steps = Vec::new();
    if window.detect {
        steps.push(token(DE));
        steps.extend(window.forced.iter().copied().map(token));
    }
    let mut count = 0;
    for (index, word) in (0u32..).zip(words) {
        steps.push(token(time(f64::from(index))));
        steps.extend(word.bytes().map(|byte| token(byte.into())));
        steps.push(token(time(f64::from(index + 1))));
        count += word.len();
    }
    let times = (0..=count).map(|index| index as f32 * 0.05);
    steps.push(Step::Event(Event::Done {
        reason: FinishReason::Stop,
        usage: Usage::default(),
        prompt_logprobs: Vec::new(),
        asr: Some(AsrResult {
            no_speech: 0.125,
            avg_logprob: -0.25,
            times: if window.words {
                times.collect()
            } else {
                Vec::new()
            },
        }),
    }));
    steps
}

/// A server whose every window says these words.
pub async fn server(words: &'static [&'static str]) -> (Server, Arc<Scripted>) {
    let backend = Scripted::new(models(), move |request| says(request, words));
    (Server::start(backend.clone()).await, backend)
}

/// Two seconds of speech.
pub fn speech() -> Vec<u8> {
    asset("audio/speech.wav")
}

/// A WAV file of samples at 16 kHz.
pub fn wav(samples: &[f32]) -> Vec<u8> {
    let data = samples
        .iter()
        .flat_map(|x| ((x * 32767.0) as i16).to_le_bytes());
    let mut bytes = Vec::from(b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0");
    bytes.extend(16_000u32.to_le_bytes());
    bytes.extend(32_000u32.to_le_bytes());
    bytes.extend(b"\x02\0\x10\0data");
    bytes.extend((2 * samples.len() as u32).to_le_bytes());
    bytes.extend(data);
    let size = bytes.len() as u32 - 8;
    bytes[4..8].copy_from_slice(&size.to_le_bytes());
    bytes
}

/// The samples of [`speech`], again and again for so many seconds.
pub fn speech_for(seconds: usize) -> Vec<f32> {
    let file = speech();
    let once: Vec<f32> = file[44..]
        .chunks_exact(2)
        .map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0)
        .collect();
    once.iter()
        .copied()
        .cycle()
        .take(seconds * 16_000)
        .collect()
}

const BOUNDARY: &str = "----denizentest";
pub const CONTENT_TYPE: &str = "multipart/form-data; boundary=----denizentest";
pub const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
pub const TRANSLATIONS: &str = "/v1/audio/translations";

pub fn form(file: &[u8], name: Option<&str>, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        let head =
            format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
        body.extend(head.bytes().chain(value.bytes()).chain(*b"\r\n"));
    }
    let name = name.map_or(String::new(), |name| format!("; filename=\"{name}\""));
    let head =
        format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"{name}\r\n\r\n");
    body.extend(head.bytes().chain(file.iter().copied()));
    body.extend(format!("\r\n--{BOUNDARY}--\r\n").bytes());
    body
}

pub async fn post(server: &Server, path: &str, file: &[u8], fields: &[(&str, &str)]) -> Reply {
    let fields = if fields.iter().any(|(name, _)| *name == "model") {
        fields.to_vec()
    } else {
        [&[("model", "whisper")], fields].concat()
    };
    let body = form(file, Some("rec.wav"), &fields);
    request(
        server.address,
        "POST",
        path,
        &[("content-type", CONTENT_TYPE)],
        &body,
    )
    .await
}

/// The events of a stream.
pub fn events(reply: &Reply) -> Vec<Value> {
    reply
        .text()
        .split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect()
}

pub async fn transcribe(server: &Server, fields: &[(&str, &str)]) -> Reply {
    post(server, TRANSCRIPTIONS, &speech(), fields).await
}

/// The value of a metric.
pub async fn metric(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").await.text().to_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}"))[name.len() + 1..]
        .parse()
        .unwrap()
}
