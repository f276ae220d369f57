//! Every parameter: its default, its range, and what is said outside it.

use denizen_frontend::route::{FinishReason, Sampling};
use serde_json::{json, Value};

use crate::support::models::{entry, tiny_folder};
use crate::support::{bytes, done, smol, tiny, Scripted, Server};

const ROUTES: [&str; 2] = ["/v1/chat/completions", "/v1/completions"];

fn body(route: &str, extra: &Value) -> Value {
    let mut body = json!({"model": "tiny"});
    if route.contains("chat") {
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
    } else {
        body["prompt"] = json!("hi");
    }
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    body
}

async fn server() -> (std::sync::Arc<Scripted>, Server) {
    let backend = Scripted::new(vec![tiny(), smol()], |_| {
        [bytes("ok"), vec![done(FinishReason::Stop)]].concat()
    });
    (backend.clone(), Server::start(backend).await)
}

#[tokio::test]
async fn values_outside_their_range_or_type_are_named() {
    let (backend, server) = server().await;
    for (extra, param) in [
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": true}), "temperature"),
        (json!({"top_p": 1.1}), "top_p"),
        (json!({"top_p": -1}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"top_k": 1.5}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"repetition_penalty": -1}), "repetition_penalty"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": -3}), "frequency_penalty"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"seed": "x"}), "seed"),
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"n": "2"}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": "5"}), "max_tokens"),
        (json!({"max_tokens": 1e30}), "max_tokens"),
        (
            json!({"max_tokens": 5, "max_completion_tokens": 6}),
            "max_completion_tokens",
        ),
        (json!({"min_tokens": -1}), "min_tokens"),
        (json!({"min_tokens": 6, "max_tokens": 5}), "min_tokens"),
        (json!({"stop": 5}), "stop"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": [5]}), "stop[0]"),
        (json!({"stop": ["x", ""]}), "stop"),
        (json!({"stop": vec!["x"; 17]}), "stop"),
        (json!({"stop": "x".repeat(1025)}), "stop"),
        (json!({"stop_token_ids": [300]}), "stop_token_ids[0]"),
        (json!({"stop_token_ids": 3}), "stop_token_ids"),
        (json!({"stop_token_ids": vec![3; 1025]}), "stop_token_ids"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"ignore_eos": 1}), "ignore_eos"),
        (
            json!({"stream": true, "stream_options": []}),
            "stream_options",
        ),
        (
            json!({"stream": true, "stream_options": {"usage": true}}),
            "stream_options.usage",
        ),
        (json!({"use_beam_search": true}), "use_beam_search"),
        (json!({"guided_json": {}}), "guided_json"),
        (
            json!({"response_format": {"type": "json_schema"}}),
            "response_format",
        ),
        (json!({"temprature": 1}), "temprature"),
        (json!({"model": 5}), "model"),
        (json!({"model": null}), "model"),
    ] {
        for route in ROUTES {
            server
                .post(route, &body(route, &extra))
                .await
                .error(400, Some(param));
        }
    }
    assert_eq!(backend.submissions(), 0);
}

