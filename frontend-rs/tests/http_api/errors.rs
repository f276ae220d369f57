//! Every error has OpenAI's shape, whatever route and whatever is wrong.

use std::sync::atomic::Ordering;

use denizen_frontend::http::HttpConfig;
use denizen_frontend::route::{FinishReason, SubmitError};
use serde_json::{json, Value};

use crate::support::client::request;
use crate::support::{bytes, done, tiny, Scripted, Server};

pub const POST: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
];
pub const GET: [&str; 6] = [
    "/health",
    "/ready",
    "/version",
    "/metrics",
    "/v1/models",
    "/v1/models/tiny",
];

fn backend() -> std::sync::Arc<Scripted> {
    Scripted::new(vec![tiny()], |_| {
        [bytes("ok"), vec![done(FinishReason::Stop)]].concat()
    })
}

pub fn good(route: &str) -> Value {
    match route {
        "/v1/chat/completions" => {
            json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}]})
        }
        "/detokenize" => json!({"model": "tiny", "tokens": [1]}),
        _ => json!({"model": "tiny", "prompt": "x"}),
    }
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_refused_on_every_route() {
    let server = Server::start(backend()).await;
    for route in POST {
        for body in [
            "",
            "{",
            "[]",
            "7",
            "\"x\"",
            "null",
            "{\"a\": \"\\ud800\"}",
            "{\"a\": 1e999}",
            "nul",
            "\u{feff}{}",
        ] {
            let reply = server.post_bytes(route, body.as_bytes()).await;
            reply.error(400, None);
            assert_eq!(reply.code(), "invalid_json", "{body}");
        }
        let reply = server.post_bytes(route, b"{\"a\": \"\xff\"}").await;
        reply.error(400, None);
        let deep = "[".repeat(100_000);
        server
            .post_bytes(route, deep.as_bytes())
            .await
            .error(400, None);
        server.post(route, &good(route)).await.ok();
    }
}

#[tokio::test]
async fn another_content_type_is_refused() {
    let server = Server::start(backend()).await;
    let body = good(POST[0]).to_string();
    for (kind, status) in [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("application/vnd.api+json", 200),
    ] {
        let reply = request(
            server.address,
            "POST",
            POST[0],
            &[("content-type", kind)],
            body.as_bytes(),
        )
        .await;
        assert_eq!(reply.status, status, "{kind}");
        if status == 415 {
            assert!(reply.error(415, None).contains("application/json"));
        }
    }
    let reply = request(server.address, "POST", POST[0], &[], body.as_bytes()).await;
    assert_eq!(reply.status, 200, "a client that sends no type means JSON");
}

#[tokio::test]
async fn unknown_routes_models_and_methods() {
    let server = Server::start(backend()).await;
    for path in [
        "/",
        "/v1",
        "/v1/chat",
        "/v1/embeddings",
        "/v1/chat/completions/",
    ] {
        let reply = server.post(path, &json!({})).await;
        reply.error(404, None);
        assert_eq!(reply.code(), "not_found");
    }
    for route in POST {
        let reply = server.get(route).await;
        reply.error(405, None);
        assert_eq!(reply.header("allow"), Some("POST"));
        let mut body = good(route);
        body["model"] = json!("gpt-4");
        let reply = server.post(route, &body).await;
        let message = reply.error(404, Some("model"));
        assert!(
            message.contains("'gpt-4' does not exist; this server offers 'tiny'"),
            "{message}"
        );
        assert_eq!(reply.code(), "model_not_found");
    }
    for route in GET {
        let reply = server.post(route, &json!({})).await;
        reply.error(405, None);
        assert_eq!(reply.header("allow"), Some("GET,HEAD"));
    }
    server
        .get("/v1/models/org/other")
        .await
        .error(404, Some("model"));
}

