//! Audio of models that speak.

use std::sync::Arc;

use denizen_frontend::model::Speaker;
use denizen_frontend::route::envelope::{AudioChunk, Done, FromWorker, ReadyModel};
use denizen_frontend::route::{
    Backend, Event, FinishReason, Generate, Generation, Notice, Usage, Utterance,
};

use crate::support::*;

const RATE: u32 = 24_000;

/// One worker whose model speaks.
fn bench() -> Bench {
    let bench = Bench::new(1, 8);
    assert_eq!(bench.model.kind(), "text");
    let ready = FromWorker::Ready {
        models: vec![ReadyModel {
            name: "m".into(),
            kind: "tts".into(),
            sample_rate: RATE,
            voices: vec!["low".into()],
            ..ReadyModel::default()
        }],
        credits: 8,
    };
    assert_eq!(bench.says(0, 0, ready), Some(Notice::Ready));
    bench
}

fn speech(bench: &Bench) -> Generate {
    Generate {
        tts: Some(Utterance {
            voice: "low".into(),
            language: None,
            instructions: None,
            speed: 1.0,
        }),
        ..generate(&bench.model)
    }
}

fn submit(bench: &Bench) -> (Generation, u64) {
    let generation = Backend::submit(&bench.router, speech(bench)).unwrap();
    (generation, *bench.links[0].submitted().last().unwrap())
}

