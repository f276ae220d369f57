//! Golden bytes both ways, and hostile ones.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::route::SubmitError;

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden/sdk")
        .join(format!("{name}.bin"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text_chunk() -> Chunk<'static> {
    Chunk {
        index: Some(0),
        text: "Hé",
        tokens: &[12, 300, 70_000],
        ..Chunk::default()
    }
}

#[test]
fn what_the_front_end_writes_is_golden() {
    let written = |name: &str, message: &Message, request: u64, sequence: u64| {
        assert_eq!(message.encode(request, sequence), golden(name), "{name}");
    };
    let models = vec![json!({"id": "smol", "kind": "text", "context": 8192, "vocab": 49152})];
    let limits = json!({"max_in_flight": 1024, "max_body": 33554432, "request_timeout_s": 600.0});
    written("welcome", &Message::welcome("0.1.0", models, limits), 0, 0);
    written("chunk_text", &Message::chunk(text_chunk()), 7, 1);
    let logprobs = json!({
        "content": [{"token": "!", "logprob": -0.5, "top_logprobs": []}], "refusal": null,
    });
    let end = Chunk {
        index: Some(1),
        text: "!",
        reasoning: "so",
        tokens: &[2],
        logprobs: Some(&logprobs),
        finish_reason: Some("stop"),
        ..Chunk::default()
    };
    written("chunk_end", &Message::chunk(end), 7, 300);
    let segments = json!([{"id": 0, "start": 0.0, "end": 1.5}]);
    let words = json!([{"word": " He", "start": 0.25}]);
    let segment = Chunk {
        text: " He",
        segments: Some(&segments),
        words: Some(&words),
        ..Chunk::default()
    };
    written("chunk_segment", &Message::chunk(segment), u64::MAX, 2);
    let result = json!({"object": "text_completion", "choices": []});
    let whole = Message::result(&result, Some(&[vec![1, 2], vec![]]), 1000);
    written("result", &whole[0], 7, 70_000);
    let srt = json!("1\n00:00:00,000 --> 00:00:01,000\nHe\n");
    written("result_text", &Message::result(&srt, None, 1000)[0], 8, 5);
    // A string of that many bytes has five in front.
    let parts = Message::result(&json!("x".repeat(299_995)), None, 200_000);
    assert_eq!(parts.len(), 2);
    written("part", &parts[0], 9, 5);
    written("result_in_parts", &parts[1], 9, 6);
    let attached: Vec<usize> = parts
        .iter()
        .map(|part| part.attachment.as_ref().unwrap().len())
        .collect();
    assert_eq!(attached, [200_000, 100_000]);
    assert_eq!([parts[0].status, parts[1].status], [None, Some(200)]);
    let busy = SubmitError::Busy {
        limit: 3,
        retry_after_s: 1,
    };
    written("failed", &Message::failed(&busy.into()), 7, 3);
    let invalid = ApiError::invalid("top_p", "'top_p' must be between 0 and 1, not 2");
    let failed = Message::failed(&invalid);
    assert_eq!(failed.status, Some(400));
    written("failed_param", &failed, 7, 3);
    let bye = Message::bye("shutting_down", "the server is shutting down");
    written("bye", &bye, 0, 9);
}

#[test]
fn what_a_client_writes_is_read() {
    let read = |name: &str| decode(&golden(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let FromClient::Call { request: 1, call } = read("call") else {
        panic!()
    };
    assert_eq!(call.endpoint, "completions");
    let fields = value::fields(&call.body.unwrap()).unwrap();
    let expected = json!({
        "model": "smol", "prompt": [1, 2, 49151], "temperature": 0.5, "stop": ["\n"], "seed": -1,
    });
    assert_eq!(Value::Object(fields), expected);
    let parts = Call {
        endpoint: "chat.completions".into(),
        body_len: Some(1_000_000),
        ..Call::default()
    };
    let request = u64::MAX;
    assert_eq!(
        read("call_in_parts"),
        FromClient::Call {
            request,
            call: parts
        }
    );
    let FromClient::Call { request: 2, call } = read("call_audio") else {
        panic!()
    };
    assert_eq!((call.rate, call.audio_len), (Some(44_100), Some(8_000_000)));
    let FromClient::Call { request: 3, call } = read("call_foreign") else {
        panic!()
    };
    assert_eq!((call.rate, call.body), (None, Some(vec![0x80])));
    for name in ["cancel", "cancel_foreign"] {
        assert_eq!(read(name), FromClient::Cancel { request: 1 });
    }
    assert_eq!(read("client_part"), FromClient::Part { request: 2 });
    assert_eq!(read("client_bye"), FromClient::Bye);
}

#[test]
fn every_prefix_of_an_envelope_is_refused() {
    for name in [
        "call",
        "call_in_parts",
        "call_foreign",
        "cancel",
        "client_bye",
    ] {
        let bytes = golden(name);
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{name} cut at {cut}");
        }
        assert!(decode(&[&bytes[..], &[0xc0]].concat()).is_err());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn a_damaged_call_is_read_or_refused(at in 0usize..60, value in any::<u8>()) {
        let mut bytes = golden("call");
        let at = at % bytes.len();
        bytes[at] = value;
        if let Ok(FromClient::Call { call: Call { body: Some(body), .. }, .. }) = decode(&bytes) {
            let _ = value::fields(&body);
        }
    }
}
