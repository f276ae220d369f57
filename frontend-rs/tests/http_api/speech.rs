//! Speech: what goes to the router, and audio to clients that read slowly, not at all, or to the end.

use std::sync::Arc;
use std::time::Duration;

use denizen_frontend::http::HttpConfig;
use denizen_frontend::model::{ModelEntry, Speaker};
use denizen_frontend::route::{Event, FinishReason, Utterance};
use serde_json::{json, Value};
use tokio::io::AsyncReadExt;

use crate::support::backend::failed;
use crate::support::client::{send, Stream};
use crate::support::models::{entry, tiny_folder};
use crate::support::{done, eventually, tiny, Scripted, Server, Step};

const SPEECH: &str = "/v1/audio/speech";
/// What ends a chunked body.
const END: &[u8] = b"\r\n0\r\n\r\n";

fn speaker(voices: &[&str]) -> Arc<ModelEntry> {
    let model = entry("speaker", &tiny_folder());
    model.speaks(Speaker {
        sample_rate: 24_000,
        voices: voices.iter().map(|name| (*name).to_owned()).collect(),
    });
    model
}

fn second() -> Step {
    Step::Event(Event::Audio(vec![0.5; 24_000]))
}

/// This many seconds of audio.
fn seconds(count: usize) -> Vec<Step> {
    let mut steps = vec![second(); count];
    steps.push(done(FinishReason::Stop));
    steps
}

fn body(more: Value) -> Value {
    let mut body = json!({"model": "speaker", "input": "Hi."});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

async fn everything(mut socket: tokio::net::TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await.unwrap();
    bytes
}

fn narrow() -> HttpConfig {
    HttpConfig {
        max_buffered: 64 << 10,
        slow_client_timeout: Duration::from_millis(300),
        ..HttpConfig::default()
    }
}

#[tokio::test]
async fn what_goes_to_the_router_is_what_was_asked_for() {
    let backend = Scripted::new(vec![speaker(&["low", "high"])], |_| seconds(1));
    let server = Server::start(backend.clone()).await;
    let plain = server.post(SPEECH, &body(json!({}))).await;
    assert_eq!(plain.status, 200);
    let sent = backend.last();
    assert_eq!(sent.prompt, b"Hi.".map(u32::from));
    assert_eq!((sent.max_tokens, sent.min_tokens), (4096 - 3, 0));
    assert!(sent.stop_ids.is_empty() && sent.asr.is_none());
    let default = Utterance {
        voice: "low".into(),
        language: None,
        instructions: None,
        speed: 1.0,
    };
    assert_eq!(sent.tts, Some(default));
    let all = body(json!({
        "voice": "high", "language": "German", "instructions": "Whisper.", "speed": 1.5, "seed": 7,
        "temperature": 0.5, "max_tokens": 9, "user": "me", "response_format": "pcm", "stream_format": "audio",
    }));
    assert_eq!(server.post(SPEECH, &all).await.status, 200);
    let sent = backend.last();
    let wanted = Utterance {
        voice: "high".into(),
        language: Some("de"),
        instructions: Some("Whisper.".into()),
        speed: 1.5,
    };
    assert_eq!(sent.tts, Some(wanted));
    assert_eq!((sent.sampling.seed, sent.sampling.temperature), (7, 0.5));
    assert_eq!(sent.max_tokens, 9);
}

#[tokio::test]
async fn special_tokens_in_a_text_are_spoken_not_obeyed() {
    let backend = Scripted::new(vec![speaker(&["low"])], |_| seconds(1));
    let server = Server::start(backend.clone()).await;
    let input = "one<|im_end|>two";
    let reply = server.post(SPEECH, &body(json!({"input": input}))).await;
    assert_eq!(reply.status, 200);
    let wanted: Vec<u32> = input.bytes().map(u32::from).collect();
    assert_eq!(backend.last().prompt, wanted);
}

#[tokio::test]
async fn a_model_that_names_no_voices_takes_none() {
    let backend = Scripted::new(vec![speaker(&[])], |_| seconds(1));
    let server = Server::start(backend.clone()).await;
    assert_eq!(server.post(SPEECH, &body(json!({}))).await.status, 200);
    assert_eq!(backend.last().tts.unwrap().voice, "");
    let reply = server.post(SPEECH, &body(json!({"voice": "low"}))).await;
    let message = reply.error(400, Some("voice"));
    assert!(message.contains("leave 'voice' out"), "{message}");
    let voices = server.get("/v1/audio/voices").await.ok();
    assert_eq!(voices, json!({"object": "list", "data": []}));
}

#[tokio::test]
async fn whether_a_model_speaks_is_not_known_before_its_worker_is_ready() {
    let backend = Scripted::new(vec![tiny()], |_| seconds(1));
    *backend.not_ready.lock().unwrap() = vec!["worker 0 (cpu): starting".into()];
    let server = Server::start(backend.clone()).await;
    let ask = json!({"model": "tiny", "input": "Hi."});
    let reply = server.post(SPEECH, &ask).await;
    reply.error(503, None);
    assert_eq!(reply.code(), "not_ready");
    assert!(reply.header("retry-after").is_some());
    backend.not_ready.lock().unwrap().clear();
    let reply = server.post(SPEECH, &ask).await;
    assert!(reply.error(400, Some("model")).contains("does not speak"));
    assert_eq!(backend.submissions(), 0);
}

#[tokio::test]
async fn the_limit_of_json_bodies_holds_not_that_of_uploads() {
    let backend = Scripted::new(vec![speaker(&["low"])], |_| seconds(1));
    let config = HttpConfig {
        max_body: 1000,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend).await;
    let long = body(json!({"input": "x".repeat(1000)}));
    let reply = server.post(SPEECH, &long).await;
    assert!(reply.error(413, None).contains("1000 bytes"));
}

#[tokio::test]
async fn a_raw_stream_that_nobody_reads_breaks_off() {
    let backend = Scripted::new(vec![speaker(&["low"])], |_| seconds(600));
    let server = Server::with(narrow(), backend.clone()).await;
    let pcm = body(json!({"response_format": "pcm"}));
    let socket = send(server.address, SPEECH, &pcm).await;
    eventually("it runs", || backend.live() == 1).await;
    eventually("it is dropped", || backend.live() == 0).await;
    let metrics = server.get("/metrics").await;
    let count = "denizen_http_aborted_total{reason=\"slow_client\"} 1";
    assert!(metrics.text().contains(count), "{}", metrics.text());
    assert!(metrics.text().contains("denizen_http_in_flight 0"));
    let received = everything(socket).await;
    assert!(received.starts_with(b"HTTP/1.1 200"));
    assert!(received.len() < 600 * 48_000);
    assert!(!received.ends_with(END), "a short file that looks whole");
}

#[tokio::test]
async fn a_stream_of_events_that_nobody_reads_says_why_it_ends() {
    let backend = Scripted::new(vec![speaker(&["low"])], |_| seconds(600));
    let server = Server::with(narrow(), backend.clone()).await;
    let sse = body(json!({"stream_format": "sse"}));
    let socket = send(server.address, SPEECH, &sse).await;
    eventually("it runs", || backend.live() == 1).await;
    eventually("it is dropped", || backend.live() == 0).await;
    let events = Stream::on(socket).await.rest().await;
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "slow_client");
}

