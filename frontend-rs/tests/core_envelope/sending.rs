//! What goes to a worker, byte for byte as the golden files.

use super::*;

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
