//! What comes back for a good file.

use serde_json::{json, Value};

use crate::support::*;

#[tokio::test]
async fn every_format_has_its_body_and_its_type() {
    let (server, _) = server(&[" Hello", " world."]).await;
    let usage = json!({"type": "duration", "seconds": 2});
    let reply = transcribe(&server, &[]).await;
    assert_eq!(reply.ok(), json!({"text": "Hello world.", "usage": usage}));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    for (format, kind, body) in [
        ("text", "text/plain; charset=utf-8", "Hello world.\n"),
        (
            "srt",
            "application/x-subrip; charset=utf-8",
            "1\n00:00:00,000 --> 00:00:01,000\nHello\n\n2\n00:00:01,000 --> 00:00:02,000\nworld.\n\n",
        ),
        (
            "vtt",
            "text/vtt; charset=utf-8",
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nHello\n\n00:00:01.000 --> 00:00:02.000\nworld.\n\n",
        ),
    ] {
        let reply = transcribe(&server, &[("response_format", format)]).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind)));
        assert_eq!(reply.text(), body);
    }
}

#[tokio::test]
async fn verbose_json_has_all_of_openais_fields() {
    let (server, backend) = server(&[" Hello", " world."]).await;
    let body = transcribe(&server, &[("response_format", "verbose_json")])
        .await
        .ok();
    assert_eq!(body["task"], "transcribe");
    assert_eq!(body["language"], "german", "as it was detected");
    assert_eq!(body["duration"], 2.0);
    assert_eq!(body["text"], "Hello world.");
    assert_eq!(body.get("words"), None);
    let segments = body["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 2);
    let mut keys: Vec<&str> = segments[1]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    let expected = [
        "avg_logprob",
        "compression_ratio",
        "end",
        "id",
        "no_speech_prob",
        "seek",
        "start",
        "temperature",
        "text",
        "tokens",
    ];
    assert_eq!(keys, expected);
    assert_eq!(
        (
            &segments[1]["id"],
            &segments[1]["start"],
            &segments[1]["end"]
        ),
        (&json!(1), &json!(1.0), &json!(2.0))
    );
    assert_eq!(
        (&segments[1]["avg_logprob"], &segments[1]["no_speech_prob"]),
        (&json!(-0.25), &json!(0.125))
    );
    let window = backend.last();
    assert_eq!(window.prompt, [SOT]);
    assert_eq!(window.stop_ids, [EOT]);
    let asr = window.asr.unwrap();
    assert_eq!(
        (asr.detect, asr.forced, asr.timestamps, asr.words),
        (true, vec![TRANSCRIBE], true, false)
    );
    assert_eq!(asr.audio.samples().len(), 32_000);
}

#[tokio::test]
async fn granularities_in_every_spelling() {
    let (server, _) = server(&[" Hello", " world."]).await;
    let verbose = ("response_format", "verbose_json");
    let has = |body: &Value| (body.get("segments").is_some(), body.get("words").is_some());
    for (fields, expected) in [
        (&[("timestamp_granularities[]", "word")][..], (false, true)),
        (&[("timestamp_granularities[]", "segment")], (true, false)),
        (&[("timestamp_granularities", "word")], (false, true)),
        (
            &[
                ("timestamp_granularities[]", "word"),
                ("timestamp_granularities[]", "segment"),
            ],
            (true, true),
        ),
    ] {
        let body = transcribe(&server, &[&[verbose], fields].concat())
            .await
            .ok();
        assert_eq!(has(&body), expected, "{fields:?}");
        if expected.1 {
            let words = body["words"].as_array().unwrap();
            let texts: Vec<_> = words
                .iter()
                .map(|word| word["word"].as_str().unwrap())
                .collect();
            assert_eq!(texts, ["Hello", "world."]);
            assert!(words[0]["end"].as_f64() <= words[1]["start"].as_f64());
        }
    }
    let reply = transcribe(&server, &[verbose, ("timestamp_granularities[]", "letter")]).await;
    reply.error(400, Some("timestamp_granularities"));
}

#[tokio::test]
async fn a_stream_has_the_text_of_the_whole() {
    let (server, backend) = server(&[" Hello", " wörld", ". "]).await;
    let long = wav(&speech_for(95));
    let whole = post(&server, TRANSCRIPTIONS, &long, &[]).await.ok();
    assert!(backend.submissions() >= 4);
    let reply = post(&server, TRANSCRIPTIONS, &long, &[("stream", "true")]).await;
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("text/event-stream; charset=utf-8"))
    );
    let events = events(&reply);
    let (last, deltas) = events.split_last().unwrap();
    assert!(
        deltas.len() >= 4
            && deltas
                .iter()
                .all(|event| event["type"] == "transcript.text.delta")
    );
    let joined: String = deltas
        .iter()
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(joined, whole["text"]);
    let done =
        json!({"type": "transcript.text.done", "text": whole["text"], "usage": whole["usage"]});
    assert_eq!(last, &done);
}