#[tokio::test]
async fn features_that_would_change_the_result_are_refused_by_name() {
    let (_, server) = server().await;
    for (route, extra, param) in [
        (
            ROUTES[0],
            json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
            "tools",
        ),
        (ROUTES[0], json!({"tool_choice": "required"}), "tool_choice"),
        (ROUTES[0], json!({"functions": [{}]}), "functions"),
        (
            ROUTES[0],
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (ROUTES[0], json!({"audio": {"voice": "x"}}), "audio"),
        (
            ROUTES[0],
            json!({"modalities": ["text", "audio"]}),
            "modalities",
        ),
        (
            ROUTES[0],
            json!({"continue_final_message": true}),
            "continue_final_message",
        ),
        (ROUTES[0], json!({"top_logprobs": 2}), "top_logprobs"),
        (ROUTES[0], json!({"logprobs": 2}), "logprobs"),
        (
            ROUTES[0],
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (ROUTES[1], json!({"suffix": "end"}), "suffix"),
        (ROUTES[1], json!({"best_of": 2}), "best_of"),
        (ROUTES[1], json!({"logprobs": true}), "logprobs"),
        (
            ROUTES[1],
            json!({"echo": true, "logprobs": 1, "stream": true}),
            "echo",
        ),
    ] {
        server
            .post(route, &body(route, &extra))
            .await
            .error(400, Some(param));
    }
}

#[tokio::test]
async fn what_clients_send_without_meaning_anything_is_accepted() {
    let (_, server) = server().await;
    let extra = json!({
        "user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "safety_identifier": "s",
        "prompt_cache_key": "k", "parallel_tool_calls": true, "request_id": "r", "use_beam_search": false,
        "include_stop_str_in_output": false, "skip_special_tokens": true, "response_format": {"type": "text"},
        "logit_bias": {}, "stop": [], "guided_json": null, "anything": null, "stop_token_ids": null, "echo": false,
    });
    for route in ROUTES {
        server.post(route, &body(route, &extra)).await.ok();
    }
    let chat =
        json!({"tools": [], "tool_choice": "auto", "modalities": ["text"], "functions": null});
    server.post(ROUTES[0], &body(ROUTES[0], &chat)).await.ok();
    server
        .post(
            ROUTES[1],
            &body(ROUTES[1], &json!({"best_of": 1, "suffix": ""})),
        )
        .await
        .ok();
}

/// vllm#16529, #5963: one bad `logit_bias` killed the engine for everyone.
#[tokio::test]
async fn p04_logit_bias_outside_the_vocabulary_is_refused() {
    let (backend, server) = server().await;
    let many: Value = (0..1025)
        .map(|i| (i.to_string(), json!(1)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    for bias in [
        json!({"99999999": 5}),
        json!({"300": 5}),
        json!({"-1": 5}),
        json!({"1.5": 5}),
        json!({"99999999999999999999": 5}),
        json!({"abc": 1}),
        json!({"": 1}),
        json!({"12": 1000}),
        json!({"12": "x"}),
        json!({"12": null}),
        json!([[12, 1]]),
        json!("x"),
        many,
    ] {
        for route in ROUTES {
            server
                .post(route, &body(route, &json!({"logit_bias": bias})))
                .await
                .error(400, Some("logit_bias"));
        }
    }
    server
        .post(
            ROUTES[0],
            &body(ROUTES[0], &json!({"logit_bias": {"299": -100, "12": 2.5}})),
        )
        .await
        .ok();
    assert_eq!(
        backend.last().sampling.logit_bias,
        [(12, 2.5), (299, -100.0)]
    );
}

/// vllm#33418, #4667: a nonsense number in the message, or the wrong field blamed.
#[tokio::test]
async fn p05_too_long_a_prompt_and_too_many_output_tokens_are_told_apart() {
    let (backend, server) = server().await;
    let long = "a ".repeat(400_000);
    for (route, param) in [(ROUTES[0], "messages"), (ROUTES[1], "prompt")] {
        let mut request = body(route, &json!({"model": "smol"}));
        if route.contains("chat") {
            request["messages"][0]["content"] = json!(long);
        } else {
            request["prompt"] = json!(long);
        }
        let reply = server.post(route, &request).await;
        let message = reply.error(400, Some(param));
        assert_eq!(reply.code(), "context_length_exceeded");
        assert!(
            message.contains("maximum context length is 8192 tokens"),
            "{message}"
        );
        assert!(message.contains("the prompt alone has 4"), "{message}");
        request["max_tokens"] = json!(77);
        assert!(server
            .post(route, &request)
            .await
            .error(400, Some(param))
            .contains("asks for 77 output tokens"));

        for field in ["max_tokens", "max_completion_tokens"] {
            let mut request = body(route, &json!({}));
            request[field] = json!(2_000_000_000u64);
            let reply = server.post(route, &request).await;
            let message = reply.error(400, Some(field));
            assert_eq!(reply.code(), "context_length_exceeded");
            let prompt: usize = if route.contains("chat") {
                let ids = server
                    .post("/tokenize", &body(ROUTES[0], &json!({})))
                    .await
                    .ok();
                ids["count"].as_u64().unwrap() as usize
            } else {
                2
            };
            assert!(
                message.contains("maximum context length is 4096 tokens"),
                "{message}"
            );
            assert!(
                message.contains(&format!("the prompt has {prompt} tokens")),
                "{message}"
            );
            assert!(
                message.contains("asks for 2000000000 output tokens"),
                "{message}"
            );
            assert!(
                message.contains(&format!("{} in total", 2_000_000_000 + prompt)),
                "{message}"
            );
            assert!(
                message.contains(&format!("at most {}", 4096 - prompt)),
                "{message}"
            );
            request[field] = json!(u64::MAX);
            server.post(route, &request).await.error(400, Some(field));
            request[field] = json!(4096 - prompt);
            server.post(route, &request).await.ok();
            assert_eq!(backend.last().max_tokens as usize, 4096 - prompt);
        }
    }
}

/// term-llm#277, llm-on-ray#139: an explicit zero treated as "unset".
#[tokio::test]
async fn p13_zero_temperature_and_zero_top_p_are_greedy() {
    let (backend, server) = server().await;
    for extra in [
        json!({"temperature": 0, "top_k": 50}),
        json!({"temperature": 1, "top_p": 0}),
        json!({"top_p": 0.0}),
    ] {
        for route in ROUTES {
            server.post(route, &body(route, &extra)).await.ok();
            let sampling = backend.last().sampling;
            assert_eq!(sampling.temperature, 0.0, "{extra}");
            assert!(sampling.top_p > 0.0);
        }
    }
}

#[tokio::test]
async fn every_sampling_parameter_reaches_the_worker() {
    let (backend, server) = server().await;
    let extra = json!({
        "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "repetition_penalty": 1.5,
        "presence_penalty": 1, "frequency_penalty": -0.5, "seed": -3, "logit_bias": {"5": 1}, "max_tokens": 9,
        "min_tokens": 2,
    });
    for route in ROUTES {
        server.post(route, &body(route, &extra)).await.ok();
        let sent = backend.last();
        let expected = Sampling {
            temperature: 0.5,
            top_k: 7,
            top_p: 0.25,
            min_p: 0.125,
            repetition_penalty: 1.5,
            presence_penalty: 1.0,
            frequency_penalty: -0.5,
            seed: -3i64 as u64,
            logit_bias: vec![(5, 1.0)],
            logprobs: None,
        };
        assert_eq!(sent.sampling, expected);
        assert_eq!((sent.max_tokens, sent.min_tokens), (9, 2));
    }
}

#[tokio::test]
async fn what_a_request_leaves_out_comes_from_the_checkpoint() {
    let folder = tiny_folder();
    folder.write_json(
        "generation_config.json",
        &json!({"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05, "min_p": 0.01}),
    );
    let backend = Scripted::new(vec![entry("tiny", &folder)], |_| {
        vec![done(FinishReason::Stop)]
    });
    let server = Server::start(backend.clone()).await;
    server
        .post(ROUTES[1], &body(ROUTES[1], &json!({})))
        .await
        .ok();
    let sampling = backend.last().sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_k, sampling.top_p),
        (0.7, 20, 0.8)
    );
    assert_eq!((sampling.repetition_penalty, sampling.min_p), (1.05, 0.01));
    server
        .post(
            ROUTES[1],
            &body(ROUTES[1], &json!({"top_k": -1, "top_p": 1})),
        )
        .await
        .ok();
    let sampling = backend.last().sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_k, sampling.top_p),
        (0.7, 0, 1.0)
    );
    assert_eq!(backend.last().max_tokens, 16);
}
