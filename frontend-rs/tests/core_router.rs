//! The router over links that record what they are given.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use denizen_frontend::model::ModelEntry;
use denizen_frontend::route::envelope::{
    Done, Envelope, FromWorker, RequestId, Stats, TokenRow, WorkerError,
};
use denizen_frontend::route::{
    AsrWindow, Backend, Event, Failure, FinishReason, Generate, Generation, Link, Notice, Pcm,
    Router, Sampling, SendError, SubmitError, Usage,
};

const SUBMIT: u64 = 3;
const ABORT: u64 = 4;
const DRAIN: u64 = 10;

/// A link that keeps (kind, request) of all that is sent.
#[derive(Default)]
struct Recorder {
    sent: Mutex<Vec<(u64, u64)>>,
    full: AtomicBool,
    too_large: AtomicBool,
}

impl Link for Recorder {
    fn send(&self, envelope: &[u8], _attachment: Option<&[u8]>) -> Result<(), SendError> {
        if self.full.load(Ordering::SeqCst) {
            return Err(SendError::Full);
        }
        if self.too_large.load(Ordering::SeqCst) {
            return Err(SendError::TooLarge("too large for the arena".to_owned()));
        }
        let mut bytes = &envelope[1..];
        let mut next = || rmp::decode::read_int::<u64, _>(&mut bytes).unwrap();
        let (_version, kind, request, sequence) = (next(), next(), next(), next());
        let mut sent = self.sent.lock().unwrap();
        assert_eq!(sequence, sent.len() as u64, "a gap in the sequence");
        sent.push((kind, request));
        Ok(())
    }
}

impl Recorder {
    fn of_kind(&self, wanted: u64) -> Vec<u64> {
        let sent = self.sent.lock().unwrap();
        sent.iter()
            .filter(|(kind, _)| *kind == wanted)
            .map(|(_, request)| *request)
            .collect()
    }

    fn submitted(&self) -> Vec<u64> {
        self.of_kind(SUBMIT)
    }
}

fn model(name: &str) -> Arc<ModelEntry> {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::SeqCst);
    let folder =
        std::env::temp_dir().join(format!("denizen-router-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let tokenizer = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}"#;
    let config = r#"{"vocab_size": 2, "max_position_embeddings": 64}"#;
    std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
    std::fs::write(folder.join("config.json"), config).unwrap();
    let model = ModelEntry::load(name, &folder, None).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    Arc::new(model)
}

fn generate(model: &Arc<ModelEntry>) -> Generate {
    let sampling = Sampling {
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
    Generate {
        model: model.clone(),
        prompt: vec![0, 1],
        max_tokens: 8,
        min_tokens: 0,
        stop_ids: vec![],
        sampling,
        prompt_logprobs: None,
        asr: None,
    }
}

/// A router with one model `m` and `links.len()` ready workers of `credits` each.
struct Bench {
    router: Router,
    model: Arc<ModelEntry>,
    links: Vec<Arc<Recorder>>,
    epochs: Vec<u64>,
}

impl Bench {
    fn new(workers: usize, credits: u32) -> Self {
        let router = Router::new(64);
        let model = model("m");
        router.set_models(vec![model.clone()]);
        let mut bench = Self {
            router,
            model,
            links: vec![],
            epochs: vec![],
        };
        for index in 0..workers {
            bench
                .router
                .add_worker(format!("worker {index}"), vec!["m".to_owned()]);
            bench.links.push(Arc::default());
            bench.epochs.push(0);
            bench.start(index, credits);
        }
        bench
    }

    /// A new life of a worker.
    fn start(&mut self, worker: usize, credits: u32) {
        self.epochs[worker] += 1;
        self.links[worker] = Arc::default();
        self.router
            .worker_started(worker, self.epochs[worker], self.links[worker].clone());
        let ready = FromWorker::Ready {
            models: vec![],
            credits,
        };
        assert_eq!(self.says(worker, 0, ready), Some(Notice::Ready));
    }

    fn says(&self, worker: usize, request: u64, body: FromWorker) -> Option<Notice> {
        let envelope = Envelope {
            request,
            sequence: 0,
            body: Some(body),
        };
        self.router.receive(worker, self.epochs[worker], envelope)
    }

    fn token(&self, worker: usize, request: u64, index: u32) {
        let row = TokenRow {
            request,
            index,
            token: index,
            logprob: None,
        };
        self.says(worker, 0, FromWorker::Tokens(vec![row]));
    }

    fn done(&self, worker: usize, request: u64, reason: FinishReason) {
        let usage = Usage {
            prompt: 2,
            completion: 1,
            cached: 0,
        };
        let done = Done {
            reason,
            stop_id: None,
            usage,
            prompt_logprobs: vec![],
            asr: None,
        };
        self.says(worker, request, FromWorker::Done(done));
    }

    fn submit(&self) -> Generation {
        Backend::submit(&self.router, generate(&self.model)).unwrap()
    }

    fn metric(&self, line_start: &str) -> f64 {
        let text = self.router.metrics();
        let line = text.lines().find(|line| line.starts_with(line_start));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or(0.0)
    }
}

/// All events up to the end; the terminal one is the last.
async fn events(mut generation: Generation) -> Vec<Event> {
    let mut events = vec![];
    while let Some(event) = generation.next().await {
        events.push(event);
    }
    let terminal = |event: &Event| !matches!(event, Event::Token { .. });
    assert_eq!(
        events.iter().filter(|event| terminal(event)).count(),
        1,
        "{events:?}"
    );
    assert!(terminal(events.last().unwrap()), "{events:?}");
    events
}

fn failure(events: &[Event]) -> &Failure {
    match events.last() {
        Some(Event::Failed(failure)) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

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