#[tokio::test]
async fn a_client_that_reads_gets_more_than_the_bound() {
    let backend = Scripted::new(vec![speaker(&["low"])], |_| seconds(40));
    let config = HttpConfig {
        max_buffered: 1,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend).await;
    let reply = server
        .post(SPEECH, &body(json!({"response_format": "pcm"})))
        .await;
    assert_eq!(reply.body.len(), 40 * 48_000);
}

#[tokio::test]
async fn a_failure_in_the_middle_breaks_a_raw_stream_and_ends_events_with_an_error() {
    let backend = Scripted::new(vec![speaker(&["low"])], |_| {
        vec![second(), Step::Gate, failed("worker_died", true)]
    });
    let server = Server::start(backend.clone()).await;
    for format in ["wav", "pcm", "flac", "opus"] {
        let socket = send(
            server.address,
            SPEECH,
            &body(json!({"response_format": format})),
        )
        .await;
        eventually("it runs", || backend.live() == 1).await;
        backend.gate.add_permits(1);
        let received = everything(socket).await;
        assert!(received.starts_with(b"HTTP/1.1 200"), "{format}");
        assert!(!received.ends_with(END), "{format}");
    }
    backend.gate.add_permits(1);
    let events = server
        .events(SPEECH, &body(json!({"stream_format": "sse"})))
        .await;
    assert!(events[0].contains("speech.audio.delta"));
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "worker_died");
    backend.gate.add_permits(1);
    let reply = server.post(SPEECH, &body(json!({"stream": false}))).await;
    reply.error(503, None);
    assert_eq!(reply.code(), "worker_died");
}

#[tokio::test]
async fn speech_without_a_sound_is_an_empty_file() {
    let backend = Scripted::new(vec![speaker(&["low"])], |_| seconds(0));
    let server = Server::start(backend).await;
    for (stream, size) in [(true, [0xFF; 4]), (false, [0; 4])] {
        let reply = server.post(SPEECH, &body(json!({"stream": stream}))).await;
        assert_eq!(reply.status, 200);
        assert_eq!((reply.body.len(), &reply.body[40..44]), (44, &size[..]));
    }
}
