//! What is said about mistakes in a form.

use axum::body::Body;
use denizen_frontend::audio::{decode, Limits};
use denizen_frontend::http::ApiError;

use crate::support::{
    body, post_body, refused, send, text, told, Part, BOUNDARY, FILE, LIMIT, MODEL,
};

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
            "max_tokens",
            "0",
            "max_tokens",
            "",
            "a whole number of at least 1, not \"0\"",
        ),
        (
            "max_tokens",
            "2.5",
            "max_tokens",
            "",
            "a whole number of at least 1",
        ),
        ("ignore_eos", "true", "ignore_eos", "", "needs 'max_tokens'"),
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
