//! Log-probabilities in OpenAI's two shapes.

use denizen_frontend::route::{Event, FinishReason, Generate, TokenLogprob, Usage};
use serde_json::{json, Value};

use crate::support::backend::token_with;
use crate::support::client::chunks;
use crate::support::{done, smol, tiny, Scripted, Server, Step};

/// "hé" with the alternatives that were asked for, then an end.
fn script(request: &Generate) -> Vec<Step> {
    let Some(top) = request.sampling.logprobs else {
        panic!("log-probabilities were asked for")
    };
    let alternatives = [(b'a'.into(), -0.5), (b'b'.into(), f32::NEG_INFINITY)];
    let top = &alternatives[..(top as usize).min(2)];
    let prompt_logprobs = match request.prompt_logprobs {
        None => Vec::new(),
        Some(_) => request
            .prompt
            .iter()
            .enumerate()
            .map(|(i, _)| {
                (i > 0).then(|| TokenLogprob {
                    logprob: -0.25,
                    top: vec![(b'z'.into(), -1.0)],
                })
            })
            .collect(),
    };
    let usage = Usage::default();
    vec![
        token_with(b'h'.into(), -0.125, top),
        token_with(0xC3, -2.0, top),
        token_with(0xA9, f32::NEG_INFINITY, top),
        Step::Event(Event::Done {
            reason: FinishReason::Stop,
            usage,
            prompt_logprobs,
            asr: None,
        }),
    ]
}

async fn server() -> Server {
    Server::start(Scripted::new(vec![tiny()], script)).await
}

fn chat(top: u32) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": top})
}

#[tokio::test]
async fn chat_logprobs_name_token_bytes_and_alternatives() {
    let server = server().await;
    let reply = server.post("/v1/chat/completions", &chat(2)).await.ok();
    let logprobs = &reply["choices"][0]["logprobs"];
    let alternatives = json!([
        {"token": "a", "logprob": -0.5, "bytes": [97]},
        {"token": "b", "logprob": -9999.0, "bytes": [98]},
    ]);
    let expected = json!({"content": [
        {"token": "h", "logprob": -0.125, "bytes": [104], "top_logprobs": alternatives},
        {"token": "bytes:\\xc3", "logprob": -2.0, "bytes": [195], "top_logprobs": alternatives},
        {"token": "bytes:\\xa9", "logprob": -9999.0, "bytes": [169], "top_logprobs": alternatives},
    ], "refusal": null});
    assert_eq!(logprobs, &expected);

    let reply = server.post("/v1/chat/completions", &chat(0)).await.ok();
    assert_eq!(
        reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
        json!([])
    );

    // The stream's pieces give the same list.
    let mut body = chat(2);
    body["stream"] = json!(true);
    let chunks = chunks(&server.events("/v1/chat/completions", &body).await);
    let streamed: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(json!(streamed), expected["content"]);
}

#[tokio::test]
async fn completion_logprobs_have_offsets_and_maps() {
    let server = server().await;
    let body = json!({"model": "tiny", "prompt": "é!", "logprobs": 2});
    let reply = server.post("/v1/completions", &body).await.ok();
    assert_eq!(
        reply["choices"][0]["logprobs"],
        json!({
            "tokens": ["h", "bytes:\\xc3", "bytes:\\xa9"],
            "token_logprobs": [-0.125, -2.0, -9999.0],
            "top_logprobs": [
                {"a": -0.5, "b": -9999.0, "h": -0.125},
                {"a": -0.5, "b": -9999.0, "bytes:\\xc3": -2.0},
                {"a": -0.5, "b": -9999.0, "bytes:\\xa9": -9999.0},
            ],
            "text_offset": [0, 1, 1],
        })
    );
}

#[tokio::test]
async fn echo_puts_the_prompts_tokens_in_front() {
    let server = server().await;
    let body = json!({"model": "tiny", "prompt": "é!", "logprobs": 1, "echo": true, "n": 2});
    let reply = server.post("/v1/completions", &body).await.ok();
    for choice in reply["choices"].as_array().unwrap() {
        assert_eq!(choice["text"], "é!hé");
        let logprobs = &choice["logprobs"];
        assert_eq!(
            logprobs["tokens"],
            json!([
                "bytes:\\xc3",
                "bytes:\\xa9",
                "!",
                "h",
                "bytes:\\xc3",
                "bytes:\\xa9"
            ])
        );
        assert_eq!(
            logprobs["token_logprobs"],
            json!([null, -0.25, -0.25, -0.125, -2.0, -9999.0])
        );
        assert_eq!(logprobs["text_offset"], json!([0, 0, 1, 2, 3, 3]));
        assert_eq!(logprobs["top_logprobs"][0], Value::Null);
        assert_eq!(logprobs["top_logprobs"][2], json!({"z": -1.0, "!": -0.25}));
    }
}

#[tokio::test]
async fn tokens_of_a_stop_string_are_not_listed() {
    let backend = Scripted::new(vec![tiny()], |_| {
        let tokens = b"abcXYZd"
            .iter()
            .map(|&byte| token_with(byte.into(), -1.0, &[]));
        tokens.chain([done(FinishReason::Stop)]).collect()
    });
    let server = Server::start(backend).await;
    for (stop, text) in [("XYZ", "abc"), ("cX", "ab"), ("XYQ", "abcXYZd")] {
        let mut body = chat(0);
        body["stop"] = json!(stop);
        let reply = server.post("/v1/chat/completions", &body).await.ok();
        let tokens = |content: &Value| -> String {
            content
                .as_array()
                .into_iter()
                .flatten()
                .map(|entry| entry["token"].as_str().unwrap())
                .collect()
        };
        assert_eq!(reply["choices"][0]["message"]["content"], text);
        assert_eq!(tokens(&reply["choices"][0]["logprobs"]["content"]), text);
        body["stream"] = json!(true);
        let chunks = chunks(&server.events("/v1/chat/completions", &body).await);
        let streamed: String = chunks
            .iter()
            .map(|chunk| tokens(&chunk["choices"][0]["logprobs"]["content"]))
            .collect();
        assert_eq!(streamed, text);
    }
}

/// A token that is text and stop string in one is listed: part of it shows.
#[tokio::test]
async fn a_token_that_a_stop_string_cuts_is_listed() {
    let model = smol();
    let ids = model.text.encode("Hello world again", false).unwrap();
    let words: Vec<String> = ids
        .iter()
        .map(|&id| model.text.pieces().display(id))
        .collect();
    assert_eq!(words, ["Hello", " world", " again"]);
    let backend = Scripted::new(vec![model], move |_| {
        let tokens = ids.iter().map(|&id| token_with(id, -1.0, &[]));
        tokens.chain([done(FinishReason::Stop)]).collect()
    });
    let server = Server::start(backend).await;
    for (stop, text, listed) in [
        ("rld", "Hello wo", vec!["Hello", " world"]),
        (" wor", "Hello", vec!["Hello"]),
        ("ld ag", "Hello wor", vec!["Hello", " world"]),
        ("lo", "Hel", vec!["Hello"]),
    ] {
        let body = json!({"model": "smol", "prompt": "x", "logprobs": 0, "stop": stop});
        let choice = server.post("/v1/completions", &body).await.ok()["choices"][0].clone();
        assert_eq!(choice["text"], text);
        assert_eq!(choice["logprobs"]["tokens"], json!(listed), "{stop}");
    }
}
