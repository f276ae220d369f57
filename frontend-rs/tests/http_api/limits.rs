//! Limits: body size, requests in flight, time.

use std::time::Duration;

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::FinishReason;
use serde_json::{json, Value};

use crate::errors::{good, GET, POST};
use crate::support::client::{request, send, Stream};
use crate::support::{bytes, done, eventually, tiny, Scripted, Server, Step};

const LIMIT: usize = 10_000;

fn padded(route: &str, length: usize) -> Vec<u8> {
    let mut body = good(route).to_string();
    assert!(body.len() <= length);
    // White space in front of JSON is allowed, and counts.
    body.insert_str(0, &" ".repeat(length - body.len()));
    body.into_bytes()
}

/// TGI#1802, sglang#6622: a limit that some route does not know, or an answer that is no JSON.
#[tokio::test]
async fn the_body_limit_holds_to_the_byte_on_every_route() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes("ok"), vec![done(FinishReason::Stop)]].concat()
    });
    let server = Server::with(
        HttpConfig {
            max_body: LIMIT,
            ..HttpConfig::default()
        },
        backend,
    )
    .await;
    for route in POST {
        assert_eq!(
            server
                .post_bytes(route, &padded(route, LIMIT - 1))
                .await
                .status,
            200
        );
        assert_eq!(
            server.post_bytes(route, &padded(route, LIMIT)).await.status,
            200
        );
        for body in [padded(route, LIMIT + 1), padded(route, 3 * LIMIT)] {
            let reply = server.post_bytes(route, &body).await;
            assert!(reply.error(413, None).contains("10000 bytes"));
            assert_eq!(reply.code(), "request_too_large");
        }
        // Without a length in front, in chunks.
        for (length, status) in [(LIMIT, 200), (LIMIT + 1, 413)] {
            let body = padded(route, length);
            let (a, b) = body.split_at(length / 2);
            let mut chunked = Vec::new();
            for chunk in [a, b, b""] {
                chunked.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
                chunked.extend(chunk);
                chunked.extend(b"\r\n");
            }
            let headers = [
                ("content-type", "application/json"),
                ("transfer-encoding", "chunked"),
            ];
            let reply = request(server.address, "POST", route, &headers, &chunked).await;
            assert_eq!(reply.status, status);
        }
    }
    for (method, route) in GET
        .map(|route| ("GET", route))
        .into_iter()
        .chain([("POST", "/nowhere")])
    {
        let reply = request(server.address, method, route, &[], &vec![b' '; LIMIT + 1]).await;
        reply.error(413, None);
    }
}

fn chat(stream: bool) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": stream})
}

#[tokio::test]
async fn more_requests_than_the_limit_get_429_and_places_come_back() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [
            vec![Step::Gate],
            bytes("ok"),
            vec![done(FinishReason::Stop)],
        ]
        .concat()
    });
    let server = Server::with(
        HttpConfig {
            max_in_flight: 2,
            ..HttpConfig::default()
        },
        backend.clone(),
    )
    .await;
    for _ in 0..3 {
        let stream = server.stream(POST[0], &chat(true)).await;
        let waiting = send(server.address, POST[0], &chat(false)).await;
        eventually("both are in flight", || backend.live() == 2).await;
        for route in POST {
            let reply = server.post(route, &good(route)).await;
            let message = reply.error(429, None);
            assert!(
                message.contains("2 requests are in flight already"),
                "{message}"
            );
            assert_eq!(reply.header("retry-after"), Some("1"));
            assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
        }
        // What is no work for a worker is answered all the same.
        for route in GET {
            assert_eq!(server.get(route).await.status, 200);
        }
        backend.gate.add_permits(2);
        assert_eq!(stream.rest().await.last().unwrap(), "[DONE]");
        drop(waiting);
        eventually("both are gone", || backend.live() == 0).await;
        let mut free = false;
        for _ in 0..5000 {
            let metrics = server.get("/metrics").await;
            free = metrics
                .text()
                .lines()
                .any(|line| line == "denizen_http_in_flight 0");
            if free {
                break;
            }
        }
        assert!(free, "the places have come back");
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_ended() {
    let backend = Scripted::new(vec![tiny()], |_| [bytes("ab"), vec![Step::Hang]].concat());
    let config = HttpConfig {
        request_timeout: Duration::from_millis(300),
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend.clone()).await;
    let reply = server.post(POST[0], &chat(false)).await;
    reply.error(504, None);
    assert_eq!(reply.code(), "timeout");
    eventually("the sequence is gone", || backend.live() == 0).await;

    let events = server.events(POST[0], &chat(true)).await;
    let error: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "timeout");
    assert!(!events.contains(&"[DONE]".to_owned()));
    eventually("the sequence is gone", || backend.live() == 0).await;
    assert_eq!(backend.aborted(), 2);
}

#[tokio::test]
async fn a_body_that_never_comes_is_not_waited_for() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let backend = Scripted::new(vec![tiny()], |_| vec![]);
    let config = HttpConfig {
        request_timeout: Duration::from_millis(300),
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend).await;
    let mut socket = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 500\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    socket.read_to_end(&mut reply).await.unwrap();
    let reply = String::from_utf8(reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    assert!(reply.contains("\"code\":\"body_timeout\""), "{reply}");
}

#[tokio::test]
async fn a_stream_that_ended_is_not_counted_as_given_up() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes("abc"), vec![done(FinishReason::Stop)]].concat()
    });
    let server = Server::start(backend.clone()).await;
    for _ in 0..50 {
        assert_eq!(
            server.events(POST[0], &chat(true)).await.last().unwrap(),
            "[DONE]"
        );
    }
    loop {
        let metrics = server.get("/metrics").await;
        if metrics
            .text()
            .lines()
            .any(|line| line == "denizen_http_in_flight 0")
        {
            assert!(
                !metrics.text().contains("denizen_http_aborted_total{"),
                "{}",
                metrics.text()
            );
            break;
        }
    }
}

#[tokio::test]
async fn a_stream_ends_properly_even_if_its_last_bytes_are_read_late() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes("abc"), vec![done(FinishReason::Stop)]].concat()
    });
    let server = Server::start(backend.clone()).await;
    let socket = send(server.address, POST[0], &chat(true)).await;
    eventually("the worker is done", || {
        backend.submissions() == 1 && backend.live() == 0
    })
    .await;
    assert_eq!(
        Stream::on(socket).await.rest().await.last().unwrap(),
        "[DONE]"
    );
}
