//! Calls of the text endpoints: the same answers and refusals as over HTTP.

use std::sync::Arc;

use denizen_frontend::route::{FinishReason, SubmitError};
use serde_json::{json, Value};

use crate::audio::{bytes, done, tiny, Scripted};
use crate::support::{pack, text_of, Served, CALL, CHUNK, FAILED, RESULT};

fn says(text: &'static str) -> Arc<Scripted> {
    Scripted::new(vec![tiny()], move |_| {
        [bytes(text), vec![done(FinishReason::Stop)]].concat()
    })
}

#[test]
fn a_client_is_welcomed_with_models_and_limits() {
    let served = Served::start(says("x"));
    let client = served.client();
    let welcome = client.welcome();
    assert_eq!(welcome["version"], env!("CARGO_PKG_VERSION"));
    let model = &welcome["models"][0];
    assert_eq!(
        (
            &model["id"],
            &model["kind"],
            &model["context"],
            &model["vocab"]
        ),
        (&json!("tiny"), &json!("text"), &json!(4096), &json!(300))
    );
    for limit in [
        "max_in_flight",
        "max_body",
        "max_upload",
        "max_audio_s",
        "request_timeout_s",
    ] {
        assert!(welcome["limits"][limit].is_number(), "{limit}");
    }
    served.until_metric("denizen_shm_clients 1");
    drop(client);
    served.until_metric("denizen_shm_clients 0");
    served.until_metric("denizen_shm_clients_total 1");
}

#[test]
fn a_completion_has_what_http_has_and_its_tokens() {
    let backend = says("hello");
    let served = Served::start(backend.clone());
    let mut client = served.client();
    let body = client.result(
        "completions",
        json!({"model": "tiny", "prompt": "abc", "max_tokens": 9}),
    );
    let result = &body["result"];
    assert_eq!(result["object"], "text_completion");
    assert_eq!(result["choices"][0]["text"], "hello");
    assert_eq!(result["choices"][0]["finish_reason"], "stop");
    assert_eq!(result["usage"]["prompt_tokens"], 3);
    assert_eq!(result["usage"]["completion_tokens"], 5);
    assert_eq!(body["tokens"], json!([[104, 101, 108, 108, 111]]));
    assert_eq!(backend.last().prompt, [97, 98, 99]);
    served.until_metric("denizen_shm_requests_total{endpoint=\"completions\",status=\"200\"} 1");
}

#[test]
fn a_stream_has_text_tokens_and_a_summary() {
    let served = Served::start(says("h\u{e9}!"));
    let mut client = served.client();
    let call = client.call(
        "completions",
        json!({"model": "tiny", "prompt": "abc", "stream": true, "echo": true}),
    );
    let (chunks, end) = client.whole(call);
    assert_eq!(text_of(&chunks, "text"), "abch\u{e9}!");
    let tokens: Vec<u64> = chunks
        .iter()
        .flat_map(|chunk| chunk.body["tokens"].as_array().cloned().unwrap_or_default())
        .map(|id| id.as_u64().unwrap())
        .collect();
    assert_eq!(tokens, [0x68, 0xc3, 0xa9, 0x21]);
    // The first byte of two is a token without text.
    let without_text = chunks
        .iter()
        .filter(|chunk| chunk.body.get("text").is_none());
    assert!(without_text.count() >= 1);
    assert_eq!(chunks.last().unwrap().body["finish_reason"], "stop");
    let result = &end.body["result"];
    assert_eq!(
        result["choices"],
        json!([{"index": 0, "finish_reason": "stop"}])
    );
    assert_eq!(result["usage"]["completion_tokens"], 4);
}

#[test]
fn a_chat_is_rendered_and_its_reasoning_told_apart() {
    let served = Served::start(says("<think>\nhm</think>\n\nyes"));
    let mut client = served.client();
    let body =
        json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": true});
    let call = client.call("chat.completions", body.clone());
    let (chunks, end) = client.whole(call);
    let streamed = (text_of(&chunks, "reasoning"), text_of(&chunks, "text"));
    assert_eq!(end.kind, RESULT);
    let mut body = body;
    body["stream"] = false.into();
    let whole = client.result("chat.completions", body);
    let message = &whole["result"]["choices"][0]["message"];
    let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
    assert_eq!(streamed, (text("reasoning_content"), text("content")));
    assert!(!streamed.1.is_empty());
}

#[test]
fn token_ids_come_as_a_list_or_as_bytes() {
    let backend = says("x");
    let served = Served::start(backend.clone());
    let mut client = served.client();
    client.result(
        "completions",
        json!({"model": "tiny", "prompt": [1, 2, 299]}),
    );
    assert_eq!(backend.last().prompt, [1, 2, 299]);
    // {"endpoint": "completions", "body": {"model": "tiny", "prompt": bin}}
    let mut body = vec![0x82];
    pack(&mut body, &json!("endpoint"));
    pack(&mut body, &json!("completions"));
    pack(&mut body, &json!("body"));
    body.push(0x82);
    pack(&mut body, &json!("model"));
    pack(&mut body, &json!("tiny"));
    pack(&mut body, &json!("prompt"));
    body.extend([0xc4, 8, 7, 0, 0, 0, 43, 1, 0, 0]);
    client.send_packed(CALL, 1000, &body, None);
    let (_, end) = client.whole(1000);
    assert_eq!(end.kind, RESULT, "{end:?}");
    assert_eq!(backend.last().prompt, [7, 299]);
}

