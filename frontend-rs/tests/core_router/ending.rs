//! Deaths, departures, refusals, draining.

use std::sync::Arc;

use denizen_frontend::route::envelope::{FromWorker, WorkerError};
use denizen_frontend::route::{
    AsrWindow, Backend, Failure, FinishReason, Generation, Pcm, SubmitError,
};

use crate::support::*;

#[tokio::test]
async fn death_fails_started_requests_and_moves_the_others_once() {
    let mut bench = Bench::new(2, 8);
    let mut kept: Vec<Generation> = (0..4).map(|_| bench.submit()).collect();
    let on_zero = bench.links[0].submitted();
    assert_eq!(on_zero.len(), 2);
    bench.token(0, on_zero[0], 0);
    bench.router.worker_died(0, "it was killed by SIGKILL");
    // The one without a token went to the other worker, under the same id.
    assert_eq!(bench.links[1].submitted().last(), Some(&on_zero[1]));
    let moved = kept.remove(2);
    let started = events(kept.remove(0)).await;
    assert!(failure(&started).retryable);
    assert_eq!(failure(&started).code, "worker_died");
    assert!(failure(&started).message.contains("SIGKILL"));
    // Its second worker dies, too: now it fails, while requests that were never moved wait.
    bench.router.worker_died(1, "it was killed by SIGKILL");
    assert_eq!(failure(&events(moved).await).code, "worker_died");
    assert_eq!(bench.metric("denizen_requests_queued"), 2.0);
    bench.start(0, 8);
    assert_eq!(
        bench.links[0].submitted().len(),
        2,
        "a restarted worker takes what waits"
    );
    assert_eq!(
        bench.metric("denizen_worker_deaths_total{worker=\"0\"}"),
        1.0
    );
}

#[tokio::test]
async fn a_client_that_leaves_while_queued_costs_the_worker_nothing() {
    let bench = Bench::new(1, 1);
    let running = bench.submit();
    let queued = bench.submit();
    drop(queued);
    assert_eq!(bench.metric("denizen_requests_in_flight"), 1.0);
    bench.done(0, bench.links[0].submitted()[0], FinishReason::Length);
    events(running).await;
    assert_eq!(bench.links[0].submitted().len(), 1);
    assert!(bench.links[0].of_kind(ABORT).is_empty());
}

#[tokio::test]
async fn a_client_that_leaves_while_running_is_aborted_once_and_its_place_comes_back_with_the_terminal(
) {
    let bench = Bench::new(1, 1);
    let generation = bench.submit();
    let id = bench.links[0].submitted()[0];
    bench.token(0, id, 0);
    drop(generation);
    bench.token(0, id, 1);
    assert_eq!(bench.links[0].of_kind(ABORT), [id]);
    let waiting = bench.submit();
    assert_eq!(
        bench.links[0].submitted().len(),
        1,
        "the row is not free yet"
    );
    bench.done(0, id, FinishReason::Abort);
    assert_eq!(bench.links[0].submitted().len(), 2);
    drop(waiting);
    assert_eq!(
        bench.metric("denizen_requests_total{model=\"m\",outcome=\"abort\"}"),
        1.0
    );
}

#[tokio::test]
async fn dropping_an_ended_generation_aborts_nobody() {
    let bench = Bench::new(1, 8);
    let first = bench.submit();
    bench.done(0, bench.links[0].submitted()[0], FinishReason::Length);
    let _second = bench.submit(); // takes the same slot
    drop(first);
    assert!(bench.links[0].of_kind(ABORT).is_empty());
}

#[tokio::test]
async fn a_lost_or_doubled_token_fails_the_request_instead_of_bending_its_text() {
    for index in [0, 2] {
        let bench = Bench::new(1, 8);
        let generation = bench.submit();
        let id = bench.links[0].submitted()[0];
        bench.token(0, id, 0);
        bench.token(0, id, index);
        let events = events(generation).await;
        assert_eq!(failure(&events).code, "worker_protocol");
        assert_eq!(bench.links[0].of_kind(ABORT), [id]);
        bench.done(0, id, FinishReason::Abort);
        assert_eq!(bench.metric("denizen_requests_in_flight"), 0.0);
    }
}

#[tokio::test]
async fn a_reader_that_stands_still_is_aborted_before_its_tokens_fill_the_memory() {
    let bench = Bench::new(1, 8);
    let generation = bench.submit();
    let id = bench.links[0].submitted()[0];
    let mut index = 0;
    while bench.links[0].of_kind(ABORT).is_empty() {
        bench.token(0, id, index);
        index += 1;
        assert!(index < 10_000_000, "no bound");
    }
    let mut last = None;
    let mut generation = generation;
    while let Some(event) = generation.next().await {
        last = Some(event);
    }
    assert_eq!(failure(&[last.unwrap()]).code, "slow_client");
}

