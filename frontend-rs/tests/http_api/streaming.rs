//! Streams: what is sent, in which order, and that it equals the answer in one piece.

use denizen_frontend::route::FinishReason;
use serde_json::{json, Value};

use crate::support::backend::{failed, token};
use crate::support::client::{chunks, joined};
use crate::support::{bytes, done, tiny, tiny_id, Scripted, Server, Step};

fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    body
}

fn says(text: &'static str) -> std::sync::Arc<Scripted> {
    Scripted::new(vec![tiny()], move |_| {
        [bytes(text), vec![done(FinishReason::Stop)]].concat()
    })
}

/// vllm#3574: a stop string of several tokens leaks its first letters into the stream.
#[tokio::test]
async fn p01_a_stop_string_of_several_tokens_never_shows() {
    let backend = says("ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    let server = Server::start(backend.clone()).await;
    for (path, body) in [
        ("/v1/chat/completions", chat(json!({"stop": ["MNOPQ"]}))),
        (
            "/v1/completions",
            json!({"model": "tiny", "prompt": "abc", "max_tokens": 40, "stop": "MNOPQ"}),
        ),
        // vllm#57052: prompts of token ids ignored `stop`.
        (
            "/v1/completions",
            json!({"model": "tiny", "prompt": [1, 2], "max_tokens": 40, "stop": ["zz", "MNOPQ"]}),
        ),
    ] {
        let whole = server.post(path, &body).await.ok();
        let choice = &whole["choices"][0];
        let text = choice["message"]["content"]
            .as_str()
            .or(choice["text"].as_str())
            .unwrap();
        assert_eq!(text, "ABCDEFGHIJKL");
        assert_eq!(choice["finish_reason"], "stop");
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let chunks = chunks(&server.events(path, &streamed).await);
        let field = if path.contains("chat") {
            "content"
        } else {
            "text"
        };
        assert_eq!(joined(&chunks, 0, field), "ABCDEFGHIJKL");
        assert_eq!(
            chunks.last().unwrap()["choices"][0]["finish_reason"],
            "stop"
        );
    }
    // Each was ended early.
    crate::support::eventually("all sequences are gone", || backend.live() == 0).await;
}

#[tokio::test]
async fn a_stop_strings_beginning_that_is_not_completed_is_text() {
    let server = Server::start(says("ABCMNO")).await;
    let body = chat(json!({"stop": ["MNOPQ"], "stream": true}));
    assert_eq!(
        joined(
            &chunks(&server.events("/v1/chat/completions", &body).await),
            0,
            "content"
        ),
        "ABCMNO"
    );
}

/// dynamo#12630: a character of several tokens is cut between chunks, or at the end.
#[tokio::test]
async fn p02_no_half_character_is_sent_wherever_the_output_ends() {
    let text = "👩‍👩‍👧‍👦 🇯🇵 龘𠮷";
    let backend = Scripted::new(vec![tiny()], move |request| {
        let shown = &text.as_bytes()[..request.max_tokens as usize];
        [bytes(shown), vec![done(FinishReason::Length)]].concat()
    });
    let server = Server::start(backend).await;
    for max_tokens in 1..=text.len() {
        let body = chat(json!({"max_tokens": max_tokens}));
        let whole = server.post("/v1/chat/completions", &body).await.ok();
        let content = whole["choices"][0]["message"]["content"].as_str().unwrap();
        let complete = (0..=max_tokens)
            .rev()
            .find(|&n| text.is_char_boundary(n))
            .unwrap();
        assert_eq!(content, &text[..complete]);
        let body = chat(json!({"max_tokens": max_tokens, "stream": true}));
        let events = server.events("/v1/chat/completions", &body).await;
        assert!(!events.concat().contains('\u{FFFD}'));
        assert_eq!(joined(&chunks(&events), 0, "content"), content);
    }
}

/// vllm#10852: `n` samples are all the same, or have the wrong index.
#[tokio::test]
async fn p03_n_choices_differ_and_the_prompt_counts_once() {
    let backend = Scripted::new(vec![tiny()], |request| {
        let word = format!("animal {}", request.sampling.seed);
        [
            bytes(word),
            vec![done(if request.sampling.seed == 9 {
                FinishReason::Length
            } else {
                FinishReason::Stop
            })],
        ]
        .concat()
    });
    let server = Server::start(backend.clone()).await;
    let body = chat(json!({"n": 4, "seed": 7, "temperature": 1.3, "max_tokens": 10}));
    let whole = server.post("/v1/chat/completions", &body).await.ok();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    for (i, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], i);
        assert_eq!(choice["message"]["content"], format!("animal {}", 7 + i));
        assert_eq!(
            choice["finish_reason"],
            if i == 2 { "length" } else { "stop" }
        );
    }
    let prompt = backend.last().prompt.len();
    let completion: usize = (7..11).map(|seed| format!("animal {seed}").len()).sum();
    assert_eq!(whole["usage"]["prompt_tokens"], prompt);
    assert_eq!(whole["usage"]["completion_tokens"], completion);
    assert_eq!(whole["usage"]["total_tokens"], prompt + completion);

    let body =
        chat(json!({"n": 4, "seed": 7, "stream": true, "stream_options": {"include_usage": true}}));
    let streamed = chunks(&server.events("/v1/chat/completions", &body).await);
    for (i, choice) in choices.iter().enumerate() {
        assert_eq!(
            joined(&streamed, i as u64, "content"),
            choice["message"]["content"].as_str().unwrap()
        );
    }
    assert_eq!(streamed.last().unwrap()["usage"], whole["usage"]);
    let ids: Vec<&Value> = streamed.iter().map(|chunk| &chunk["id"]).collect();
    assert!(ids.iter().all(|id| *id == ids[0]));
}

