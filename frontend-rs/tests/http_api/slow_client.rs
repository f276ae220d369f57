//! A client that does not read (smg#2097, opencode#19493: the whole response piles up in memory).

use std::time::Duration;

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::FinishReason;
use serde_json::{json, Value};

use crate::support::client::{send, Stream};
use crate::support::models::{entry, tiny_folder};
use crate::support::{bytes, done, eventually, tiny, Scripted, Server, Step};

#[tokio::test]
async fn a_client_that_does_not_read_is_given_up_and_told_so() {
    // Some 16 MB of events: more than the socket's buffers and the server's bound together.
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes([b'x'; 80_000]), vec![done(FinishReason::Stop)]].concat()
    });
    let config = HttpConfig {
        max_buffered: 64 << 10,
        slow_client_timeout: Duration::from_millis(300),
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend.clone()).await;
    let body = json!({"model": "tiny", "prompt": "x", "stream": true, "max_tokens": 4000});
    let socket = send(server.address, "/v1/completions", &body).await;
    eventually("the sequence runs", || backend.live() == 1).await;
    eventually("the sequence is dropped", || backend.live() == 0).await;
    let metrics = server.get("/metrics").await;
    assert!(
        metrics
            .text()
            .contains("denizen_http_aborted_total{reason=\"slow_client\"} 1"),
        "{}",
        metrics.text()
    );
    assert!(metrics.text().contains("denizen_http_in_flight 0"));

    let events = Stream::on(socket).await.rest().await;
    assert!(events.len() < 80_000, "not all was sent");
    let error: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "slow_client");
}

#[tokio::test]
async fn a_client_that_reads_gets_more_than_the_bound() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes([b'x'; 20_000]), vec![done(FinishReason::Stop)]].concat()
    });
    let config = HttpConfig {
        max_buffered: 1,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend).await;
    let body = json!({"model": "tiny", "prompt": "x", "stream": true, "max_tokens": 4000});
    let events = server.events("/v1/completions", &body).await;
    let text = crate::support::client::joined(&crate::support::client::chunks(&events), 0, "text");
    assert_eq!(text.len(), 20_000);
}

/// What `echo` repeats is bounded like what is generated.
#[tokio::test]
async fn a_client_that_does_not_read_what_it_sent_is_given_up() {
    let folder = tiny_folder();
    folder.write_json(
        "config.json",
        &json!({"vocab_size": 300, "max_position_embeddings": 100_000}),
    );
    let backend = Scripted::new(vec![entry("long", &folder)], |_| vec![Step::Hang]);
    let config = HttpConfig {
        max_buffered: 64 << 10,
        slow_client_timeout: Duration::from_millis(300),
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend.clone()).await;
    // 256 times 60 kB, where the bound and both sockets take a few MB.
    let prompts = ["x".repeat(60_000), "y".repeat(60_000)];
    let body = json!({"model": "long", "prompt": prompts, "n": 128, "stream": true, "echo": true, "max_tokens": 1});
    let _unread = send(server.address, "/v1/completions", &body).await;
    eventually("the sequences run", || backend.submissions() == 256).await;
    eventually("the sequences are dropped", || backend.live() == 0).await;
}

#[tokio::test]
async fn echo_repeats_no_more_than_a_request_may_hold() {
    let backend = Scripted::new(vec![tiny()], |_| vec![done(FinishReason::Stop)]);
    let config = HttpConfig {
        max_body: 10_000,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend).await;
    let echo = |n: usize| json!({"model": "tiny", "prompt": "x".repeat(1000), "n": n, "echo": true, "max_tokens": 1});
    server.post("/v1/completions", &echo(10)).await.ok();
    let refused = server.post("/v1/completions", &echo(11)).await;
    assert!(refused.error(400, Some("echo")).contains("lower 'n'"));
}
