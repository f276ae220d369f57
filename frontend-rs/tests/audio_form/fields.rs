//! What is read out of a form, in every spelling clients use.

use axum::body::Body;
use denizen_frontend::audio::{decode, Limits};
use denizen_frontend::http::multipart::{Chunking, Granularities, ResponseFormat, VoiceActivity};
use denizen_frontend::speech::Task;

use crate::support::{accepted, body, post_body, refused, send, text, Part, BOUNDARY, FILE, MODEL};

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
        text("max_tokens", "27"),
        text("ignore_eos", "true"),
        text("timestamp_granularities[]", "word"),
        text("chunking_strategy", "auto"),
        text("stream", "False"),
        text("user", "me"),
    ])
    .await;
    assert_eq!(form.language, Some("de"));
    assert_eq!(form.prompt.as_deref(), Some("Dashwood, Norland, naïve"));
    assert_eq!(form.response_format, ResponseFormat::VerboseJson);
    assert_eq!(form.temperature, Some(0.2));
    assert_eq!((form.max_tokens, form.ignore_eos), (Some(27), true));
    assert_eq!(
        form.granularities,
        Granularities {
            segment: false,
            word: true
        }
    );
    assert_eq!(
        (form.stream, form.logprobs, form.chunking),
        (false, false, Chunking::Auto)
    );
    let form = accepted(&[text("include[]", "logprobs"), text("stream", "true")]).await;
    assert!(form.logprobs && form.stream);

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
