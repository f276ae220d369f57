//! Sending forms through a router.

use axum::body::{to_bytes, Body};
use axum::extract::Request;
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::Router;
use denizen_frontend::audio::Budget;
use denizen_frontend::http::multipart::Transcription;
use denizen_frontend::speech::Task;
use serde_json::Value;
use tokio::sync::mpsc;
use tower::ServiceExt;

pub const LIMIT: usize = 100_000;
pub const BOUNDARY: &str = "----geckoformboundary7f3a";

/// A part: its name, a file name if any, and its content.
pub type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

pub fn text<'a>(name: &'a str, value: &'a str) -> Part<'a> {
    (name, None, value.as_bytes())
}

pub const FILE: Part<'static> = (
    "file",
    Some("rec.wav"),
    b"\x1a\x45\xdf\xa3\r\n--not the end",
);
pub const MODEL: Part<'static> = ("model", None, b"whisper-1");

pub fn body(parts: &[Part]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, content) in parts {
        let file = file.map_or(String::new(), |file| format!("; filename=\"{file}\""));
        let head =
            format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n");
        body.extend(head.bytes());
        if !file.is_empty() {
            body.extend(b"Content-Type: audio/wav\r\n");
        }
        body.extend(b"\r\n");
        body.extend(*content);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{BOUNDARY}--\r\n").bytes());
    body
}

/// What the endpoint makes of a request: the form, or the error as a client sees it.
pub async fn post_body(
    path: &str,
    content_type: Option<&str>,
    body: Body,
) -> Result<Transcription, (StatusCode, Value)> {
    let (sender, mut receiver) = mpsc::channel(1);
    let endpoint = |task| {
        let sender = sender.clone();
        post(move |request: Request| async move {
            let mut share = Budget::new(usize::MAX).share();
            match Transcription::read(request, task, LIMIT, &mut share).await {
                Ok(form) => {
                    sender.send(form).await.expect("the test waits");
                    StatusCode::OK.into_response()
                }
                Err(error) => error.into_response(),
            }
        })
    };
    let router = Router::new()
        .route("/v1/audio/transcriptions", endpoint(Task::Transcribe))
        .route("/v1/audio/translations", endpoint(Task::Translate));
    let mut request = Request::post(path);
    if let Some(content_type) = content_type {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    let request = request.body(body).expect("a valid request");
    let response: Response = router.oneshot(request).await.expect("infallible");
    let status = response.status();
    if status.is_success() {
        return Ok(receiver.recv().await.expect("the endpoint sent it"));
    }
    let body = to_bytes(response.into_body(), LIMIT)
        .await
        .expect("a short body");
    Err((status, serde_json::from_slice(&body).expect("JSON")))
}

pub async fn send(parts: &[Part<'_>]) -> Result<Transcription, (StatusCode, Value)> {
    let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
    let body = Body::from(body(parts));
    post_body("/v1/audio/transcriptions", Some(&content_type), body).await
}

pub async fn accepted(parts: &[Part<'_>]) -> Transcription {
    send(&[&[FILE, MODEL], parts].concat())
        .await
        .unwrap_or_else(|e| panic!("{e:?}"))
}

/// Status, parameter, code and message of a refusal.
pub async fn refused(parts: &[Part<'_>]) -> (u16, String, String, String) {
    told(send(&[&[FILE, MODEL], parts].concat()).await)
}

pub fn told(result: Result<Transcription, (StatusCode, Value)>) -> (u16, String, String, String) {
    let (status, body) = result.expect_err("a mistake");
    assert_eq!(body["error"]["type"], "invalid_request_error");
    let field = |name: &str| body["error"][name].as_str().unwrap_or("").to_owned();
    (
        status.as_u16(),
        field("param"),
        field("code"),
        field("message"),
    )
}
