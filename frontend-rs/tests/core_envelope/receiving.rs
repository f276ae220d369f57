//! What comes from a worker.

use super::*;

#[test]
fn decodes_what_a_speech_model_says() {
    let FromWorker::Ready { models, .. } = body("ready_asr") else {
        panic!("not READY");
    };
    let kinds: Vec<_> = models
        .iter()
        .map(|m| (m.kind.as_str(), m.context))
        .collect();
    assert_eq!(kinds, [("text", 8192), ("asr", 448)]);
    let asr = |name| match body(name) {
        FromWorker::Done(done) => done.asr.expect(name),
        other => panic!("{other:?}"),
    };
    let plain = AsrResult {
        no_speech: 0.0625,
        avg_logprob: -0.25,
        times: vec![],
    };
    assert_eq!(asr("done_asr"), plain);
    let words = AsrResult {
        no_speech: 0.5,
        avg_logprob: -1.5,
        times: vec![0.0, 0.5, 29.75],
    };
    assert_eq!(asr("done_asr_words"), words);
}

#[test]
fn decodes_what_a_model_that_speaks_says() {
    let FromWorker::Ready { models, .. } = body("ready_tts") else {
        panic!("not READY");
    };
    let model = &models[0];
    assert_eq!((model.kind.as_str(), model.sample_rate), ("tts", 24_000));
    assert_eq!(model.voices, ["low", "high"]);
    let chunk = AudioChunk {
        index: 3,
        samples: 1920,
    };
    assert_eq!(body("audio"), FromWorker::Audio(chunk));
    let FromWorker::Done(done) = body("done_tts") else {
        panic!("not DONE");
    };
    assert_eq!((done.samples, done.usage.completion), (Some(3840), 2));
}

#[test]
fn a_model_that_speaks_without_a_rate_is_refused() {
    let mut bytes = golden("ready_tts");
    let key = b"sample_rate";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap();
    bytes[at] = b'S';
    assert_eq!(decode(&bytes), Err(DecodeError::Missing("sample_rate")));
}

#[test]
fn decodes_hello_ready_and_bye() {
    let hello = WorkerHello {
        abi: "1.0".into(),
        schema: 1,
        version: "0.1.0".into(),
        pid: 99,
        python: "3.11.9".into(),
        torch: "2.11.0".into(),
        device: "cuda:1".into(),
    };
    assert_eq!(body("hello_worker"), FromWorker::Hello(hello));
    let smol = ReadyModel {
        name: "smol".into(),
        family: "llama".into(),
        kind: "text".into(),
        context: 8192,
        vocab: 49152,
        rows: 64,
        kv_tokens: 131_072,
        fingerprint: "f00d".into(),
        ..ReadyModel::default()
    };
    let qwen = ReadyModel {
        name: "qwen".into(),
        family: "qwen3_5".into(),
        kind: "text".into(),
        context: 262_144,
        vocab: 248_320,
        rows: 256,
        kv_tokens: 5_000_000_000,
        fingerprint: String::new(),
        ..ReadyModel::default()
    };
    assert_eq!(
        body("ready"),
        FromWorker::Ready {
            models: vec![smol, qwen],
            credits: 300
        }
    );
    assert_eq!(
        body("bye"),
        FromWorker::Bye {
            why: "drained".into()
        }
    );
}

#[test]
fn decodes_tokens_with_and_without_logprobs() {
    let row = |request, index, token, logprob| TokenRow {
        request,
        index,
        token,
        logprob,
    };
    let plain = vec![
        row(REQUEST, 0, 5, None),
        row(1 << 32 | 1, 300, 151_643, None),
    ];
    assert_eq!(body("tokens"), FromWorker::Tokens(plain));
    let with = vec![
        row(
            REQUEST,
            1,
            6,
            Some(logprob(-0.125, &[(6, -0.125), (9, -2.5)])),
        ),
        row(REQUEST, 2, 7, Some(logprob(-1.0, &[]))),
    ];
    assert_eq!(body("tokens_logprobs"), FromWorker::Tokens(with));
}

#[test]
fn decodes_done_and_error() {
    let done = Done {
        reason: FinishReason::Stop,
        stop_id: Some(2),
        usage: Usage {
            prompt: 3,
            completion: 11,
            cached: 2,
        },
        prompt_logprobs: vec![],
        asr: None,
        samples: None,
    };
    assert_eq!(body("done_stop"), FromWorker::Done(done));
    let done = Done {
        reason: FinishReason::Length,
        stop_id: None,
        usage: Usage {
            prompt: 3,
            completion: 1,
            cached: 0,
        },
        prompt_logprobs: vec![
            None,
            Some(logprob(-1.5, &[(4, -0.25)])),
            Some(logprob(-3.0, &[])),
        ],
        asr: None,
        samples: None,
    };
    assert_eq!(body("done_prompt_logprobs"), FromWorker::Done(done));
    let error = WorkerError {
        code: "bad_request".into(),
        message: "top_k is beyond the vocabulary".into(),
        param: Some("top_k".into()),
        retryable: false,
    };
    assert_eq!(body("error"), FromWorker::Error(error));
    let FromWorker::Error(error) = body("error_worker") else {
        panic!("not an error")
    };
    assert!(error.retryable && error.param.is_none());
}

#[test]
fn decodes_stats() {
    let load = Load {
        model: "smol".into(),
        done: 1 << 20,
        total: 269 << 20,
    };
    assert_eq!(
        body("stats_load"),
        FromWorker::Stats(Stats {
            load: Some(load),
            ..Stats::default()
        })
    );
    let stats = Stats {
        load: None,
        waiting: 1,
        running: 2,
        rows: 3,
        rows_total: 64,
        kv_pages: 5,
        kv_pages_total: 8192,
        state_slots: 7,
        state_slots_total: 65,
        preemptions: 9,
        steps: 10_000_000_000,
        prefill_tokens: 11,
        decode_tokens: 12,
    };
    assert_eq!(body("stats"), FromWorker::Stats(stats));
}