#[tokio::test]
async fn refusals_say_why() {
    let bench = Bench::new(1, 2);
    let kept: Vec<Generation> = (0..64).map(|_| bench.submit()).collect();
    let refusal = || {
        Backend::submit(&bench.router, generate(&bench.model))
            .err()
            .unwrap()
    };
    assert!(
        matches!(refusal(), SubmitError::Busy { limit: 64, .. }),
        "{:?}",
        refusal()
    );
    drop(kept);
    bench
        .router
        .worker_stalled(0, Some("no heartbeat for 1.5 s".to_owned()));
    assert!(
        matches!(refusal(), SubmitError::NotReady { .. }),
        "{:?}",
        refusal()
    );
    assert_eq!(
        bench.router.not_ready(),
        ["worker 0: no heartbeat for 1.5 s"]
    );
    bench.router.worker_stalled(0, None);
    assert!(bench.router.not_ready().is_empty());
    bench.router.drain();
    assert_eq!(refusal(), SubmitError::Draining);
}

#[tokio::test]
async fn a_drained_router_becomes_idle_when_the_last_sequence_ends() {
    let bench = Bench::new(1, 2);
    bench.router.idle().await;
    let generation = bench.submit();
    bench.router.drain();
    bench.router.drain_worker(0);
    assert_eq!(bench.links[0].of_kind(DRAIN).len(), 1);
    let idle = tokio::spawn({
        let router = bench.router.clone();
        async move { router.idle().await }
    });
    tokio::task::yield_now().await;
    assert!(!idle.is_finished());
    bench.done(0, bench.links[0].submitted()[0], FinishReason::Length);
    idle.await.unwrap();
    events(generation).await;
}

#[tokio::test]
async fn a_request_that_the_worker_refuses_fails_with_the_workers_words() {
    let bench = Bench::new(1, 2);
    let generation = bench.submit();
    let error = WorkerError {
        code: "bad_request".into(),
        message: "top_k is too large".into(),
        param: Some("top_k".into()),
        retryable: false,
    };
    bench.says(0, bench.links[0].submitted()[0], FromWorker::Error(error));
    let events = events(generation).await;
    assert_eq!(failure(&events).param.as_deref(), Some("top_k"));
}

/// Symptom: an abort was lost because the state was deleted first, or a zombie's output was committed.
#[test]
fn aborts_that_race_completions_leave_one_terminal_and_nothing_behind() {
    let bench = Arc::new(Bench::new(1, 64));
    for _ in 0..5_000 {
        let generation = bench.submit();
        let id = *bench.links[0].submitted().last().unwrap();
        let worker = std::thread::spawn({
            let bench = bench.clone();
            move || {
                bench.token(0, id, 0);
                bench.done(0, id, FinishReason::Length);
                bench.done(0, id, FinishReason::Abort);
            }
        });
        drop(generation);
        worker.join().unwrap();
    }
    assert_eq!(bench.metric("denizen_requests_in_flight"), 0.0);
    let ended = ["abort", "length"].map(|outcome| {
        bench.metric(&format!(
            "denizen_requests_total{{model=\"m\",outcome=\"{outcome}\"}}"
        ))
    });
    assert_eq!(ended.iter().sum::<f64>(), 5_000.0);
}

#[tokio::test]
async fn a_file_that_was_begun_goes_on_while_the_server_drains() {
    let bench = Bench::new(1, 8);
    let hold = bench.router.hold();
    bench.router.drain();
    let mut window = generate(&bench.model);
    let audio = Pcm::new(Arc::new(vec![0.0; 16]), 0..16);
    let asr = |continues| AsrWindow {
        audio: audio.clone(),
        continues,
        timestamps: true,
        detect: false,
        forced: vec![],
        words: false,
    };
    window.asr = Some(asr(false));
    let refused = Backend::submit(&bench.router, window.clone());
    assert!(matches!(refused, Err(SubmitError::Draining)));
    window.asr = Some(asr(true));
    let running = Backend::submit(&bench.router, window).unwrap();
    assert_eq!(bench.links[0].submitted().len(), 1);
    let id = bench.links[0].submitted()[0];
    let failure = Failure {
        code: "test".to_owned(),
        message: String::new(),
        param: None,
        retryable: false,
    };
    assert_eq!(bench.router.fail_all(&failure), 1, "{id}");
    drop(running);
    // No sequence is left, but the file is not done.
    let soon = tokio::time::timeout(std::time::Duration::ZERO, bench.router.idle());
    assert!(soon.await.is_err());
    drop(hold);
    bench.router.idle().await;
}