fn bytes(samples: &[f32]) -> Vec<u8> {
    samples.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// AUDIO number `index` that says it has `samples`, with these bytes beside it.
fn audio(bench: &Bench, request: u64, index: u32, samples: u32, attachment: Option<Vec<u8>>) {
    let chunk = AudioChunk { index, samples };
    bench.says_with(0, request, FromWorker::Audio(chunk), attachment);
}

fn done(bench: &Bench, request: u64, reason: FinishReason, samples: Option<u64>) {
    let done = Done {
        reason,
        stop_id: None,
        usage: Usage {
            prompt: 2,
            completion: 3,
            cached: 0,
        },
        prompt_logprobs: vec![],
        asr: None,
        samples,
    };
    bench.says(0, request, FromWorker::Done(done));
}

#[test]
fn a_ready_worker_tells_what_its_models_say() {
    let bench = bench();
    assert_eq!(bench.model.kind(), "tts");
    let speaker = Speaker {
        sample_rate: RATE,
        voices: vec!["low".into()],
    };
    assert_eq!(bench.model.speaker(), Some(&speaker));
}

#[tokio::test]
async fn audio_comes_in_order_and_is_counted() {
    let bench = bench();
    let (generation, request) = submit(&bench);
    audio(&bench, request, 0, 2, Some(bytes(&[0.5, -1.0])));
    audio(&bench, request, 1, 1, Some(bytes(&[0.25])));
    done(&bench, request, FinishReason::Stop, Some(3));
    let events = events(generation).await;
    let said: Vec<&[f32]> = events
        .iter()
        .filter_map(|event| match event {
            Event::Audio(samples) => Some(&samples[..]),
            _ => None,
        })
        .collect();
    assert_eq!(said, [&[0.5, -1.0][..], &[0.25]]);
    assert!(matches!(
        events.last(),
        Some(Event::Done {
            reason: FinishReason::Stop,
            ..
        })
    ));
    let seconds = bench.metric("denizen_speech_seconds_total{model=\"m\"}");
    assert!((seconds - 3.0 / f64::from(RATE)).abs() < 1e-12);
    assert_eq!(
        bench.metric("denizen_output_tokens_total{model=\"m\"}"),
        3.0
    );
    assert_eq!(
        bench.metric("denizen_time_to_first_token_seconds_count{model=\"m\"}"),
        1.0
    );
}

#[tokio::test]
async fn audio_that_is_not_what_it_says_fails_the_request() {
    let four = Some(bytes(&[0.0; 4]));
    for (index, samples, attachment) in [
        (1, 4, four.clone()),
        (0, 3, four.clone()),
        (0, 4, None),
        (0, 0, Some(vec![])),
        (0, 1, Some(vec![0; 5])),
        (0, u32::MAX, four),
    ] {
        let bench = bench();
        let (generation, request) = submit(&bench);
        audio(&bench, request, index, samples, attachment);
        let failed = events(generation).await;
        assert_eq!(failure(&failed).code, "worker_protocol");
        assert_eq!(bench.links[0].of_kind(ABORT), [request]);
    }
}

#[tokio::test]
async fn an_end_that_misses_audio_is_a_failure() {
    for (reason, samples, whole) in [
        (FinishReason::Stop, Some(1), true),
        (FinishReason::Length, Some(1), true),
        (FinishReason::Stop, Some(2), false),
        (FinishReason::Stop, None, false),
        (FinishReason::Length, Some(0), false),
    ] {
        let bench = bench();
        let (generation, request) = submit(&bench);
        audio(&bench, request, 0, 1, Some(bytes(&[0.5])));
        done(&bench, request, reason, samples);
        let events = events(generation).await;
        match events.last().unwrap() {
            Event::Done { .. } => assert!(whole, "{samples:?}"),
            _ => {
                assert!(!whole, "{samples:?}");
                assert_eq!(failure(&events).code, "worker_protocol");
            }
        }
        assert_eq!(bench.metric("denizen_requests_in_flight"), 0.0);
    }
}

#[tokio::test]
async fn speech_without_a_sound_is_an_end_like_others() {
    let bench = bench();
    let (generation, request) = submit(&bench);
    done(&bench, request, FinishReason::Stop, Some(0));
    assert!(matches!(events(generation).await[..], [Event::Done { .. }]));
}

#[tokio::test]
async fn tokens_are_no_speech_and_audio_is_no_text() {
    let bench = bench();
    let (spoken, request) = submit(&bench);
    bench.token(0, request, 0);
    assert_eq!(failure(&events(spoken).await).code, "worker_protocol");
    let text = bench.submit();
    let request = *bench.links[0].submitted().last().unwrap();
    audio(&bench, request, 0, 1, Some(bytes(&[0.0])));
    assert_eq!(failure(&events(text).await).code, "worker_protocol");
}

#[tokio::test]
async fn a_reader_that_stands_still_costs_bounded_memory_and_is_told() {
    let bench = bench();
    let (mut generation, request) = submit(&bench);
    let second = bytes(&vec![0.5; RATE as usize]);
    for index in 0..400 {
        audio(&bench, request, index, RATE, Some(second.clone()));
    }
    let mut seconds = 0;
    let mut last = None;
    while let Some(event) = generation.next().await {
        seconds += usize::from(matches!(event, Event::Audio(_)));
        last = Some(event);
    }
    assert_eq!(failure(&[last.unwrap()]).code, "slow_client");
    let most = 16 << 20;
    assert!((most / second.len()..=most / second.len() + 2).contains(&seconds));
    assert_eq!(bench.links[0].of_kind(ABORT), [request]);
    assert_eq!(bench.metric("denizen_requests_in_flight"), 0.0);
}

#[tokio::test]
async fn a_client_that_leaves_aborts_and_late_audio_is_dropped() {
    let bench = bench();
    let (generation, request) = submit(&bench);
    audio(&bench, request, 0, 1, Some(bytes(&[0.0])));
    drop(generation);
    assert_eq!(bench.links[0].of_kind(ABORT), [request]);
    audio(&bench, request, 1, 1, Some(bytes(&[0.0])));
    // The worker says what it has sent, or not, where it was told to stop.
    done(&bench, request, FinishReason::Abort, None);
    audio(&bench, request, 2, 1, Some(bytes(&[0.0])));
    assert_eq!(
        bench.metric("denizen_dropped_envelopes_total{reason=\"unknown_request\"}"),
        1.0
    );
    assert_eq!(
        bench.metric("denizen_requests_total{model=\"m\",outcome=\"abort\"}"),
        1.0
    );
}

#[tokio::test]
async fn speech_moves_to_another_worker_before_its_first_sound_alone() {
    let mut bench = bench();
    let (silent, first) = submit(&bench);
    let (started, second) = submit(&bench);
    audio(&bench, second, 0, 1, Some(bytes(&[0.0])));
    bench.router.worker_died(0, "it was killed by SIGKILL");
    assert_eq!(failure(&events(started).await).code, "worker_died");
    bench.start(0, 8);
    assert_eq!(bench.links[0].submitted(), [first]);
    audio(&bench, first, 0, 1, Some(bytes(&[0.0])));
    done(&bench, first, FinishReason::Stop, Some(1));
    assert!(matches!(
        events(silent).await.last(),
        Some(Event::Done { .. })
    ));
    // What a second life says of its models changes nothing.
    let again = Speaker {
        sample_rate: 8_000,
        voices: vec![],
    };
    Arc::clone(&bench.model).speaks(again);
    assert_eq!(bench.model.speaker().unwrap().sample_rate, RATE);
}