#[tokio::test]
async fn log_probabilities_of_the_text_are_shown_in_openais_shape() {
    let (server, backend) = server(&[" h", "\u{f6}"]).await;
    let ask = ("include[]", "logprobs");
    let token = |byte: u8, shown: &str| {
        let logprob = -f64::from(byte) / 1024.0;
        json!({"token": shown, "logprob": logprob, "bytes": [byte]})
    };
    // The language, the task and times are no text.
    let first = [token(b' ', " "), token(b'h', "h")];
    let second = [token(0xC3, "bytes:\\xc3"), token(0xB6, "bytes:\\xb6")];
    let both = [&first[..], &second[..]].concat();
    let body = transcribe(&server, &[ask]).await.ok();
    assert_eq!(body["text"], "h\u{f6}");
    assert_eq!(body["logprobs"], json!(both));
    assert!(body["usage"].is_object());
    let seen = events(&transcribe(&server, &[ask, ("stream", "true")]).await);
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0]["logprobs"], json!(first));
    assert_eq!(seen[1]["logprobs"], json!(second));
    assert_eq!(seen[2]["logprobs"], json!(both));
    assert_eq!(backend.last().sampling.logprobs, Some(0));
    // Nobody pays for what was not asked for.
    let body = transcribe(&server, &[]).await.ok();
    assert!(body.get("logprobs").is_none());
    let seen = events(&transcribe(&server, &[("stream", "true")]).await);
    assert!(seen.iter().all(|event| event.get("logprobs").is_none()));
    assert_eq!(backend.last().sampling.logprobs, None);
}

#[tokio::test]
async fn silence_has_no_text_in_any_format_and_asks_no_worker() {
    let (server, backend) = server(&[" Thanks for watching!"]).await;
    let silence = wav(&[0.0; 160_000]);
    let body = post(
        &server,
        TRANSCRIPTIONS,
        &silence,
        &[("response_format", "verbose_json")],
    )
    .await
    .ok();
    assert_eq!((&body["text"], &body["segments"]), (&json!(""), &json!([])));
    for (format, expected) in [("text", "\n"), ("srt", ""), ("vtt", "WEBVTT\n\n")] {
        let reply = post(
            &server,
            TRANSCRIPTIONS,
            &silence,
            &[("response_format", format)],
        )
        .await;
        assert_eq!((reply.status, reply.text()), (200, expected));
    }
    assert_eq!(backend.submissions(), 0);
    assert_eq!(
        metric(&server, "denizen_audio_silent_windows_total").await,
        4.0
    );
}

#[tokio::test]
async fn content_decides_and_not_the_name() {
    let (server, backend) = server(&[" Hello"]).await;
    for (asset_name, name) in [
        ("recorder.webm", Some("rec.wav")),
        ("opus.webm", None),
        ("aac.m4a", Some("x.mp3")),
        ("speech.flac", Some("../../etc/passwd")),
    ] {
        let file = asset(&format!("audio/{asset_name}"));
        let body = form(&file, name, &[("model", "whisper")]);
        let reply = request(
            server.address,
            "POST",
            TRANSCRIPTIONS,
            &[("content-type", CONTENT_TYPE)],
            &body,
        )
        .await;
        // Without a file name a part is a field like any other to some readers; here `file` is always the file.
        assert_eq!(reply.ok()["text"], "Hello", "{asset_name} as {name:?}");
        let samples = backend.last().asr.unwrap().audio.samples().len();
        assert!(
            samples.abs_diff(32_000) < 2_000,
            "{samples} samples of {asset_name}"
        );
    }
}