#[tokio::test]
async fn p03_without_a_seed_each_call_draws_its_own() {
    let backend = says("x");
    let server = Server::start(backend.clone()).await;
    for _ in 0..8 {
        server
            .post("/v1/chat/completions", &chat(json!({})))
            .await
            .ok();
    }
    let seeds: std::collections::BTreeSet<u64> = backend
        .submitted
        .lock()
        .unwrap()
        .iter()
        .map(|request| request.sampling.seed)
        .collect();
    assert_eq!(seeds.len(), 8);
}

/// vllm#36379, litellm#25410: usage that nobody asked for, or with choices.
#[tokio::test]
async fn p07_usage_comes_once_at_the_end_and_only_if_asked() {
    let server = Server::start(says("abc")).await;
    for options in [json!(null), json!({}), json!({"include_usage": false})] {
        let body = chat(json!({"stream": true, "stream_options": options}));
        for chunk in chunks(&server.events("/v1/chat/completions", &body).await) {
            assert_eq!(chunk.get("usage"), None, "{chunk}");
            assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
        }
    }
    for (path, body) in [
        ("/v1/chat/completions", chat(json!({}))),
        ("/v1/completions", json!({"model": "tiny", "prompt": "x"})),
    ] {
        let mut body = body;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let chunks = chunks(&server.events(path, &body).await);
        let (last, others) = chunks.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 3);
        assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        assert!(others.iter().all(|chunk| chunk["usage"].is_null()));
    }
    let reply = server
        .post("/v1/chat/completions", &chat(json!({"stream_options": {}})))
        .await;
    reply.error(400, Some("stream_options"));
    let reply = server
        .post(
            "/v1/chat/completions",
            &chat(json!({"stream": true, "stream_options": {"include_usage": 1}})),
        )
        .await;
    reply.error(400, Some("stream_options.include_usage"));
}

#[tokio::test]
async fn cached_tokens_come_from_the_worker() {
    let usage = denizen_frontend::route::Usage {
        prompt: 0,
        completion: 0,
        cached: 5,
    };
    let backend = Scripted::new(vec![tiny()], move |_| {
        let event = denizen_frontend::route::Event::Done {
            reason: FinishReason::Stop,
            usage,
            prompt_logprobs: Vec::new(),
            asr: None,
        };
        [bytes("x"), vec![Step::Event(event)]].concat()
    });
    let server = Server::start(backend).await;
    let whole = server
        .post("/v1/chat/completions", &chat(json!({"n": 3})))
        .await
        .ok();
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
}

