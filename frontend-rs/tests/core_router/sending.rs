//! Where requests go, and what comes back.

use std::sync::atomic::Ordering;

use denizen_frontend::route::envelope::{Envelope, FromWorker, RequestId, Stats, WorkerError};
use denizen_frontend::route::{Backend, Event, FinishReason, Generation, SubmitError};

use crate::support::*;

#[tokio::test]
async fn the_least_loaded_worker_is_chosen() {
    let bench = Bench::new(3, 10);
    let kept: Vec<Generation> = (0..7).map(|_| bench.submit()).collect();
    let counts: Vec<usize> = bench
        .links
        .iter()
        .map(|link| link.submitted().len())
        .collect();
    assert_eq!(counts, [3, 2, 2]);
    let free = bench.links[1].submitted()[0];
    bench.done(1, free, FinishReason::Length);
    let _next = bench.submit();
    assert_eq!(bench.links[1].submitted().len(), 3);
    drop(kept);
}

#[tokio::test]
async fn a_model_goes_only_to_workers_that_host_it() {
    let bench = Bench::new(1, 10);
    let other = model("other");
    bench
        .router
        .set_models(vec![bench.model.clone(), other.clone()]);
    let refusal = Backend::submit(&bench.router, generate(&other))
        .err()
        .unwrap();
    assert!(
        matches!(refusal, SubmitError::NotReady { .. }),
        "{refusal:?}"
    );
    assert!(refusal.to_string().contains("'other'"));
}

#[tokio::test]
async fn what_exceeds_the_credits_waits_in_order_and_goes_when_there_is_room() {
    let bench = Bench::new(1, 2);
    let kept: Vec<Generation> = (0..5).map(|_| bench.submit()).collect();
    let link = &bench.links[0];
    assert_eq!(link.submitted().len(), 2);
    assert_eq!(bench.metric("denizen_requests_queued"), 3.0);
    assert_eq!(bench.metric("vllm:num_requests_waiting"), 3.0);
    assert_eq!(bench.metric("vllm:num_requests_running"), 2.0);
    for ended in 0..5 {
        bench.done(0, link.submitted()[ended], FinishReason::Length);
    }
    let slots: Vec<u32> = link
        .submitted()
        .iter()
        .map(|id| RequestId::from_wire(*id).slot)
        .collect();
    assert_eq!(slots, [0, 1, 2, 3, 4], "oldest first");
    for generation in kept {
        events(generation).await;
    }
    assert_eq!(bench.metric("denizen_requests_in_flight"), 0.0);
}

#[tokio::test]
async fn a_full_arena_keeps_the_request_in_the_queue() {
    let bench = Bench::new(1, 8);
    bench.links[0].full.store(true, Ordering::SeqCst);
    let generation = bench.submit();
    assert!(bench.links[0].submitted().is_empty());
    bench.links[0].full.store(false, Ordering::SeqCst);
    bench.router.pump();
    let id = bench.links[0].submitted()[0];
    bench.done(0, id, FinishReason::Stop);
    assert_eq!(events(generation).await.len(), 1);
}

#[tokio::test]
async fn an_abort_that_found_no_room_is_sent_later() {
    let bench = Bench::new(1, 8);
    let generation = bench.submit();
    bench.links[0].full.store(true, Ordering::SeqCst);
    drop(generation);
    assert!(bench.links[0].of_kind(ABORT).is_empty());
    bench.links[0].full.store(false, Ordering::SeqCst);
    bench.router.pump();
    assert_eq!(bench.links[0].of_kind(ABORT), bench.links[0].submitted());
}

#[tokio::test]
async fn a_request_that_can_never_fit_fails_at_once() {
    let bench = Bench::new(1, 8);
    bench.links[0].too_large.store(true, Ordering::SeqCst);
    let events = events(bench.submit()).await;
    assert_eq!(failure(&events).code, "request_too_large");
    assert!(!failure(&events).retryable);
}

#[tokio::test]
async fn tokens_come_back_in_order_and_the_terminal_is_last() {
    let bench = Bench::new(1, 8);
    let generation = bench.submit();
    let id = bench.links[0].submitted()[0];
    for index in 0..3 {
        bench.token(0, id, index);
    }
    bench.done(0, id, FinishReason::Stop);
    let events = events(generation).await;
    let ids: Vec<u32> = events
        .iter()
        .filter_map(|event| {
            if let Event::Token { id, .. } = event {
                Some(*id)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(ids, [0, 1, 2]);
    assert_eq!(
        bench.metric("denizen_output_tokens_total{model=\"m\"}"),
        3.0
    );
    assert_eq!(
        bench.metric("denizen_time_to_first_token_seconds_count{model=\"m\"}"),
        1.0
    );
    assert_eq!(
        bench.metric("denizen_inter_token_seconds_count{model=\"m\"}"),
        2.0
    );
}

#[tokio::test]
async fn what_follows_a_terminal_is_dropped_and_counted() {
    let bench = Bench::new(1, 8);
    let generation = bench.submit();
    let id = bench.links[0].submitted()[0];
    bench.done(0, id, FinishReason::Length);
    bench.done(0, id, FinishReason::Length);
    bench.token(0, id, 0);
    let error = WorkerError {
        code: "late".into(),
        ..WorkerError::default()
    };
    bench.says(0, id, FromWorker::Error(error));
    assert_eq!(events(generation).await.len(), 1);
    assert_eq!(
        bench.metric("denizen_dropped_envelopes_total{reason=\"unknown_request\"}"),
        3.0
    );
}

#[tokio::test]
async fn a_late_message_does_not_reach_the_next_request_of_its_slot() {
    let bench = Bench::new(1, 8);
    let first = bench.submit();
    let old = bench.links[0].submitted()[0];
    bench.done(0, old, FinishReason::Length);
    events(first).await;
    let second = bench.submit();
    let new = bench.links[0].submitted()[1];
    assert_eq!(
        RequestId::from_wire(old).slot,
        RequestId::from_wire(new).slot
    );
    bench.token(0, old, 0);
    bench.done(0, old, FinishReason::Length);
    bench.token(0, new, 0);
    bench.done(0, new, FinishReason::Length);
    assert_eq!(events(second).await.len(), 2);
}

#[tokio::test]
async fn a_worker_cannot_speak_for_another_workers_request_or_for_its_own_past() {
    let mut bench = Bench::new(2, 8);
    let generation = bench.submit();
    let id = bench.links[0].submitted()[0];
    bench.done(1, id, FinishReason::Length);
    let envelope = Envelope {
        request: 0,
        sequence: 0,
        body: Some(FromWorker::Stats(Stats::default())),
        attachment: None,
    };
    assert_eq!(bench.router.receive(0, 0, envelope), None);
    assert_eq!(
        bench.metric("denizen_dropped_envelopes_total{reason=\"old_epoch\"}"),
        1.0
    );
    bench.token(0, id, 0);
    bench.router.worker_died(0, "killed");
    bench.start(0, 8);
    assert_eq!(failure(&events(generation).await).code, "worker_died");
}
