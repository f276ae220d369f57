//! The Rust envelope codec against the golden files that Python reads too, and against garbage.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use denizen_frontend::route::envelope::{
    decode, encode, AudioChunk, DecodeError, Done, FromWorker, Load, ReadyModel, RequestId, Stats,
    Submit, ToWorker, TokenRow, WorkerError, WorkerHello, MAX_BYTES,
};
use denizen_frontend::route::{
    AsrResult, AsrWindow, FinishReason, Pcm, Sampling, TokenLogprob, Usage, Utterance,
};
use proptest::prelude::*;

const REQUEST: u64 = 7 << 32 | 42;

fn golden(name: &str) -> Vec<u8> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/golden/envelope/{name}.bin"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn body(name: &str) -> FromWorker {
    decode(&golden(name)).expect(name).body.expect(name)
}

fn logprob(logprob: f32, top: &[(u32, f32)]) -> TokenLogprob {
    TokenLogprob {
        logprob,
        top: top.to_vec(),
    }
}

#[test]
fn request_id_keeps_slot_low_and_generation_high() {
    let id = RequestId {
        slot: 42,
        generation: 7,
    };
    assert_eq!(id.to_wire(), REQUEST);
    assert_eq!(RequestId::from_wire(REQUEST), id);
}

#[test]
fn encodes_hello_abort_drain_and_bye_as_the_golden_files() {
    let tokenizers = BTreeMap::from([("smol".to_owned(), "ab".repeat(32))]);
    let hello = ToWorker::Hello {
        abi: "1.0",
        version: "0.1.0",
        pid: 4321,
        tokenizers: &tokenizers,
    };
    assert_eq!(encode(&hello, 0, 0), golden("hello_frontend"));
    assert_eq!(encode(&ToWorker::Abort, REQUEST, 3), golden("abort"));
    assert_eq!(encode(&ToWorker::Drain, 0, 12), golden("drain"));
    assert_eq!(
        encode(&ToWorker::Bye { why: "drained" }, 0, 13),
        golden("bye")
    );
}

#[test]
fn encodes_submit_as_the_golden_files() {
    let defaults = Sampling {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 0,
        logit_bias: vec![],
        logprobs: None,
    };
    let minimal = Submit {
        model: "smol",
        prompt: &[1, 2, 49151],
        max_tokens: 1,
        min_tokens: 0,
        stop_ids: &[],
        sampling: &defaults,
        prompt_logprobs: None,
        asr: None,
        tts: None,
    };
    assert_eq!(
        encode(&ToWorker::Submit(minimal), REQUEST, 2),
        golden("submit_minimal")
    );
    let sampling = Sampling {
        temperature: 0.0,
        top_k: 40,
        top_p: 0.25,
        min_p: 0.5,
        repetition_penalty: 1.5,
        presence_penalty: -0.5,
        frequency_penalty: 2.0,
        seed: u64::MAX,
        logit_bias: vec![(7, -100.0), (49151, 0.5)],
        logprobs: Some(0),
    };
    let full = Submit {
        model: "smøl",
        prompt: &[0, 1, 65536, u32::MAX],
        max_tokens: 4096,
        min_tokens: 3,
        stop_ids: &[2, 49153],
        sampling: &sampling,
        prompt_logprobs: Some(20),
        asr: None,
        tts: None,
    };
    assert_eq!(
        encode(&ToWorker::Submit(full), REQUEST, 70000),
        golden("submit_full")
    );
}

