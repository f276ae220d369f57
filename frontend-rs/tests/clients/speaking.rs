//! Texts that are spoken: samples beside the envelopes.

use std::sync::Arc;

use denizen_frontend::model::{ModelEntry, Speaker};
use denizen_frontend::route::{Event, FinishReason};
use serde_json::{json, Value};

use crate::audio::{done, Folder, Scripted, Step};
use crate::support::{until, Served, CANCEL, CHUNK, FAILED, PART, RESULT};

fn speaker() -> Arc<ModelEntry> {
    let folder = Folder::new("speaker");
    folder.write("tokenizer.json", crate::audio::tokenizer());
    folder.write_json(
        "config.json",
        &json!({"vocab_size": 300, "max_position_embeddings": 4096}),
    );
    let model = ModelEntry::load("speaker", &folder.0, None).unwrap();
    model.speaks(Speaker {
        sample_rate: 24_000,
        voices: vec!["low".into(), "high".into()],
    });
    Arc::new(model)
}

/// Seconds of which each sample tells its second.
fn seconds(count: usize) -> Vec<Step> {
    let second = |index: usize| Step::Event(Event::Audio(vec![index as f32 / 100.0; 24_000]));
    let mut steps: Vec<Step> = (0..count).map(second).collect();
    steps.push(done(FinishReason::Stop));
    steps
}

fn served(count: usize) -> (Served, Arc<Scripted>) {
    let backend = Scripted::new(vec![speaker()], move |_| seconds(count));
    (Served::start(backend.clone()), backend)
}

fn body(more: Value) -> Value {
    let mut body = json!({"model": "speaker", "input": "Hi."});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

fn samples(bytes: &[u8]) -> Vec<f32> {
    let (samples, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "whole samples");
    samples
        .iter()
        .map(|sample| f32::from_le_bytes(*sample))
        .collect()
}

fn expected(count: usize) -> Vec<f32> {
    (0..count)
        .flat_map(|index| vec![index as f32 / 100.0; 24_000])
        .collect()
}

#[test]
fn a_speaker_is_announced() {
    let (served, _) = served(1);
    let client = served.client();
    let model = &client.welcome()["models"][0];
    assert_eq!(model["kind"], "tts");
    assert_eq!(model["sample_rate"], 24_000);
    assert_eq!(model["voices"], json!(["low", "high"]));
}

#[test]
fn speech_is_streamed_unless_said_otherwise() {
    let (served, backend) = served(3);
    let mut client = served.client();
    let call = client.call("audio.speech", body(json!({"voice": "high", "speed": 1.5})));
    let (chunks, end) = client.whole(call);
    assert_eq!(end.kind, RESULT, "{end:?}");
    let mut bytes = Vec::new();
    for (index, chunk) in chunks.iter().enumerate() {
        assert_eq!(
            (&chunk.body["index"], &chunk.body["rate"]),
            (&json!(index), &json!(24_000))
        );
        bytes.extend(chunk.attachment.as_ref().unwrap());
    }
    assert_eq!(samples(&bytes), expected(3));
    let result = &end.body["result"];
    assert_eq!(
        (&result["samples"], &result["finish_reason"]),
        (&json!(72_000), &json!("stop"))
    );
    assert_eq!(result["usage"]["input_tokens"], 3);
    let said = backend.last().tts.unwrap();
    assert_eq!((said.voice.as_str(), said.speed), ("high", 1.5));
}

#[test]
fn pieces_that_wait_for_a_client_grow_together() {
    const PIECES: usize = 400;
    let backend = Scripted::new(vec![speaker()], |_| {
        let piece = |index: usize| Step::Event(Event::Audio(vec![index as f32 / 400.0; 1920]));
        let mut steps: Vec<Step> = (0..PIECES).map(piece).collect();
        steps.push(done(FinishReason::Stop));
        steps
    });
    let served = Served::start(backend.clone());
    let mut client = served.client();
    let call = client.call("audio.speech", body(json!({})));
    // The client takes nothing until all has been said.
    until("all is said", || {
        backend.submissions() == 1 && backend.live() == 0
    });
    let (chunks, end) = client.whole(call);
    assert_eq!(end.kind, RESULT, "{end:?}");
    assert!(chunks.len() < PIECES / 2, "{} messages", chunks.len());
    for (index, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk.body["index"], json!(index));
    }
    let bytes: Vec<u8> = chunks
        .iter()
        .flat_map(|chunk| chunk.attachment.clone().unwrap())
        .collect();
    let said: Vec<f32> = (0..PIECES)
        .flat_map(|index| vec![index as f32 / 400.0; 1920])
        .collect();
    assert_eq!(samples(&bytes), said);
    assert_eq!(end.body["result"]["samples"], said.len());
}

#[test]
fn speech_as_a_whole_comes_in_parts() {
    for count in [1, 20] {
        let (served, _) = served(count);
        let mut client = served.client();
        let call = client.call("audio.speech", body(json!({"stream": false})));
        let mut bytes = Vec::new();
        let end = loop {
            let mut envelope = client.next();
            assert_eq!(envelope.request, call);
            bytes.extend(envelope.attachment.take().unwrap());
            match envelope.kind {
                PART => {}
                RESULT => break envelope,
                _ => panic!("{envelope:?}"),
            }
        };
        assert_eq!(end.body["audio_len"], bytes.len());
        assert_eq!(end.body["result"]["rate"], 24_000);
        assert_eq!(samples(&bytes), expected(count));
    }
}

#[test]
fn mistakes_are_those_of_http_and_packing_is_refused() {
    let (served, backend) = served(1);
    let mut client = served.client();
    for (more, param) in [
        (json!({"voice": "odd"}), "voice"),
        (json!({"speed": 9}), "speed"),
        (json!({"input": ""}), "input"),
        (json!({"response_format": "wav"}), "response_format"),
        (json!({"stream_format": "sse"}), "stream_format"),
        (json!({"odd": 1}), "odd"),
    ] {
        let failed = client.failure("audio.speech", body(more));
        assert_eq!(
            (&failed["status"], &failed["error"]["param"]),
            (&json!(400), &json!(param))
        );
    }
    assert_eq!(backend.submissions(), 0);
}

#[test]
fn cancelled_speech_ends_at_once() {
    let backend = Scripted::new(vec![speaker()], |_| {
        vec![Step::Event(Event::Audio(vec![0.5; 240])), Step::Hang]
    });
    let served = Served::start(backend.clone());
    let mut client = served.client();
    let call = client.call("audio.speech", body(json!({})));
    assert_eq!(client.next().kind, CHUNK);
    client.send(CANCEL, call, &json!({}), None);
    let (_, end) = client.whole(call);
    assert_eq!((end.kind, &end.body["status"]), (FAILED, &json!(499)));
    until("the row is free", || backend.live() == 0);
}
