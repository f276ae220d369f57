//! `messages`: what is accepted, what reaches the template, and what is said of the rest.

use denizen_frontend::route::FinishReason;
use serde_json::{json, Value};

use crate::support::{bytes, done, qwen, smol, tiny, Scripted, Server};

async fn server() -> (std::sync::Arc<Scripted>, Server) {
    let backend = Scripted::new(vec![tiny(), smol()], |_| {
        [bytes("ok"), vec![done(FinishReason::Stop)]].concat()
    });
    (backend.clone(), Server::start(backend).await)
}

fn with_messages(messages: Value) -> Value {
    json!({"model": "tiny", "messages": messages, "max_tokens": 5})
}

/// dynamo#2064, letta#3381: empty or odd `messages` give a cryptic 500.
#[tokio::test]
async fn p12_messages_that_are_no_list_of_messages_are_named() {
    let (backend, server) = server().await;
    for (messages, param) in [
        (json!([]), "messages"),
        (json!(null), "messages"),
        (json!(7), "messages"),
        (json!("hi"), "messages"),
        (json!({}), "messages"),
        (json!(["hi"]), "messages[0]"),
        (json!([{}]), "messages[0].role"),
        (json!([{"role": 1, "content": "x"}]), "messages[0].role"),
        (
            json!([{"role": "critic", "content": "x"}]),
            "messages[0].role",
        ),
        (json!([{"role": "user"}]), "messages[0].content"),
        (
            json!([{"role": "user", "content": null}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": 5}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": []}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": ["x"]}]),
            "messages[0].content[0]",
        ),
        (
            json!([{"role": "user", "content": [{"text": "x"}]}]),
            "messages[0].content[0].type",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content[0].text",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": 1}]}]),
            "messages[0].content[0].text",
        ),
        (
            json!([{"role": "user", "content": "x", "name": 7}]),
            "messages[0].name",
        ),
        (
            json!([{"role": "assistant", "tool_calls": 7}]),
            "messages[0].tool_calls",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{}]}]),
            "messages[0].tool_calls[0]",
        ),
        (
            json!([{"role": "user", "content": "x"}, {"role": "system", "content": "late"}]),
            "messages",
        ),
    ] {
        let reply = server
            .post("/v1/chat/completions", &with_messages(messages.clone()))
            .await;
        reply.error(400, Some(param));
        assert_eq!(
            reply.json()["error"]["type"],
            "invalid_request_error",
            "{messages}"
        );
    }
    server
        .post("/v1/chat/completions", &json!({"model": "tiny"}))
        .await
        .error(400, Some("messages"));
    assert_eq!(backend.submissions(), 0);
    server
        .post(
            "/v1/chat/completions",
            &with_messages(json!([{"role": "user", "content": "x"}])),
        )
        .await
        .ok();
}

/// vllm#11629: an image for a text model gives a 500.
#[tokio::test]
async fn p06_a_part_that_is_no_text_is_named() {
    let (_, server) = server().await;
    for part in [
        json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}),
        json!({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
        json!({"type": "file", "file": {"file_id": "x"}}),
        json!({"type": "video_url"}),
    ] {
        let content = json!([{"type": "text", "text": "What is this?"}, part]);
        let reply = server
            .post(
                "/v1/chat/completions",
                &with_messages(json!([{"role": "user", "content": content}])),
            )
            .await;
        let message = reply.error(400, Some("messages[0].content[1]"));
        assert!(message.contains("accepts text only"), "{message}");
    }
}

#[tokio::test]
async fn what_reaches_the_worker_is_the_rendered_template() {
    let (backend, server) = server().await;
    let body = json!({"model": "smol", "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "the capital?"}]},
        {"role": "assistant", "content": null, "refusal": null, "annotations": []},
        {"role": "user", "content": "Well?"},
    ]});
    server.post("/v1/chat/completions", &body).await.ok();
    let sent = backend.last();
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is\nthe capital?<|im_end|>\n\
                    <|im_start|>assistant\n<|im_end|>\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(smol().text.decode(&sent.prompt), expected);
    assert_eq!(sent.stop_ids, [0, 2]);
    assert_eq!(sent.max_tokens, 8192 - sent.prompt.len() as u32);
}

#[tokio::test]
async fn tool_calls_of_earlier_turns_reach_the_template_as_objects() {
    let (backend, server) = server().await;
    let call = json!({"id": "c", "type": "function", "function": {"name": "add", "arguments": "{\"a\": [1, 2]}"}});
    let messages = json!([
        {"role": "user", "content": "1+2"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]);
    server
        .post("/v1/chat/completions", &with_messages(messages))
        .await
        .ok();
    let text = tiny().text.decode(&backend.last().prompt);
    assert!(
        text.contains("<function=add>\n<parameter=a>\n[1, 2]\n</parameter>"),
        "{text}"
    );
    assert!(
        text.contains("<tool_response>\n3\n</tool_response>"),
        "{text}"
    );
}

#[tokio::test]
async fn template_variables_are_passed_on() {
    let (backend, server) = server().await;
    let mut body = with_messages(json!([{"role": "user", "content": "x"}]));
    body["chat_template_kwargs"] = json!({"enable_thinking": true});
    server.post("/v1/chat/completions", &body).await.ok();
    assert!(tiny()
        .text
        .decode(&backend.last().prompt)
        .ends_with("<|im_start|>assistant\n<think>\n"));
    body["chat_template_kwargs"] = json!("on");
    server
        .post("/v1/chat/completions", &body)
        .await
        .error(400, Some("chat_template_kwargs"));
    body["chat_template_kwargs"] = json!(null);
    body["add_generation_prompt"] = json!(false);
    server.post("/v1/chat/completions", &body).await.ok();
    assert!(tiny()
        .text
        .decode(&backend.last().prompt)
        .ends_with("x<|im_end|>\n"));
    body["reasoning_effort"] = json!("low");
    server
        .post("/v1/chat/completions", &body)
        .await
        .error(400, Some("reasoning_effort"));
}

#[tokio::test]
async fn a_model_without_a_template_says_so() {
    let folder = crate::support::models::tiny_folder();
    std::fs::remove_file(folder.0.join("chat_template.jinja")).unwrap();
    let model = crate::support::models::entry("plain", &folder);
    let server = Server::start(Scripted::new(vec![model], |_| vec![])).await;
    let body = json!({"model": "plain", "messages": [{"role": "user", "content": "x"}]});
    let message = server
        .post("/v1/chat/completions", &body)
        .await
        .error(400, Some("messages"));
    assert!(message.contains("/v1/completions"), "{message}");
}

#[tokio::test]
async fn the_family_stops_at_both_of_its_end_ids() {
    let backend = Scripted::new(vec![qwen()], |_| vec![done(FinishReason::Stop)]);
    let server = Server::start(backend.clone()).await;
    let body = json!({"model": "qwen", "messages": [{"role": "user", "content": "x"}]});
    server.post("/v1/chat/completions", &body).await.ok();
    assert_eq!(backend.last().stop_ids, [248044, 248046]);
    let mut body = body;
    body["ignore_eos"] = json!(true);
    server.post("/v1/chat/completions", &body).await.ok();
    assert_eq!(backend.last().stop_ids, [0u32; 0]);
    body["stop_token_ids"] = json!([5]);
    server.post("/v1/chat/completions", &body).await.ok();
    assert_eq!(backend.last().stop_ids, [5]);
}