#[test]
fn encodes_windows_as_the_golden_files() {
    let mut sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 7,
        logit_bias: vec![],
        logprobs: None,
    };
    let audio = Pcm::new(Arc::new(vec![0.5, -0.25, 1.0]), 1..9);
    assert_eq!(audio.bytes(), [0, 0, 0x80, 0xbe, 0, 0, 0x80, 0x3f]);
    let mut window = AsrWindow {
        audio,
        continues: false,
        timestamps: true,
        detect: false,
        forced: vec![],
        words: false,
    };
    let submit = Submit {
        model: "turbo",
        prompt: &[50258, 50259, 50360],
        max_tokens: 224,
        min_tokens: 0,
        stop_ids: &[50257],
        sampling: &sampling,
        prompt_logprobs: None,
        asr: Some(&window),
        tts: None,
    };
    assert_eq!(
        encode(&ToWorker::Submit(submit), REQUEST, 71),
        golden("submit_asr")
    );
    (window.timestamps, window.detect, window.words) = (false, true, true);
    window.forced = vec![50360, 50364];
    (sampling.temperature, sampling.seed) = (0.5, 8);
    let submit = Submit {
        model: "turbo",
        prompt: &[50362, 440, 50258],
        max_tokens: 100,
        min_tokens: 0,
        stop_ids: &[50257],
        sampling: &sampling,
        prompt_logprobs: None,
        asr: Some(&window),
        tts: None,
    };
    assert_eq!(
        encode(&ToWorker::Submit(submit), REQUEST, 72),
        golden("submit_asr_full")
    );
}

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
fn encodes_speech_as_the_golden_files() {
    let mut sampling = Sampling {
        temperature: 0.5,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 7,
        logit_bias: vec![],
        logprobs: None,
    };
    let mut utterance = Utterance {
        voice: "low".into(),
        language: None,
        instructions: None,
        speed: 1.0,
    };
    let submit = |max_tokens, sampling: &Sampling, utterance: &Utterance, sequence| {
        let submit = Submit {
            model: "voice",
            prompt: &[72, 105],
            max_tokens,
            min_tokens: 0,
            stop_ids: &[],
            sampling,
            prompt_logprobs: None,
            asr: None,
            tts: Some(utterance),
        };
        encode(&ToWorker::Submit(submit), REQUEST, sequence)
    };
    assert_eq!(
        submit(4094, &sampling, &utterance, 73),
        golden("submit_tts")
    );
    (sampling.temperature, sampling.seed) = (1.0, 8);
    utterance = Utterance {
        voice: "high".into(),
        language: Some("de"),
        instructions: Some("Whisper.".into()),
        speed: 1.5,
    };
    assert_eq!(
        submit(100, &sampling, &utterance, 74),
        golden("submit_tts_full")
    );
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

#[test]
fn understands_what_another_version_of_a_worker_sends() {
    assert_eq!(decode(&golden("foreign_unknown_kind")).unwrap().body, None);
    assert_eq!(
        body("foreign_nil_body"),
        FromWorker::Bye { why: String::new() }
    );
    for name in ["foreign_unknown_keys", "foreign_nil_is_missing"] {
        assert_eq!(
            body(name),
            FromWorker::Stats(Stats {
                running: 2,
                ..Stats::default()
            }),
            "{name}"
        );
    }
}

#[test]
fn names_what_is_wrong() {
    assert_eq!(decode(&[]), Err(DecodeError::Truncated));
    assert_eq!(
        decode(&[0x95, 2, 4, 5, 0, 0x80]),
        Err(DecodeError::Version(2))
    );
    assert_eq!(
        decode(&[0x95, 1, 7, 5, 0, 0x80]),
        Err(DecodeError::Missing("reason"))
    );
    assert_eq!(
        decode(&[0x95, 1, 11, 0, 0, 0x80, 0]),
        Err(DecodeError::Trailing)
    );
    assert_eq!(
        decode(&vec![0; MAX_BYTES + 1]),
        Err(DecodeError::TooLong(MAX_BYTES + 1))
    );
    let mut nested = vec![0x95, 1, 9, 0, 0, 0x81, 0xa1, b'x'];
    nested.extend([0x91; 5000]);
    nested.push(1);
    assert_eq!(decode(&nested), Err(DecodeError::TooDeep));
    // A length that promises four billion rows, with nothing behind it.
    let lie = [
        0x95, 1, 5, 0, 0, 0x81, 0xa4, b'r', b'o', b'w', b's', 0xdd, 0xff, 0xff, 0xff, 0xff,
    ];
    assert_eq!(decode(&lie), Err(DecodeError::Truncated));
}

fn any_golden() -> impl Strategy<Value = Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/envelope");
    let files: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "bin"))
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    assert!(files.len() > 10);
    proptest::sample::select(files)
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn damaged_envelopes_never_panic(
        mut bytes in any_golden(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = decode(&bytes);
    }
}
