//! A client that goes away frees everything it held (pegainfer#215, sglang#36552, vllm#54947).

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::FinishReason;
use serde_json::{json, Value};

use crate::support::backend::token;
use crate::support::client::send;
use crate::support::{bytes, done, eventually, qwen, tiny, Scripted, Server, Step};

fn chat(stream: bool) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": stream})
}

fn endless() -> std::sync::Arc<Scripted> {
    Scripted::new(vec![tiny()], |_| [bytes("abc"), vec![Step::Hang]].concat())
}

#[tokio::test]
async fn p29_closing_64_streams_aborts_64_sequences() {
    let backend = endless();
    let server = Server::start(backend.clone()).await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        let mut stream = server.stream("/v1/chat/completions", &chat(true)).await;
        for _ in 0..3 {
            stream.next().await.unwrap();
        }
        streams.push(stream);
    }
    assert_eq!(backend.live(), 64);
    drop(streams);
    eventually("all sequences are aborted", || backend.live() == 0).await;
    assert_eq!(backend.aborted(), 64);
}

#[tokio::test]
async fn p29_closing_without_stream_aborts_too_running_or_queued() {
    // The second of each pair has had no token yet.
    let backend = Scripted::new(vec![tiny()], |request| {
        if request.sampling.seed == 1 {
            vec![Step::Hang]
        } else {
            [bytes("abc"), vec![Step::Hang]].concat()
        }
    });
    let server = Server::start(backend.clone()).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let mut body = crate::errors::good(path);
        for seed in [0, 1] {
            body["seed"] = json!(seed);
            body["n"] = json!(3);
            let socket = send(server.address, path, &body).await;
            eventually("it runs", || backend.live() == 3).await;
            drop(socket);
            eventually("it is aborted", || backend.live() == 0).await;
        }
    }
    assert_eq!(backend.aborted(), 12);
}

#[tokio::test]
async fn one_of_many_that_goes_away_leaves_the_others_alone() {
    let backend = Scripted::new(vec![tiny()], |_| {
        [
            bytes("a"),
            vec![Step::Gate],
            bytes("b"),
            vec![done(FinishReason::Stop)],
        ]
        .concat()
    });
    let server = Server::start(backend.clone()).await;
    let stays = server.stream("/v1/chat/completions", &chat(true)).await;
    let goes = server.stream("/v1/chat/completions", &chat(true)).await;
    eventually("both run", || backend.live() == 2).await;
    drop(goes);
    eventually("one is gone", || backend.live() == 1).await;
    backend.gate.add_permits(1);
    assert_eq!(stays.rest().await.last().unwrap(), "[DONE]");
}

/// The abort and the end of a sequence may cross; there is one outcome, and nothing is left.
#[tokio::test]
async fn an_abort_that_races_the_end_leaves_nothing() {
    let backend = Scripted::new(vec![tiny()], |_| {
        vec![token(97), Step::Gate, token(98), done(FinishReason::Stop)]
    });
    let server = Server::start(backend.clone()).await;
    for _ in 0..200 {
        let mut stream = server.stream("/v1/chat/completions", &chat(true)).await;
        stream.next().await.unwrap();
        backend.gate.add_permits(1);
        drop(stream);
        eventually("it is gone", || backend.live() == 0).await;
        // A permit that the aborted sequence did not take.
        if let Ok(permit) = backend.gate.try_acquire() {
            permit.forget();
        }
    }
    assert_eq!(backend.submissions(), 200);
}

/// A client that goes away while its prompt waits for a text thread costs neither tokenization nor a sequence.
#[tokio::test]
async fn closing_while_the_prompt_waits_for_tokenization_submits_nothing() {
    let backend = Scripted::new(vec![tiny(), qwen()], |_| vec![Step::Hang]);
    let config = HttpConfig {
        text_threads: 1,
        max_in_flight: 64,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend.clone()).await;
    // Long enough for all to arrive while the one thread is busy with the first.
    let prompt = "some words to split ".repeat(60_000);
    let long = json!({"model": "qwen", "prompt": prompt, "max_tokens": 1});
    let busy = send(server.address, "/v1/completions", &long).await;
    let mut waiting = Vec::new();
    for _ in 0..8 {
        waiting.push(send(server.address, "/v1/completions", &long).await);
    }
    let metric = |name: &'static str| {
        let server = &server;
        async move {
            let metrics = server.get("/metrics").await;
            let line = metrics
                .text()
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap()
                .to_owned();
            line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()
        }
    };
    while metric("denizen_http_in_flight ").await < 9 {
        assert_eq!(
            backend.submissions(),
            0,
            "the first is still being tokenized"
        );
    }
    drop(waiting);
    eventually("the first got through", || backend.submissions() == 1).await;
    drop(busy);
    while metric("denizen_http_in_flight ").await > 0 {}
    // A short one runs after all that is left of the others.
    let short = send(server.address, "/v1/chat/completions", &chat(true)).await;
    eventually("the short one got through", || backend.submissions() == 2).await;
    assert_eq!(backend.last().model.name, "tiny");
    drop(short);
    eventually("all are gone", || backend.live() == 0).await;
}
