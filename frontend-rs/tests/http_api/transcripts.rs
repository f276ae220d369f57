//! What goes over the wire, byte for byte but for ids and times. `DENIZEN_BLESS=1` writes the files anew.

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::{Event, FinishReason, Usage};
use serde_json::{json, Value};

use crate::support::backend::{failed, token_with};
use crate::support::client::Reply;
use crate::support::{bytes, models, tiny, Scripted, Server, Step};

fn done(cached: u32) -> Step {
    let usage = Usage {
        prompt: 0,
        completion: 0,
        cached,
    };
    Step::Event(Event::Done {
        reason: FinishReason::Stop,
        usage,
        prompt_logprobs: Vec::new(),
        asr: None,
    })
}

/// Replaces what differs from run to run.
fn steady(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = ["chatcmpl-", "cmpl-", "\"created\":", "req_"]
        .iter()
        .filter_map(|mark| rest.find(mark).map(|at| at + mark.len()))
        .min()
    {
        out.push_str(&rest[..at]);
        out.push('*');
        rest = rest[at..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    out + rest
}

fn show(reply: &Reply) -> String {
    let headers: Vec<String> = reply
        .headers
        .iter()
        .filter(|(name, _)| !["date", "content-length"].contains(&name.as_str()))
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect();
    format!(
        "{}\n{}\n{}",
        reply.status,
        headers.concat(),
        String::from_utf8_lossy(&reply.body)
    )
}

#[track_caller]
fn check(name: &str, request: &Value, transcript: &str) {
    let text = format!("{request}\n\n{}\n", steady(transcript).trim_end());
    let path = models::golden().join("../http").join(format!("{name}.txt"));
    if std::env::var_os("DENIZEN_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{} differs", path.display());
}

async fn both(name: &str, path: &str, body: Value, steps: Vec<Step>) {
    let server = Server::start(Scripted::new(vec![tiny()], move |_| steps.clone())).await;
    check(
        &format!("{name}.whole"),
        &body,
        &show(&server.post(path, &body).await),
    );
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let mut stream = server.stream(path, &streamed).await;
    let mut text = show(&stream.head);
    while let Some(event) = stream.next().await {
        text.push_str(&format!("data: {event}\n\n"));
    }
    check(&format!("{name}.stream"), &streamed, &text);
}

fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn chat_completions_look_like_this() {
    both(
        "chat",
        "/v1/chat/completions",
        chat(json!({})),
        [bytes("Hé!"), vec![done(4)]].concat(),
    )
    .await;
}

#[tokio::test]
async fn chat_completions_with_reasoning_look_like_this() {
    let body = chat(json!({"chat_template_kwargs": {"enable_thinking": true}}));
    both(
        "reasoning",
        "/v1/chat/completions",
        body,
        [bytes("a\n</think>\n\nb"), vec![done(0)]].concat(),
    )
    .await;
}

#[tokio::test]
async fn chat_completions_with_logprobs_look_like_this() {
    let body = chat(json!({"logprobs": true, "top_logprobs": 1}));
    let steps = vec![
        token_with(65, -0.5, &[(66, -0.25)]),
        token_with(67, -1.5, &[(67, -1.5)]),
        done(0),
    ];
    both("chat_logprobs", "/v1/chat/completions", body, steps).await;
}

#[tokio::test]
async fn completions_look_like_this() {
    let body = json!({"model": "tiny", "prompt": "ab", "logprobs": 1, "stop": "!"});
    let steps = vec![
        token_with(65, -0.5, &[(66, -0.25)]),
        token_with(33, -1.5, &[]),
        token_with(67, 0.0, &[]),
    ];
    both("completion", "/v1/completions", body, steps).await;
}

#[tokio::test]
async fn a_stream_with_usage_looks_like_this() {
    let server = Server::start(Scripted::new(vec![tiny()], |_| {
        [bytes("ok"), vec![done(3)]].concat()
    }))
    .await;
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = server.events("/v1/chat/completions", &body).await;
    check("usage.stream", &body, &events.join("\n"));
}

#[tokio::test]
async fn a_failure_looks_like_this() {
    let steps = [bytes("a"), vec![failed("worker_died", true)]].concat();
    both("failure", "/v1/chat/completions", chat(json!({})), steps).await;
}

#[tokio::test]
async fn errors_look_like_this() {
    let config = HttpConfig {
        api_key: Some("k".into()),
        max_body: 100,
        ..HttpConfig::default()
    };
    let locked = Server::with(config, Scripted::new(vec![tiny()], |_| vec![])).await;
    let open = Server::start(Scripted::new(vec![tiny()], |_| vec![])).await;
    let cases = [
        (
            "unauthorized",
            locked.post("/v1/completions", &json!({})).await,
        ),
        (
            "unknown_model",
            open.post("/v1/completions", &json!({"model": "x", "prompt": "a"}))
                .await,
        ),
        (
            "bad_parameter",
            open.post(
                "/v1/completions",
                &json!({"model": "tiny", "prompt": "a", "top_p": 2}),
            )
            .await,
        ),
        (
            "unknown_parameter",
            open.post(
                "/v1/completions",
                &json!({"model": "tiny", "prompt": "a", "topp": 2}),
            )
            .await,
        ),
        (
            "too_long",
            open.post(
                "/v1/completions",
                &json!({"model": "tiny", "prompt": "a", "max_tokens": 5000}),
            )
            .await,
        ),
        (
            "prompt_too_long",
            open.post(
                "/v1/completions",
                &json!({"model": "tiny", "prompt": "a".repeat(4096)}),
            )
            .await,
        ),
        ("wrong_method", open.get("/v1/completions").await),
        ("unknown_route", open.get("/v2").await),
        ("models", open.get("/v1/models").await),
    ];
    let text: String = cases
        .iter()
        .map(|(name, reply)| format!("# {name}\n{}\n\n", show(reply)))
        .collect();
    check("errors", &json!(null), &text);
}
