//! Clients that go, workers that fail, and places that are taken.

use std::future::Future;
use std::time::Duration;

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::SubmitError;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::*;

/// Polls until `holds`.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{what} does not happen"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls a server until `holds`.
async fn until_async<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{what}: that does not happen"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An open request whose answer nobody reads.
async fn open(server: &Server, fields: &[(&str, &str)]) -> TcpStream {
    let body = form(
        &wav(&speech_for(95)),
        Some("a.wav"),
        &[&[("model", "whisper")], fields].concat(),
    );
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(&body).await.unwrap();
    socket
}

#[tokio::test]
async fn a_client_that_goes_ends_its_window() {
    for fields in [
        &[][..],
        &[("stream", "true")],
        &[("chunking_strategy", "auto"), ("language", "en")],
    ] {
        let backend = Scripted::new(models(), |_| vec![Step::Hang]);
        let server = Server::start(backend.clone()).await;
        let socket = open(&server, fields).await;
        until("a window", || backend.live() > 0).await;
        let live = backend.live();
        drop(socket);
        until("an abort", || backend.live() == 0).await;
        assert!(backend.aborted() >= live, "{fields:?}");
        assert_eq!(
            backend.submissions(),
            backend.aborted(),
            "nothing more was asked"
        );
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_ends() {
    let backend = Scripted::new(models(), |_| vec![Step::Hang]);
    let config = HttpConfig {
        request_timeout: Duration::from_secs(2),
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend.clone()).await;
    let reply = transcribe(&server, &[]).await;
    reply.error(504, None);
    let reply = transcribe(&server, &[("stream", "true")]).await;
    assert_eq!(reply.status, 200);
    assert!(
        reply.text().contains("\"code\":\"timeout\"")
            && !reply.text().contains("transcript.text.done")
    );
    until("the end", || backend.live() == 0).await;
}

#[tokio::test]
async fn a_worker_that_dies_is_an_error_in_openais_shape() {
    let backend = Scripted::new(models(), |_| vec![failed("worker_died", true)]);
    let server = Server::start(backend.clone()).await;
    let reply = transcribe(&server, &[]).await;
    reply.error(503, None);
    assert_eq!(reply.header("retry-after"), Some("1"));
    let reply = transcribe(&server, &[("stream", "true")]).await;
    assert_eq!(reply.text().matches("data: ").count(), 1);
    assert!(reply.text().contains("\"code\":\"worker_died\""));
    let refusal = SubmitError::NotReady {
        model: "whisper".into(),
        retry_after_s: 5,
    };
    *backend.refuse.lock().unwrap() = Some(refusal);
    transcribe(&server, &[]).await.error(503, None);
}

#[tokio::test]
async fn only_the_first_window_is_refused_for_lack_of_room() {
    let busy = SubmitError::Busy {
        limit: 1,
        retry_after_s: 1,
    };
    let backend = Scripted::new(models(), |request| {
        let mut steps = vec![Step::Gate];
        steps.extend(says(request, &[" x"]));
        steps
    });
    let server = Server::start(backend.clone()).await;
    *backend.refuse.lock().unwrap() = Some(busy.clone());
    transcribe(&server, &[]).await.error(429, None);
    *backend.refuse.lock().unwrap() = None;
    let long = wav(&speech_for(60));
    let reply = async { post(&server, TRANSCRIPTIONS, &long, &[]).await };
    let keeper = async {
        until("the first window", || backend.submissions() == 1).await;
        *backend.refuse.lock().unwrap() = Some(busy);
        backend.gate.add_permits(100);
        until("its end", || backend.live() == 0).await;
        assert_eq!(backend.submissions(), 1);
        *backend.refuse.lock().unwrap() = None;
    };
    let (reply, ()) = tokio::join!(reply, keeper);
    assert_eq!(reply.ok()["text"], "x x");
}

#[tokio::test]
async fn the_audio_of_all_files_together_is_bounded() {
    let backend = Scripted::new(models(), |request| {
        let mut steps = vec![Step::Gate];
        steps.extend(says(request, &[" x"]));
        steps
    });
    let config = HttpConfig {
        // A minute takes 3.84 MB, and a quarter more while it grows.
        max_audio_memory: 8 << 20,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend.clone()).await;
    let held = || metric(&server, "denizen_audio_memory_bytes");
    let (minute, long) = (wav(&speech_for(60)), wav(&speech_for(150)));
    let reply = post(&server, TRANSCRIPTIONS, &long, &[]).await;
    assert_eq!((reply.status, reply.code()), (413, json!("audio_too_long")));
    assert!(reply.text().contains("8 MiB") && reply.text().contains("--max-audio-memory"));
    assert_eq!(held().await, 0.0);
    let first = async { post(&server, TRANSCRIPTIONS, &minute, &[("language", "en")]).await };
    let others = async {
        until("the first window", || backend.live() == 1).await;
        assert_eq!(held().await, 60.0 * 16_000.0 * 4.0);
        let reply = post(&server, TRANSCRIPTIONS, &wav(&speech_for(90)), &[]).await;
        assert_eq!(
            (reply.status, reply.code()),
            (429, json!("rate_limit_exceeded"))
        );
        assert!(reply.text().contains("8 MiB") && reply.text().contains("--max-audio-memory"));
        assert!(reply.header("retry-after").is_some());
        // What fits is heard beside it.
        backend.gate.add_permits(100);
        transcribe(&server, &[]).await.ok();
    };
    let (reply, ()) = tokio::join!(first, others);
    reply.ok();
    assert_eq!(held().await, 0.0, "given back");
    post(&server, TRANSCRIPTIONS, &minute, &[]).await.ok();
}

#[tokio::test]
async fn files_on_their_way_count_too() {
    let backend = Scripted::new(models(), |request| says(request, &[" x"]));
    let config = HttpConfig {
        max_audio_memory: 1 << 20,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend).await;
    let held = || async { metric(&server, "denizen_audio_memory_bytes").await as usize };
    // Three quarters of what there is, and the file does not end there.
    let part = vec![0; 3 << 18];
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: 9000000\r\n\r\n"
    );
    let form = form(&part, Some("a.wav"), &[("model", "whisper")]);
    let open = &form[..form.len() - 100];
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(open).await.unwrap();
    until_async("most of it is held", || async {
        held().await > part.len() - 1000
    })
    .await;
    // Ten seconds: 320 kB.
    let other = wav(&speech_for(10));
    let reply = post(&server, TRANSCRIPTIONS, &other, &[]).await;
    assert_eq!(
        (reply.status, reply.code()),
        (429, json!("rate_limit_exceeded"))
    );
    drop(slow);
    until_async("it is given back", || async { held().await == 0 }).await;
    // A second: 32 kB, and 64 kB decoded.
    let other = wav(&speech_for(1));
    post(&server, TRANSCRIPTIONS, &other, &[]).await.ok();
    assert_eq!(held().await, 0);
}
