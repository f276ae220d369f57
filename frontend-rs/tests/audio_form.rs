//! Forms of the audio endpoints, through a router: every spelling clients use, and what is said about mistakes.

use axum::body::{to_bytes, Body};
use axum::extract::Request;
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::Router;
use denizen_frontend::audio::{decode, Limits};
use denizen_frontend::http::multipart::{
    Chunking, Granularities, ResponseFormat, Task, Transcription, VoiceActivity,
};
use denizen_frontend::http::ApiError;
use serde_json::Value;
use tokio::sync::mpsc;
use tower::ServiceExt;

const LIMIT: usize = 100_000;
const BOUNDARY: &str = "----geckoformboundary7f3a";

/// A part: its name, a file name if any, and its content.
type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

fn text<'a>(name: &'a str, value: &'a str) -> Part<'a> {
    (name, None, value.as_bytes())
}

const FILE: Part<'static> = (
    "file",
    Some("rec.wav"),
    b"\x1a\x45\xdf\xa3\r\n--not the end",
);
const MODEL: Part<'static> = ("model", None, b"whisper-1");

fn body(parts: &[Part]) -> Vec<u8> {
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
async fn post_body(
    path: &str,
    content_type: Option<&str>,
    body: Body,
) -> Result<Transcription, (StatusCode, Value)> {
    let (sender, mut receiver) = mpsc::channel(1);
    let endpoint = |task| {
        let sender = sender.clone();
        post(move |request: Request| async move {
            match Transcription::read(request, task, LIMIT).await {
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

async fn send(parts: &[Part<'_>]) -> Result<Transcription, (StatusCode, Value)> {
    let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
    let body = Body::from(body(parts));
    post_body("/v1/audio/transcriptions", Some(&content_type), body).await
}

async fn accepted(parts: &[Part<'_>]) -> Transcription {
    send(&[&[FILE, MODEL], parts].concat())
        .await
        .unwrap_or_else(|e| panic!("{e:?}"))
}

/// Status, parameter, code and message of a refusal.
async fn refused(parts: &[Part<'_>]) -> (u16, String, String, String) {
    told(send(&[&[FILE, MODEL], parts].concat()).await)
}

fn told(result: Result<Transcription, (StatusCode, Value)>) -> (u16, String, String, String) {
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

#[tokio::test]
async fn a_plain_form_has_the_defaults() {
    let form = accepted(&[]).await;
    assert_eq!(&form.file.bytes[..], FILE.2);
    assert_eq!(form.file.name.as_deref(), Some("rec.wav"));
    assert_eq!(
        (form.task, form.model.as_str()),
        (Task::Transcribe, "whisper-1")
    );
    assert_eq!(
        (form.language, form.prompt.as_deref(), form.temperature),
        (None, None, None)
    );
    assert_eq!(form.response_format, ResponseFormat::Json);
    assert_eq!(
        form.granularities,
        Granularities {
            segment: true,
            word: false
        }
    );
    assert_eq!(
        (form.stream, form.logprobs, form.chunking),
        (false, false, Chunking::Unsaid)
    );
}

#[tokio::test]
async fn every_field_is_read() {
    let form = accepted(&[
        text("language", "German"),
        text("prompt", "Dashwood, Norland, naïve"),
        text("response_format", "verbose_json"),
        text("temperature", "0.2"),
        text("timestamp_granularities[]", "word"),
        text("include[]", "logprobs"),
        text("chunking_strategy", "auto"),
        text("stream", "False"),
        text("user", "me"),
    ])
    .await;
    assert_eq!(form.language, Some("de"));
    assert_eq!(form.prompt.as_deref(), Some("Dashwood, Norland, naïve"));
    assert_eq!(form.response_format, ResponseFormat::VerboseJson);
    assert_eq!(form.temperature, Some(0.2));
    assert_eq!(
        form.granularities,
        Granularities {
            segment: false,
            word: true
        }
    );
    assert_eq!(
        (form.stream, form.logprobs, form.chunking),
        (false, true, Chunking::Auto)
    );

    let content_type = format!("multipart/form-data; boundary=\"{BOUNDARY}\"");
    let body = Body::from(body(&[MODEL, FILE]));
    let form = post_body("/v1/audio/translations", Some(&content_type), body)
        .await
        .unwrap();
    assert_eq!(form.task, Task::Translate);
}

#[tokio::test]
async fn a_file_needs_no_name() {
    let form = send(&[("file", None, b"OggS"), MODEL]).await.unwrap();
    assert_eq!((form.file.name, &form.file.bytes[..]), (None, &b"OggS"[..]));
}

#[tokio::test]
async fn a_recording_with_a_wrong_name_is_told_by_its_content() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/assets/audio");
    let recording = std::fs::read(format!("{folder}/recorder.webm")).expect("the asset");
    let form = send(&[("file", Some("rec.wav"), &recording), MODEL])
        .await
        .unwrap();
    let audio = decode(&form.file.bytes, &Limits::default()).unwrap();
    assert_eq!(
        (audio.source.container, audio.source.codec.as_str()),
        ("WebM", "Opus")
    );
}

#[tokio::test]
async fn files_that_cannot_be_decoded_are_errors_of_the_file() {
    let error = |bytes: &[u8], limits: &Limits| {
        let error = ApiError::from(decode(bytes, limits).expect_err("no audio"));
        assert_eq!(error.param.as_deref(), Some("file"));
        (error.status.as_u16(), error.code.unwrap_or_default())
    };
    let limits = Limits {
        max_bytes: 10,
        ..Limits::default()
    };
    assert_eq!(error(b"", &limits), (400, "invalid_audio".into()));
    assert_eq!(error(b"hello", &limits), (400, "invalid_audio".into()));
    assert_eq!(
        error(b"hello hello", &limits),
        (413, "request_too_large".into())
    );
}

#[tokio::test]
async fn granularities_come_in_every_spelling() {
    let verbose = text("response_format", "verbose_json");
    let both = Granularities {
        segment: true,
        word: true,
    };
    let word = Granularities {
        segment: false,
        word: true,
    };
    let name = "timestamp_granularities";
    let bracketed = "timestamp_granularities[]";
    let cases: [(&[Part], Granularities); 9] = [
        (&[text(name, "word")], word),
        (&[text(bracketed, "word")], word),
        (&[text("timestamp_granularities[0]", "word")], word),
        (&[text(bracketed, "word"), text(bracketed, "segment")], both),
        (&[text(name, "word"), text(name, "segment")], both),
        (
            &[
                text("timestamp_granularities[0]", "word"),
                text("timestamp_granularities[1]", "segment"),
            ],
            both,
        ),
        (&[text(name, "word, segment")], both),
        (&[text(bracketed, "[\"segment\", \"word\"]")], both),
        (
            &[text(bracketed, "")],
            Granularities {
                segment: true,
                word: false,
            },
        ),
    ];
    for (parts, wanted) in cases {
        let form = accepted(&[&[verbose], parts].concat()).await;
        assert_eq!(form.granularities, wanted, "{parts:?}");
    }
    let (status, param, _, message) = refused(&[verbose, text(bracketed, "sentence")]).await;
    assert_eq!((status, param.as_str()), (400, name));
    assert_eq!(
        message,
        "'timestamp_granularities' cannot be \"sentence\"; use 'segment' or 'word'"
    );
    let (status, param, _, message) = refused(&[text(name, "word")]).await;
    assert_eq!((status, param.as_str()), (400, name));
    assert!(
        message.contains("needs 'response_format' to be 'verbose_json'"),
        "{message}"
    );
}

#[tokio::test]
async fn chunking_comes_as_json_or_under_keys() {
    let wanted = Chunking::VoiceActivity(VoiceActivity {
        threshold: Some(0.5),
        prefix_padding_ms: None,
        silence_duration_ms: Some(200),
    });
    let json = r#"{"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 200}"#;
    assert_eq!(
        accepted(&[text("chunking_strategy", json)]).await.chunking,
        wanted
    );
    let keyed = [
        text("chunking_strategy[type]", "server_vad"),
        text("chunking_strategy[threshold]", "0.5"),
        text("chunking_strategy[silence_duration_ms]", "200"),
    ];
    assert_eq!(accepted(&keyed).await.chunking, wanted);
    for (name, value, param) in [
        ("chunking_strategy", "manual", "chunking_strategy"),
        (
            "chunking_strategy",
            r#"{"type": "silence"}"#,
            "chunking_strategy.type",
        ),
        ("chunking_strategy[type]", "", "chunking_strategy.type"),
        (
            "chunking_strategy[threshold]",
            "2",
            "chunking_strategy.threshold",
        ),
        ("chunking_strategy[speed]", "2", "chunking_strategy.speed"),
    ] {
        let (status, found, _, message) = refused(&[text(name, value)]).await;
        assert_eq!(
            (status, found.as_str()),
            (400, param),
            "{name}={value}: {message}"
        );
    }
}

#[tokio::test]
async fn mistakes_name_the_field_and_the_remedy() {
    for (name, value, param, code, said) in [
        (
            "response_format",
            "xml",
            "response_format",
            "",
            "use 'json' or 'text' or 'srt' or 'vtt' or 'verbose_json'",
        ),
        (
            "response_format",
            "diarized_json",
            "response_format",
            "unsupported_parameter",
            "use 'verbose_json'",
        ),
        (
            "temperature",
            "1.5",
            "temperature",
            "",
            "must be a number between 0 and 1, not \"1.5\"",
        ),
        (
            "temperature",
            "nan",
            "temperature",
            "",
            "must be a number between 0 and 1",
        ),
        (
            "temperature",
            "warm",
            "temperature",
            "",
            "must be a number between 0 and 1",
        ),
        ("stream", "maybe", "stream", "", "use 'true' or 'false'"),
        (
            "language",
            "klingon",
            "language",
            "",
            "an ISO 639-1 code such as 'de'",
        ),
        ("include", "words", "include", "", "use 'logprobs'"),
        (
            "known_speaker_names[]",
            "Elinor",
            "known_speaker_names",
            "unsupported_parameter",
            "not told apart",
        ),
        (
            "beam_size",
            "5",
            "beam_size",
            "unknown_parameter",
            "remove it or check its spelling",
        ),
        (
            "audio[format]",
            "wav",
            "audio[format]",
            "unknown_parameter",
            "remove it",
        ),
        ("model", "other", "model", "", "given more than once"),
    ] {
        let (status, found, found_code, message) = refused(&[text(name, value)]).await;
        let expected = (400, param, code);
        assert_eq!(
            (status, found.as_str(), found_code.as_str()),
            expected,
            "{name}={value}: {message}"
        );
        assert!(message.contains(said), "{name}={value}: {message}");
    }
    let (_, param, _, message) =
        refused(&[text("stream", "true"), text("response_format", "srt")]).await;
    assert_eq!(param, "response_format");
    assert!(message.contains("must be 'json' or 'text'"), "{message}");
    let (status, param, _, _) = told(send(&[MODEL]).await);
    assert_eq!((status, param.as_str()), (400, "file"));
    let (status, param, _, _) = told(send(&[FILE]).await);
    assert_eq!((status, param.as_str()), (400, "model"));
    let (status, param, _, message) = told(send(&[FILE, FILE, MODEL]).await);
    assert_eq!((status, param.as_str()), (400, "file"));
    assert!(message.contains("two parts named 'file'"), "{message}");
    let latin1: Part = ("prompt", None, b"na\xefve");
    let (status, param, _, message) = refused(&[latin1]).await;
    assert_eq!((status, param.as_str()), (400, "prompt"));
    assert!(message.contains("not UTF-8"), "{message}");
}

#[tokio::test]
async fn bodies_that_are_no_form_say_so() {
    let path = "/v1/audio/transcriptions";
    let form = format!("multipart/form-data; boundary={BOUNDARY}");
    for content_type in [
        None,
        Some("application/json"),
        Some("multipart/form-data"),
        Some("multipart/mixed; boundary=x"),
    ] {
        let result = post_body(path, content_type, Body::from("{}")).await;
        let (status, _, code, message) = told(result);
        assert_eq!(
            (status, code.as_str()),
            (415, "unsupported_media_type"),
            "{content_type:?}"
        );
        assert!(
            message.contains("'Content-Type: multipart/form-data; boundary=…'"),
            "{message}"
        );
    }
    let whole = body(&[FILE, MODEL]);
    for length in [0, 1, 40, 120, whole.len() - 30] {
        let result = post_body(path, Some(&form), Body::from(whole[..length].to_vec())).await;
        let (status, _, code, message) = told(result);
        assert_eq!(
            (status, code.as_str()),
            (400, "invalid_multipart"),
            "{length}: {message}"
        );
    }
    let large = vec![b'x'; LIMIT];
    let (status, _, code, message) = told(send(&[("file", Some("a.wav"), &large), MODEL]).await);
    assert_eq!(
        (status, code.as_str()),
        (413, "request_too_large"),
        "{message}"
    );
    let many: Vec<Part> = (0..200).map(|_| text("x", "y")).collect();
    let (status, _, code, message) = told(send(&many).await);
    assert_eq!((status, code.as_str()), (400, "invalid_multipart"));
    assert!(message.contains("more than 128 fields"), "{message}");
}
