//! Audio from a client: samples beside the call, straight to the windows.

use std::sync::Arc;

use denizen_frontend::http::HttpConfig;
use serde_json::{json, Value};

use crate::audio::{models, says, speech_for, Scripted};
use crate::support::{text_of, Client, Envelope, Served, CALL, FAILED, PART, RESULT};

fn served(words: &'static [&'static str]) -> (Served, Arc<Scripted>) {
    let backend = Scripted::new(models(), move |request| says(request, words));
    (Served::start(backend.clone()), backend)
}

fn pcm(samples: &[f32]) -> Vec<u8> {
    samples.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn call(client: &mut Client, number: u64, endpoint: &str, body: Value, rate: u32, audio: &[u8]) {
    let head = json!({
        "endpoint": endpoint, "body": body, "rate": rate, "audio_len": audio.len(),
    });
    let mut pieces = audio.chunks(client.arena.part_bytes() / 2);
    client.send(CALL, number, &head, pieces.next());
    for piece in pieces {
        client.send(PART, number, &json!({}), Some(piece));
    }
}

fn transcribe(
    served: &Served,
    audio: bool,
    body: Value,
    rate: u32,
    samples: &[f32],
) -> (Vec<Envelope>, Envelope) {
    let mut client = served.try_client(audio).unwrap();
    call(
        &mut client,
        1,
        "audio.transcriptions",
        body,
        rate,
        &pcm(samples),
    );
    client.whole(1)
}

#[test]
fn samples_become_a_transcript_with_or_without_large_slots() {
    let (served, backend) = served(&[" He", " was"]);
    let samples = speech_for(2);
    for audio in [false, true] {
        let (chunks, end) = transcribe(
            &served,
            audio,
            json!({"model": "whisper"}),
            16_000,
            &samples,
        );
        assert!(chunks.is_empty());
        assert_eq!(end.kind, RESULT, "{end:?}");
        assert_eq!(end.body["result"]["text"], "He was");
        assert_eq!(end.body["result"]["usage"]["seconds"], 2);
        // What the worker gets is what was sent, bit for bit.
        let window = backend.last().asr.unwrap();
        assert_eq!(window.audio.samples(), &samples[..]);
    }
}

#[test]
fn another_rate_is_resampled() {
    let (served, backend) = served(&[" x"]);
    let samples = vec![0.25; 48_000];
    let (_, end) = transcribe(
        &served,
        true,
        json!({"model": "whisper", "ignore_eos": true, "max_tokens": 5}),
        48_000,
        &samples,
    );
    assert_eq!(end.kind, RESULT, "{end:?}");
    assert_eq!(backend.last().asr.unwrap().audio.samples().len(), 16_000);
}

#[test]
fn formats_are_those_of_http() {
    let (served, _) = served(&[" He", " was"]);
    let samples = speech_for(2);
    let result =
        |body: Value| transcribe(&served, true, body, 16_000, &samples).1.body["result"].take();
    let verbose = result(json!({
        "model": "whisper", "response_format": "verbose_json", "timestamp_granularities": ["segment", "word"],
    }));
    assert_eq!(verbose["segments"].as_array().unwrap().len(), 2);
    assert!(!verbose["words"].as_array().unwrap().is_empty());
    assert_eq!(verbose["language"], "german");
    let srt = result(json!({"model": "whisper", "response_format": "srt"}));
    assert!(
        srt.as_str().unwrap().starts_with("1\n00:00:00,000 --> "),
        "{srt}"
    );
}

#[test]
fn a_stream_brings_segments() {
    let (served, _) = served(&[" He", " was"]);
    let body = json!({"model": "whisper", "stream": true});
    let (chunks, end) = transcribe(&served, true, body, 16_000, &speech_for(2));
    assert_eq!(text_of(&chunks, "text"), "He was");
    assert_eq!(chunks[1].body["segments"][0]["text"], " was");
    assert_eq!(end.body["result"]["text"], "He was");
}

#[test]
fn long_audio_goes_through_a_small_slab() {
    let (served, backend) = served(&[" x"]);
    // 5.8 MB through 416 KiB.
    let samples = speech_for(90);
    let (_, end) = transcribe(
        &served,
        false,
        json!({"model": "whisper", "chunking_strategy": "auto"}),
        16_000,
        &samples,
    );
    assert_eq!(end.kind, RESULT, "{end:?}");
    assert_eq!(end.body["result"]["usage"]["seconds"], 90);
    assert!(backend.submissions() >= 3);
}

#[test]
fn mistakes_name_what_to_change() {
    let (served, backend) = served(&[" x"]);
    let mut client = served.try_client(true).unwrap();
    let mut number = 0;
    let samples = speech_for(1);
    let mut fails = |endpoint: &str, body: Value, rate: u32, audio: &[u8]| {
        number += 1;
        call(&mut client, number, endpoint, body, rate, audio);
        let (_, end) = client.whole(number);
        assert_eq!(end.kind, FAILED, "{end:?}");
        let error = &end.body["error"];
        (
            error["param"].as_str().unwrap_or("").to_owned(),
            error["message"].as_str().unwrap().to_owned(),
        )
    };
    let good = || json!({"model": "whisper"});
    let hears = "audio.transcriptions";
    let (param, why) = fails(hears, good(), 100, &pcm(&samples));
    assert!(param == "rate" && why.contains("4000 to 192000"), "{why}");
    let (param, why) = fails(hears, good(), 16_000, &[]);
    assert!(param == "file" && why.contains("no audio came"), "{why}");
    let (param, why) = fails(hears, good(), 16_000, &[0; 6]);
    assert!(param == "file" && why.contains("inside a sample"), "{why}");
    let (param, why) = fails(hears, good(), 16_000, &pcm(&[0.0, f32::NAN]));
    assert!(param == "file" && why.contains("sample 1 is NaN"), "{why}");
    let (param, _) = fails(hears, json!({"model": "tiny"}), 16_000, &pcm(&samples));
    assert_eq!(param, "model");
    let (param, _) = fails(
        hears,
        json!({"model": "whisper", "language": "xx"}),
        16_000,
        &pcm(&samples),
    );
    assert_eq!(param, "language");
    let (param, _) = fails(
        hears,
        json!({"model": "whisper", "odd": 1}),
        16_000,
        &pcm(&samples),
    );
    assert_eq!(param, "odd");
    let (param, _) = fails(
        "audio.translations",
        json!({"model": "english"}),
        16_000,
        &pcm(&samples),
    );
    assert_eq!(param, "model");
    let (param, _) = fails(
        "completions",
        json!({"model": "tiny", "prompt": "x"}),
        16_000,
        &pcm(&samples),
    );
    assert_eq!(param, "file");
    assert_eq!(backend.submissions(), 0);
}

#[test]
fn audio_beyond_the_memory_for_it_is_refused_and_what_ends_gives_its_own_back() {
    let backend = Scripted::new(models(), |request| says(request, &[" x"]));
    let config = HttpConfig {
        max_audio_memory: 1 << 20,
        ..HttpConfig::default()
    };
    let served = Served::with(config, backend, 8);
    let ask = |samples: &[f32]| {
        transcribe(&served, false, json!({"model": "whisper"}), 16_000, samples).1
    };
    for _ in 0..3 {
        let refused = ask(&vec![0.0; 1 << 20]);
        assert_eq!(refused.kind, FAILED, "{refused:?}");
        assert!(
            refused.body["status"].as_u64().unwrap() < 500,
            "{refused:?}"
        );
        // Most of what there is.
        assert_eq!(ask(&speech_for(10)).kind, RESULT);
    }
}