/// An answer that comes before the body was read must reach the client: a connection closed too early is reset.
#[tokio::test]
async fn an_early_error_reaches_a_client_that_is_still_sending() {
    let backend = backend();
    let config = HttpConfig {
        api_key: Some("secret".into()),
        max_body: 4 << 20,
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend.clone()).await;
    let key = ("authorization", "Bearer secret");
    let json = ("content-type", "application/json");
    let body = vec![b' '; 4 << 20];
    for (path, headers, status) in [
        (POST[0], vec![json], 401),
        ("/nowhere", vec![key], 404),
        ("/v1/models", vec![key], 405),
        (POST[0], vec![key, ("content-type", "text/plain")], 415),
        (POST[0], vec![key, json], 400),
    ] {
        for _ in 0..5 {
            assert_eq!(
                request(server.address, "POST", path, &headers, &body)
                    .await
                    .status,
                status
            );
        }
    }
    let over = vec![b' '; 12 << 20];
    assert_eq!(
        request(server.address, "POST", POST[0], &[key, json], &over)
            .await
            .status,
        413
    );
    backend.draining.store(true, Ordering::SeqCst);
    assert_eq!(
        request(server.address, "POST", POST[0], &[key, json], &body)
            .await
            .status,
        503
    );
}

#[tokio::test]
async fn models_are_listed() {
    let server = Server::start(backend()).await;
    let list = server.get("/v1/models").await.ok();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "tiny");
    assert_eq!(list["data"][0]["created"], 1_700_000_000);
    assert_eq!(list["data"][0]["max_model_len"], 4096);
    assert_eq!(server.get("/v1/models/tiny").await.ok(), list["data"][0]);
}

/// vLLM's security notes: the key guards some paths only.
#[tokio::test]
async fn p31_the_key_guards_every_route_but_the_probes() {
    let config = HttpConfig {
        api_key: Some("secret".into()),
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend()).await;
    let all = GET
        .iter()
        .map(|path| ("GET", *path))
        .chain(POST.iter().map(|path| ("POST", *path)));
    let others = [
        ("GET", "/nowhere"),
        ("DELETE", "/v1/models"),
        ("OPTIONS", POST[0]),
        ("GET", "//health"),
        ("GET", "/health/"),
    ];
    for (method, path) in all.chain(others) {
        let body = if method == "POST" {
            good(path).to_string()
        } else {
            String::new()
        };
        let json = ("content-type", "application/json");
        let send = |key: Option<&'static str>| {
            let body = body.clone();
            async move {
                let mut headers = vec![json];
                headers.extend(key.map(|key| ("authorization", key)));
                request(server.address, method, path, &headers, body.as_bytes()).await
            }
        };
        if path == "/health" || path == "/ready" {
            assert_eq!(send(None).await.status, 200);
            continue;
        }
        for key in [
            None,
            Some("Bearer wrong"),
            Some("Bearer secre"),
            Some("Bearer secrets"),
            Some("Bearer "),
            Some("Bearer"),
            Some("secret"),
            Some("Basic secret"),
            Some(""),
        ] {
            let reply = send(key).await;
            reply.error(401, None);
            assert_eq!(reply.code(), "invalid_api_key");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        }
        for key in ["Bearer secret", "bearer secret"] {
            assert_ne!(send(Some(key)).await.status, 401, "{path}");
        }
    }
    for path in GET {
        let headers = [("authorization", "Bearer secret")];
        assert_eq!(
            request(server.address, "GET", path, &headers, b"")
                .await
                .status,
            200
        );
    }
}

#[tokio::test]
async fn refusals_of_the_router_say_when_to_come_back() {
    let backend = backend();
    let server = Server::start(backend.clone()).await;
    for (refusal, status, code, retry) in [
        (
            SubmitError::Busy {
                limit: 3,
                retry_after_s: 2,
            },
            429,
            "rate_limit_exceeded",
            "2",
        ),
        (
            SubmitError::NotReady {
                model: "tiny".into(),
                retry_after_s: 4,
            },
            503,
            "not_ready",
            "4",
        ),
        (SubmitError::Draining, 503, "shutting_down", "5"),
    ] {
        *backend.refuse.lock().unwrap() = Some(refusal);
        for stream in [false, true] {
            let mut body = good(POST[0]);
            body["stream"] = json!(stream);
            let reply = server.post(POST[0], &body).await;
            reply.error(status, None);
            assert_eq!(reply.code(), code);
            assert_eq!(reply.header("retry-after"), Some(retry));
        }
    }
}