#[test]
fn the_small_endpoints_answer() {
    let served = Served::start(says("x"));
    let mut client = served.client();
    let tokens = client.result("tokenize", json!({"model": "tiny", "prompt": "abc"}));
    assert_eq!(tokens["result"]["tokens"], json!([97, 98, 99]));
    let text = client.result(
        "detokenize",
        json!({"model": "tiny", "tokens": [97, 98, 99]}),
    );
    assert_eq!(text["result"], json!({"prompt": "abc"}));
    let models = client.result("models", json!({}));
    assert_eq!(models["result"]["data"][0]["id"], "tiny");
}

#[test]
fn refusals_are_those_of_http() {
    let backend = says("x");
    let served = Served::start(backend.clone());
    let mut client = served.client();
    let good = || json!({"model": "tiny", "prompt": "x"});
    let with = |key: &str, value: Value| {
        let mut body = good();
        body[key] = value;
        body
    };
    let mut fails = |endpoint: &str, body: Value| {
        let failed = client.failure(endpoint, body);
        (
            failed["status"].as_u64().unwrap(),
            failed["error"]["param"].as_str().unwrap_or("").to_owned(),
            failed["error"]["code"].as_str().unwrap_or("").to_owned(),
        )
    };
    let case = |status, param: &str, code: &str| (status, param.to_owned(), code.to_owned());
    assert_eq!(
        fails("completions", with("temperature", json!(3))),
        case(400, "temperature", "")
    );
    assert_eq!(
        fails("completions", with("max_tokens", json!(9999))),
        case(400, "max_tokens", "context_length_exceeded")
    );
    assert_eq!(
        fails("completions", with("model", json!("m"))),
        case(404, "model", "model_not_found")
    );
    assert_eq!(
        fails("completions", with("odd", json!(1))),
        case(400, "odd", "unknown_parameter")
    );
    assert_eq!(
        fails("completions", json!([])),
        case(400, "", "invalid_body")
    );
    assert_eq!(
        fails("embeddings", good()),
        case(404, "endpoint", "not_found")
    );
    assert_eq!(backend.submissions(), 0);
    *backend.refuse.lock().unwrap() = Some(SubmitError::Busy {
        limit: 3,
        retry_after_s: 7,
    });
    let busy = client.failure("completions", good());
    assert_eq!(
        (&busy["status"], &busy["retry_after_s"]),
        (&json!(429), &json!(7))
    );
    assert_eq!(busy["error"]["type"], "rate_limit_error");
}

#[test]
fn a_failure_in_a_stream_comes_after_its_chunks() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes("ab"), vec![crate::audio::failed("worker_died", true)]].concat()
    });
    let served = Served::start(backend);
    let mut client = served.client();
    let call = client.call(
        "completions",
        json!({"model": "tiny", "prompt": "x", "stream": true}),
    );
    let (chunks, end) = client.whole(call);
    assert_eq!(text_of(&chunks, "text"), "ab");
    assert_eq!((end.kind, &end.body["status"]), (FAILED, &json!(503)));
    assert_eq!(end.body["error"]["code"], "worker_died");
}

#[test]
fn several_calls_run_at_once() {
    let backend = Scripted::new(vec![tiny()], |request| {
        let name = request.prompt[0] as u8;
        [bytes([name; 50]), vec![done(FinishReason::Length)]].concat()
    });
    let served = Served::start(backend);
    let mut client = served.client();
    let names = ["a", "b", "c", "d"];
    let calls: Vec<u64> = names
        .iter()
        .map(|name| {
            let body = json!({"model": "tiny", "prompt": name, "stream": true, "max_tokens": 50});
            client.call("completions", body)
        })
        .collect();
    let mut texts = vec![String::new(); 4];
    let mut left = 4;
    while left > 0 {
        let envelope = client.next();
        let index = calls
            .iter()
            .position(|call| *call == envelope.request)
            .unwrap();
        match envelope.kind {
            CHUNK => texts[index] += envelope.body["text"].as_str().unwrap_or_default(),
            RESULT => left -= 1,
            _ => panic!("{envelope:?}"),
        }
    }
    for (name, text) in names.iter().zip(&texts) {
        assert_eq!(*text, name.repeat(50));
    }
}

#[test]
fn a_long_prompt_comes_in_parts_and_a_long_result_goes_in_parts() {
    let backend = says("x");
    let served = Served::start(backend);
    let mut client = served.client();
    // More than the slab of either side: a megabyte of text, and its ids.
    let text = "abcdefgh".repeat(120_000);
    let mut packed = Vec::new();
    pack(&mut packed, &json!({"model": "tiny", "prompt": text}));
    let head = json!({"endpoint": "tokenize", "body_len": packed.len()});
    let mut pieces = packed.chunks(100_000);
    client.send(CALL, 5, &head, pieces.next());
    for piece in pieces {
        client.send(crate::support::PART, 5, &json!({}), Some(piece));
    }
    let (_, end) = client.whole(5);
    assert_eq!(end.body["result"]["count"], text.len());
    assert_eq!(
        end.body["result"]["tokens"].as_array().unwrap().len(),
        text.len()
    );
}