#[tokio::test]
async fn a_failure_in_mid_stream_is_an_event_and_the_end() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes("partial"), vec![failed("worker_died", true)]].concat()
    });
    let server = Server::start(backend.clone()).await;
    let events = server
        .events(
            "/v1/chat/completions",
            &chat(json!({"stream": true, "n": 2})),
        )
        .await;
    let (last, before) = events.split_last().unwrap();
    let error: Value = serde_json::from_str(last).unwrap();
    assert_eq!(
        error,
        json!({"error": {"message": "the worker died", "type": "server_error", "param": null, "code": "worker_died"}})
    );
    assert!(before
        .iter()
        .all(|event| !event.contains("error") && event != "[DONE]"));
    // The other choice does not run on for nobody.
    crate::support::eventually("all sequences are gone", || backend.live() == 0).await;

    let reply = server.post("/v1/chat/completions", &chat(json!({}))).await;
    assert!(reply.error(503, None).contains("the worker died"));
    assert_eq!(reply.header("retry-after"), Some("1"));
    let backend = Scripted::new(vec![tiny()], |_| vec![failed("internal_error", false)]);
    let server = Server::start(backend).await;
    server
        .post("/v1/chat/completions", &chat(json!({})))
        .await
        .error(500, None);
}

#[tokio::test]
async fn a_sequence_that_ends_without_a_result_is_an_error_not_a_hang() {
    let backend = Scripted::new(vec![tiny()], |_| bytes("ab"));
    let server = Server::start(backend).await;
    let reply = server.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.code(), "internal_error");
}

#[tokio::test]
async fn an_aborted_sequence_is_an_error_not_an_answer() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes("ab"), vec![done(FinishReason::Abort)]].concat()
    });
    let server = Server::start(backend).await;
    let reply = server.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!((reply.status, reply.code()), (503, json!("aborted")));
}

/// dynamo#13821: text withheld to the end.
#[tokio::test]
async fn each_token_is_sent_when_it_comes() {
    let backend = Scripted::new(vec![tiny()], |_| {
        let gated = b"abcdef"
            .iter()
            .flat_map(|&byte| [Step::Gate, token(byte.into())]);
        gated.chain([done(FinishReason::Stop)]).collect()
    });
    let server = Server::start(backend.clone()).await;
    let mut stream = server
        .stream("/v1/chat/completions", &chat(json!({"stream": true})))
        .await;
    assert!(stream
        .next()
        .await
        .unwrap()
        .contains("\"role\":\"assistant\""));
    for letter in ["a", "b", "c", "d", "e", "f"] {
        backend.gate.add_permits(1);
        let chunk: Value = serde_json::from_str(&stream.next().await.unwrap()).unwrap();
        assert_eq!(chunk["choices"][0]["delta"]["content"], letter);
    }
}

#[tokio::test]
async fn special_tokens_never_show() {
    let backend = Scripted::new(vec![tiny()], |_| {
        vec![
            token(tiny_id("<|im_start|>")),
            token(65),
            token(tiny_id("<unused>")),
            token(299),
            done(FinishReason::Stop),
        ]
    });
    let server = Server::start(backend).await;
    let whole = server
        .post("/v1/chat/completions", &chat(json!({})))
        .await
        .ok();
    assert_eq!(whole["choices"][0]["message"]["content"], "A");
}

#[tokio::test]
async fn min_tokens_holds_for_stop_strings_too() {
    let server = Server::start(says("xxSTOPyySTOPzz")).await;
    let body = chat(json!({"stop": "STOP", "min_tokens": 8, "max_tokens": 50}));
    let whole = server.post("/v1/chat/completions", &body).await.ok();
    assert_eq!(whole["choices"][0]["message"]["content"], "xxSTOPyy");
}
