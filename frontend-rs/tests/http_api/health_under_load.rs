//! Long prompts do not starve the HTTP runtime (vllm#46051, sglang#29813).

use denizen_frontend::http::HttpConfig;
use serde_json::json;

use crate::support::client::send;
use crate::support::{qwen, Scripted, Server, Step};

async fn waiting(server: &Server) -> usize {
    let metrics = server.get("/metrics").await;
    let line = metrics
        .text()
        .lines()
        .find(|line| line.starts_with("denizen_http_text_waiting "))
        .unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// The test's one thread runs both the server and its clients: whatever blocks it stops everything.
#[tokio::test(flavor = "current_thread")]
async fn health_answers_while_64_long_prompts_are_tokenized() {
    let backend = Scripted::new(vec![qwen()], |_| vec![Step::Hang]);
    let config = HttpConfig {
        text_threads: 2,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend.clone()).await;
    // About 32,000 tokens; all different, so that no cache helps.
    let prompt = |i: usize| {
        (0..8000)
            .map(|word| format!("w{} and ", word * 64 + i))
            .collect::<String>()
    };
    let first = server
        .post("/tokenize", &json!({"model": "qwen", "prompt": prompt(0)}))
        .await
        .ok();
    assert!(
        first["count"].as_u64().unwrap() >= 32_000,
        "{}",
        first["count"]
    );

    let mut sockets = Vec::new();
    for i in 0..64 {
        let body = json!({"model": "qwen", "prompt": prompt(i), "stream": true, "max_tokens": 1});
        sockets.push(send(server.address, "/v1/completions", &body).await);
    }
    while waiting(&server).await < 32 {
        assert!(
            backend.submissions() < 32,
            "tokenization is quicker than the clients"
        );
    }
    // Were a prompt tokenized on the runtime, each of these would wait for at least one of them.
    for _ in 0..200 {
        assert_eq!(server.get("/health").await.status, 200);
    }
    assert!(
        waiting(&server).await > 0,
        "200 probes were answered before 64 prompts were tokenized"
    );

    // Nor does a short prompt queue behind the long ones.
    let short = json!({"model": "qwen", "prompt": "hi", "max_tokens": 1});
    sockets.push(send(server.address, "/v1/completions", &short).await);
    while !backend
        .submitted
        .lock()
        .unwrap()
        .iter()
        .any(|request| request.prompt.len() < 10)
    {
        tokio::task::yield_now().await;
    }
    assert!(
        waiting(&server).await > 0,
        "the short prompt came through before the long ones were done"
    );
}
