//! Connections that ask nothing, or do not read: each takes a file descriptor, of which there are few.

use std::time::Duration;

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::FinishReason;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::client::{send, Stream};
use crate::support::{bytes, done, tiny, Scripted, Server, Step};

/// Half a request's head.
const HALF: &[u8] = b"GET /health HTTP/1.1\r\nhost: te";
const SHORT: Duration = Duration::from_millis(200);
/// A test that fails ends in the end.
const LONG: Duration = Duration::from_secs(60);

async fn server(config: HttpConfig) -> Server {
    let backend = Scripted::new(vec![tiny()], |_| {
        [bytes("ok"), vec![done(FinishReason::Stop)]].concat()
    });
    Server::with(config, backend).await
}

async fn connect(server: &Server, sent: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(sent).await.unwrap();
    socket
}

/// What comes until the server closes the connection.
async fn until_closed(mut socket: TcpStream) -> String {
    let mut received = Vec::new();
    let _ = timeout(LONG, socket.read_to_end(&mut received))
        .await
        .expect("the server closes the connection");
    String::from_utf8(received).unwrap()
}

async fn answers(server: &Server) {
    let health = timeout(LONG, server.get("/health")).await;
    assert_eq!(health.expect("the server answers").status, 200);
}

#[tokio::test]
async fn a_connection_that_does_not_ask_in_time_is_closed() {
    let server = server(HttpConfig {
        head_timeout: SHORT,
        ..HttpConfig::default()
    })
    .await;
    assert_eq!(until_closed(connect(&server, b"").await).await, "");
    until_closed(connect(&server, HALF).await).await;
    let whole = b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n";
    let answer = until_closed(connect(&server, whole).await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn connections_that_ask_nothing_make_room_for_one_that_does() {
    let server = server(HttpConfig {
        max_connections: 4,
        ..HttpConfig::default()
    })
    .await;
    let mut idle = Vec::new();
    for _ in 0..6 {
        idle.push(connect(&server, b"").await);
        idle.push(connect(&server, HALF).await);
    }
    answers(&server).await;
}

#[tokio::test]
async fn a_request_that_runs_is_not_cut_to_make_room() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [
            bytes("be"),
            vec![Step::Gate],
            bytes("gun"),
            vec![done(FinishReason::Stop)],
        ]
        .concat()
    });
    let config = HttpConfig {
        max_connections: 2,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend.clone()).await;
    let body = json!({"model": "tiny", "prompt": "x", "stream": true, "max_tokens": 9});
    let stream = Stream::open(server.address, "/v1/completions", &body).await;
    // Each needs the one place that the stream leaves, so each has made room before.
    for _ in 0..3 {
        let idle = connect(&server, HALF).await;
        answers(&server).await;
        drop(idle);
    }
    backend.gate.add_permits(1);
    let events = stream.rest().await;
    assert_eq!(events.last().unwrap(), "[DONE]");
}

/// smg#2097: a client that never reads holds its response for ever.
#[tokio::test]
async fn a_client_that_reads_nothing_loses_its_connection() {
    let server = server(HttpConfig {
        max_connections: 1,
        unread_timeout: SHORT,
        ..HttpConfig::default()
    })
    .await;
    // An answer of some 16 MB, more than the sockets of both sides take.
    let body = json!({"model": "tiny", "prompt": "x".repeat(2_000_000), "return_token_strs": true});
    let unread = send(server.address, "/tokenize", &body).await;
    // There is one place, and the answer that nobody reads has it.
    answers(&server).await;
    assert!(!until_closed(unread).await.ends_with('}'), "cut off");
}
