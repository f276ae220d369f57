//! A client that does not read (smg#2097, opencode#19493: the whole response piles up in memory).

use std::time::Duration;

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::FinishReason;
use serde_json::{json, Value};

use crate::support::client::{send, Stream};
use crate::support::{bytes, done, eventually, tiny, Scripted, Server};

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