#[tokio::test]
async fn language_prompt_temperature_and_task_reach_the_window() {
    let (server, backend) = server(&[" Hallo"]).await;
    let body = transcribe(
        &server,
        &[
            ("language", "German"),
            ("temperature", "0.4"),
            ("response_format", "verbose_json"),
        ],
    );
    assert_eq!(body.await.ok()["language"], "german");
    let window = backend.last();
    assert_eq!(window.prompt, [SOT, DE, TRANSCRIBE]);
    assert_eq!(window.sampling.temperature, 0.4);
    assert!(!window.asr.unwrap().detect);
    let body = post(
        &server,
        TRANSLATIONS,
        &speech(),
        &[("response_format", "verbose_json")],
    )
    .await
    .ok();
    assert_eq!(
        (&body["task"], &body["language"]),
        (&json!("translate"), &json!("english"))
    );
    assert_eq!(backend.last().asr.unwrap().forced, [TRANSLATE]);
    transcribe(
        &server,
        &[("model", "english"), ("prompt", "ab <|im_end|>")],
    )
    .await
    .ok();
    // Special tokens in a prompt are text.
    let prompt: Vec<u32> = " ab <|im_end|>".bytes().map(u32::from).collect();
    assert_eq!(
        backend.last().prompt,
        [&[PREV][..], &prompt, &[SOT]].concat()
    );
    transcribe(&server, &[("prompt", &"Kubernetes, etcd, ".repeat(200))])
        .await
        .ok();
    let window = backend.last();
    assert_eq!(window.prompt.len(), 1 + 223 + 3);
    assert!(window.prompt.len() + window.max_tokens as usize <= 448);
}

#[tokio::test]
async fn long_audio_is_heard_window_by_window_or_at_once() {
    let (server, backend) = server(&[" a", " b"]).await;
    let long = wav(&speech_for(95));
    let body = post(
        &server,
        TRANSCRIPTIONS,
        &long,
        &[("response_format", "verbose_json"), ("language", "en")],
    )
    .await
    .ok();
    let heard = backend.submissions();
    let mut at = 0.0;
    for segment in body["segments"].as_array().unwrap() {
        let (start, end) = (
            segment["start"].as_f64().unwrap(),
            segment["end"].as_f64().unwrap(),
        );
        assert!(start >= at && end > start && end <= 95.0);
        at = start;
    }
    assert!(heard >= 4);
    assert!(backend.last().prompt.len() > 3, "with the text before it");
    for chunking in [
        "auto",
        "{\"type\": \"server_vad\", \"silence_duration_ms\": 100}",
    ] {
        let before = backend.submissions();
        post(
            &server,
            TRANSCRIPTIONS,
            &long,
            &[("chunking_strategy", chunking), ("language", "en")],
        )
        .await
        .ok();
        let submitted = backend.submitted.lock().unwrap();
        assert!(submitted.len() - before >= 4);
        let mut windows = submitted[before..].iter();
        assert!(windows.all(|window| window.prompt == [SOT, EN, TRANSCRIBE]));
    }
    assert_eq!(metric(&server, "denizen_audio_files_total").await, 3.0);
    assert_eq!(metric(&server, "denizen_audio_seconds_total").await, 285.0);
    assert_eq!(
        metric(&server, "denizen_audio_windows_total").await,
        backend.submissions() as f64
    );
}

#[tokio::test]
async fn text_and_speech_stand_side_by_side() {
    let backend = Scripted::new(models(), |request| match request.asr {
        Some(_) => says(request, &[" Hello"]),
        None => [
            bytes("Hi"),
            vec![done(denizen_frontend::route::FinishReason::Stop)],
        ]
        .concat(),
    });
    let server = Server::start(backend).await;
    let list = server.get("/v1/models").await.ok();
    let kinds: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["asr", "asr", "text"]);
    assert_eq!(list["data"][0]["max_model_len"], 448);
    let chat = json!({"model": "tiny", "prompt": "x"});
    let (text, speech) = tokio::join!(
        server.post("/v1/completions", &chat),
        transcribe(&server, &[])
    );
    assert_eq!(text.ok()["choices"][0]["text"], "Hi");
    assert_eq!(speech.ok()["text"], "Hello");
}
