//! `/v1/completions`, `/tokenize`, `/detokenize`.

use denizen_frontend::route::FinishReason;
use serde_json::{json, Value};

use crate::support::client::{chunks, joined};
use crate::support::{done, qwen, smol, tiny, Scripted, Server};

/// Answers with the prompt's tokens.
async fn parrot() -> (std::sync::Arc<Scripted>, Server) {
    let backend = Scripted::new(vec![tiny(), smol(), qwen()], |request| {
        let tokens = request
            .prompt
            .iter()
            .map(|&id| crate::support::backend::token(id));
        tokens.chain([done(FinishReason::Length)]).collect()
    });
    (backend.clone(), Server::start(backend).await)
}

fn texts(reply: &Value) -> Vec<&str> {
    reply["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_prompt_has_four_forms() {
    let (backend, server) = parrot().await;
    for (prompt, expected) in [
        (json!("ab"), vec!["ab"]),
        (json!(["ab", "c"]), vec!["ab", "c"]),
        (json!([97, 98]), vec!["ab"]),
        (json!([[97], [98, 99]]), vec!["a", "bc"]),
        (json!(["a", [98]]), vec!["a", "b"]),
    ] {
        let reply = server
            .post(
                "/v1/completions",
                &json!({"model": "tiny", "prompt": prompt}),
            )
            .await
            .ok();
        assert_eq!(texts(&reply), expected);
        let tokens: usize = expected.iter().map(|text| text.len()).sum();
        assert_eq!(reply["usage"]["prompt_tokens"], tokens);
        assert_eq!(reply["usage"]["completion_tokens"], tokens);
        assert_eq!(reply["object"], "text_completion");
    }
    assert_eq!(backend.last().max_tokens, 16);
}

#[tokio::test]
async fn prompts_that_cannot_be_used_are_named() {
    let (backend, server) = parrot().await;
    for (prompt, param) in [
        (json!(null), "prompt"),
        (json!(5), "prompt"),
        (json!({}), "prompt"),
        (json!([]), "prompt"),
        (json!(""), "prompt"),
        (json!(["a", ""]), "prompt[1]"),
        (json!([[]]), "prompt[0]"),
        (json!([null]), "prompt[0]"),
        (json!([1, "a"]), "prompt[1]"),
        (json!([1, 300]), "prompt[1]"),
        (json!([-1]), "prompt[0]"),
        (json!([1.5]), "prompt[0]"),
        (json!([[1], [2, 300]]), "prompt[1][1]"),
    ] {
        let body = json!({"model": "tiny", "prompt": prompt});
        server
            .post("/v1/completions", &body)
            .await
            .error(400, Some(param));
    }
    let body = json!({"model": "tiny", "prompt": vec!["a"; 3], "n": 100});
    server
        .post("/v1/completions", &body)
        .await
        .error(400, Some("n"));
    assert_eq!(backend.submissions(), 0);
}

#[tokio::test]
async fn choices_of_several_prompts_are_numbered_through() {
    let (_, server) = parrot().await;
    let body = json!({"model": "tiny", "prompt": ["a", "b"], "n": 2, "stream": true, "echo": true});
    let chunks = chunks(&server.events("/v1/completions", &body).await);
    let texts: Vec<String> = (0..4).map(|index| joined(&chunks, index, "text")).collect();
    assert_eq!(texts, ["aa", "aa", "bb", "bb"]);
    let body = json!({"model": "tiny", "prompt": ["a", "b"], "n": 2, "echo": true});
    let reply = server.post("/v1/completions", &body).await.ok();
    assert_eq!(self::texts(&reply), ["aa", "aa", "bb", "bb"]);
    assert_eq!(reply["usage"]["prompt_tokens"], 2);
}

#[tokio::test]
async fn if_one_prompt_is_refused_none_runs() {
    let backend = Scripted::new(vec![tiny()], |_| vec![crate::support::Step::Hang]);
    let server = Server::start(backend.clone()).await;
    let too_long = "x".repeat(5000);
    let body = json!({"model": "tiny", "prompt": ["a", too_long]});
    server
        .post("/v1/completions", &body)
        .await
        .error(400, Some("prompt[1]"));
    assert_eq!(backend.submissions(), 0);
}

#[tokio::test]
async fn text_becomes_tokens_and_text_again() {
    let (_, server) = parrot().await;
    for model in ["tiny", "smol", "qwen"] {
        for text in ["Hello, world! ", "👩‍👩‍👧‍👦 龘𠮷\n\n", "<|im_start|>user"]
        {
            let body = json!({"model": model, "prompt": text, "return_token_strs": true});
            let reply = server.post("/tokenize", &body).await.ok();
            let tokens = reply["tokens"].as_array().unwrap();
            assert_eq!(reply["count"], tokens.len());
            assert_eq!(reply["token_strs"].as_array().unwrap().len(), tokens.len());
            let back = server
                .post("/detokenize", &json!({"model": model, "tokens": tokens}))
                .await
                .ok();
            assert_eq!(back["prompt"], text);
        }
    }
    let body = json!({"model": "smol", "messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": false});
    let reply = server.post("/tokenize", &body).await.ok();
    assert_eq!(reply["max_model_len"], 8192);
    let back = server
        .post(
            "/detokenize",
            &json!({"model": "smol", "tokens": reply["tokens"]}),
        )
        .await
        .ok();
    assert!(back["prompt"]
        .as_str()
        .unwrap()
        .ends_with("<|im_start|>user\nhi<|im_end|>\n"));

    server
        .post("/tokenize", &json!({"model": "smol"}))
        .await
        .error(400, Some("prompt"));
    server
        .post("/tokenize", &json!({"model": "smol", "prompt": 1}))
        .await
        .error(400, Some("prompt"));
    server
        .post(
            "/tokenize",
            &json!({"model": "smol", "prompt": "a", "x": 1}),
        )
        .await
        .error(400, Some("x"));
    server
        .post("/detokenize", &json!({"model": "tiny"}))
        .await
        .error(400, Some("tokens"));
    server
        .post("/detokenize", &json!({"model": "tiny", "tokens": [1, 300]}))
        .await
        .error(400, Some("tokens[1]"));
    server
        .post("/detokenize", &json!({"model": "tiny", "tokens": "x"}))
        .await
        .error(400, Some("tokens"));
    let empty = server
        .post("/tokenize", &json!({"model": "smol", "prompt": ""}))
        .await
        .ok();
    assert_eq!(empty["count"], 0);
}
