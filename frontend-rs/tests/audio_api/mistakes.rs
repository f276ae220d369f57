//! Requests and files that cannot be served, and that the next one can.

use denizen_frontend::http::HttpConfig;
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn broken_files_are_told_what_is_wrong_and_harm_nobody() {
    let (server, backend) = server(&[" Hello"]).await;
    let good = speech();
    for (file, says, code) in [
        (vec![], "empty", "invalid_audio"),
        (b"hello, I am text".to_vec(), "not audio", "invalid_audio"),
        (good[..20].to_vec(), "cut off", "invalid_audio"),
        (good[..20_000].to_vec(), "cut off", "invalid_audio"),
        (
            asset("audio/speech.flac")[..9_000].to_vec(),
            "cut off",
            "invalid_audio",
        ),
        (
            asset("audio/silk.opus")[..2_000].to_vec(),
            "cut off",
            "invalid_audio",
        ),
        (asset("audio/ac3.mp4"), "not built in", "invalid_audio"),
        (
            asset("audio/silent-film.mp4"),
            "no audio track",
            "invalid_audio",
        ),
        (vec![0xff; 5_000], "not audio", "invalid_audio"),
    ] {
        let reply = post(&server, TRANSCRIPTIONS, &file, &[]).await;
        let message = reply.error(400, Some("file"));
        assert!(message.contains(says), "{message}");
        assert_eq!(reply.code(), code);
        transcribe(&server, &[]).await.ok();
    }
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(backend.live(), 0);
}

#[tokio::test]
async fn forms_that_are_none() {
    let (server, _) = server(&[" Hello"]).await;
    let reply = server
        .post(TRANSCRIPTIONS, &json!({"model": "whisper"}))
        .await;
    reply.error(415, None);
    let whole = form(&speech(), Some("a.wav"), &[("model", "whisper")]);
    let content_type = [("content-type", CONTENT_TYPE)];
    let cut = &whole[..whole.len() - 30];
    let reply = request(server.address, "POST", TRANSCRIPTIONS, &content_type, cut).await;
    assert!(reply.error(400, None).contains("closing boundary"));
    let body =
        String::from_utf8_lossy(&form(b"", None, &[])).replace("name=\"file\"", "name=\"user\"");
    let reply = request(
        server.address,
        "POST",
        TRANSCRIPTIONS,
        &content_type,
        body.as_bytes(),
    )
    .await;
    reply.error(400, Some("model"));
}

#[tokio::test]
async fn models_of_the_other_kind_are_refused_on_every_route() {
    let (server, backend) = server(&[" Hello"]).await;
    for path in [TRANSCRIPTIONS, TRANSLATIONS] {
        let reply = post(&server, path, &speech(), &[("model", "tiny")]).await;
        assert!(reply.error(400, Some("model")).contains("does not hear"));
        let reply = post(&server, path, &speech(), &[("model", "nobody")]).await;
        assert!(reply.error(404, Some("model")).contains("'whisper'"));
    }
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({"model": "whisper", "messages": [{"role": "user", "content": "x"}]}),
        ),
        (
            "/v1/completions",
            json!({"model": "whisper", "prompt": "x"}),
        ),
        ("/tokenize", json!({"model": "whisper", "prompt": "x"})),
        ("/detokenize", json!({"model": "whisper", "tokens": [1]})),
    ] {
        let reply = server.post(path, &body).await;
        assert!(
            reply
                .error(400, Some("model"))
                .contains("/v1/audio/transcriptions"),
            "{path}"
        );
    }
    assert_eq!(backend.submissions(), 0);
}

#[tokio::test]
async fn what_a_model_cannot_do_names_the_parameter() {
    let (server, _) = server(&[" Hello"]).await;
    for (fields, param) in [
        (&[("language", "yue")][..], "language"),
        (&[("language", "klingon")], "language"),
        (&[("model", "english"), ("language", "de")], "language"),
        (&[("temperature", "2")], "temperature"),
        (&[("response_format", "docx")], "response_format"),
        (&[("include[]", "words")], "include"),
        (
            &[
                ("include[]", "logprobs"),
                ("response_format", "verbose_json"),
            ],
            "include",
        ),
        (
            &[("stream", "true"), ("response_format", "srt")],
            "response_format",
        ),
        (&[("chunking_strategy", "sometimes")], "chunking_strategy"),
        (&[("tempersture", "0")], "tempersture"),
    ] {
        transcribe(&server, fields).await.error(400, Some(param));
    }
    let reply = post(&server, TRANSLATIONS, &speech(), &[("model", "english")]).await;
    assert!(reply.error(400, Some("model")).contains("cannot translate"));
    transcribe(&server, &[("model", "english"), ("language", "en")])
        .await
        .ok();
}

#[tokio::test]
async fn limits_are_the_audio_routes_own() {
    let backend = Scripted::new(models(), |request| says(request, &[" Hello"]));
    let config = HttpConfig {
        max_body: 1_000,
        max_upload: 100_000,
        max_audio: std::time::Duration::from_secs(3),
        ..HttpConfig::default()
    };
    let server = Server::with(config, backend).await;
    transcribe(&server, &[]).await.ok();
    let reply = post(&server, TRANSCRIPTIONS, &wav(&vec![0.0; 60_000]), &[]).await;
    assert_eq!(
        (reply.status, reply.code()),
        (413, json!("request_too_large"))
    );
    let long = wav(&vec![0.0; 49_000]);
    let reply = post(&server, TRANSCRIPTIONS, &long, &[]).await;
    reply.error(400, Some("file"));
    assert_eq!(reply.code(), "audio_too_long");
    let reply = server
        .post(
            "/v1/completions",
            &json!({"model": "tiny", "prompt": "x".repeat(2_000)}),
        )
        .await;
    assert_eq!(reply.status, 413);
}