#[tokio::test]
async fn a_draining_server_takes_no_new_requests_but_lives() {
    let backend = backend();
    let server = Server::start(backend.clone()).await;
    assert_eq!(server.get("/ready").await.status, 200);
    backend.draining.store(true, Ordering::SeqCst);
    for route in POST {
        let reply = server.post(route, &good(route)).await;
        reply.error(503, None);
        assert_eq!(reply.code(), "shutting_down");
    }
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.get("/ready").await.status, 503);
    backend.draining.store(false, Ordering::SeqCst);
    backend
        .not_ready
        .lock()
        .unwrap()
        .push("worker 0 (cpu): no heartbeat for 3 s".into());
    let reply = server.get("/ready").await;
    assert_eq!(reply.status, 503);
    assert_eq!(
        reply.json()["reasons"],
        json!(["worker 0 (cpu): no heartbeat for 3 s"])
    );
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn every_reply_has_a_request_id() {
    let server = Server::start(backend()).await;
    let ids: std::collections::BTreeSet<String> = [
        server.get("/health").await,
        server.get("/nowhere").await,
        server.post(POST[0], &json!({})).await,
        server.post(POST[0], &good(POST[0])).await,
    ]
    .iter()
    .map(|reply| reply.header("x-request-id").expect("an id").to_owned())
    .collect();
    assert_eq!(ids.len(), 4);
    let with = |id: &'static str| {
        request(
            server.address,
            "GET",
            "/health",
            vec![("x-request-id", id)].leak(),
            b"",
        )
    };
    assert_eq!(
        with("my-id-7").await.header("x-request-id"),
        Some("my-id-7")
    );
    let long: &'static str = "x".repeat(129).leak();
    assert_ne!(with(long).await.header("x-request-id"), Some(long));
}

#[tokio::test]
async fn requests_are_counted_by_route_and_status() {
    let server = Server::start(backend()).await;
    server.get("/health").await;
    server.post(POST[0], &json!({})).await;
    server.post("/some/unknown/path", &json!({})).await;
    let metrics = server.get("/metrics").await;
    assert!(metrics
        .header("content-type")
        .unwrap()
        .starts_with("text/plain; version=0.0.4"));
    let text = metrics.text();
    for line in [
        "denizen_requests_running 0",
        "denizen_http_requests_total{route=\"/health\",status=\"200\"} 1",
        "denizen_http_requests_total{route=\"/v1/chat/completions\",status=\"400\"} 1",
        "denizen_http_requests_total{route=\"unmatched\",status=\"404\"} 1",
        "denizen_http_in_flight 0",
        "denizen_http_text_waiting 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
}

#[tokio::test]
async fn a_panic_is_an_error_of_the_usual_shape_and_the_server_lives() {
    let backend = Scripted::new(vec![tiny()], |_| panic!("a fault in the backend"));
    let server = Server::start(backend).await;
    let reply = server.post(POST[0], &good(POST[0])).await;
    reply.error(500, None);
    assert_eq!(reply.code(), "internal_error");
    assert_eq!(server.get("/health").await.status, 200);
}

/// What a client sends comes back in a message at most in part.
#[tokio::test]
async fn an_error_is_short_however_long_what_it_quotes() {
    let server = Server::start(backend()).await;
    let long = "ä".repeat(1_000_000);
    for body in [
        json!({"model": long, "prompt": "x"}),
        json!({"model": "tiny", "prompt": "x", long.clone(): 1}),
        json!({"model": "tiny", "prompt": "x", "logit_bias": {long.clone(): 1}}),
    ] {
        let reply = server.post("/v1/completions", &body).await;
        assert!((400..500).contains(&reply.status));
        let message = reply.json()["error"]["message"].to_string();
        assert!(message.contains("ää"), "{message}");
        assert!(reply.body.len() < 20_000, "{} bytes", reply.body.len());
    }
}

#[tokio::test]
async fn a_model_name_in_a_path_that_is_no_text_is_refused() {
    let server = Server::start(backend()).await;
    server.get("/v1/models/%ff").await.error(400, Some("model"));
}
