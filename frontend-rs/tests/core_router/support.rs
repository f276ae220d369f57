//! A router whose links record what they are given.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use denizen_frontend::model::ModelEntry;
use denizen_frontend::route::envelope::{Done, Envelope, FromWorker, TokenRow};
use denizen_frontend::route::{
    Backend, Event, Failure, FinishReason, Generate, Generation, Link, Notice, Router, Sampling,
    SendError, Usage,
};

pub const SUBMIT: u64 = 3;
pub const ABORT: u64 = 4;
pub const DRAIN: u64 = 10;

/// A link that keeps (kind, request) of all that is sent.
#[derive(Default)]
pub struct Recorder {
    pub sent: Mutex<Vec<(u64, u64)>>,
    pub full: AtomicBool,
    pub too_large: AtomicBool,
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
    pub fn of_kind(&self, wanted: u64) -> Vec<u64> {
        let sent = self.sent.lock().unwrap();
        sent.iter()
            .filter(|(kind, _)| *kind == wanted)
            .map(|(_, request)| *request)
            .collect()
    }

    pub fn submitted(&self) -> Vec<u64> {
        self.of_kind(SUBMIT)
    }
}

pub fn model(name: &str) -> Arc<ModelEntry> {
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

pub fn generate(model: &Arc<ModelEntry>) -> Generate {
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
        tts: None,
    }
}

/// A router with one model `m` and `links.len()` ready workers of `credits` each.
pub struct Bench {
    pub router: Router,
    pub model: Arc<ModelEntry>,
    pub links: Vec<Arc<Recorder>>,
    pub epochs: Vec<u64>,
}

impl Bench {
    pub fn new(workers: usize, credits: u32) -> Self {
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
    pub fn start(&mut self, worker: usize, credits: u32) {
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

    pub fn says(&self, worker: usize, request: u64, body: FromWorker) -> Option<Notice> {
        self.says_with(worker, request, body, None)
    }

    /// The same, with an attachment.
    pub fn says_with(
        &self,
        worker: usize,
        request: u64,
        body: FromWorker,
        attachment: Option<Vec<u8>>,
    ) -> Option<Notice> {
        let envelope = Envelope {
            request,
            sequence: 0,
            body: Some(body),
            attachment,
        };
        self.router.receive(worker, self.epochs[worker], envelope)
    }

    pub fn token(&self, worker: usize, request: u64, index: u32) {
        let row = TokenRow {
            request,
            index,
            token: index,
            logprob: None,
        };
        self.says(worker, 0, FromWorker::Tokens(vec![row]));
    }

    pub fn done(&self, worker: usize, request: u64, reason: FinishReason) {
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
            samples: None,
        };
        self.says(worker, request, FromWorker::Done(done));
    }

    pub fn submit(&self) -> Generation {
        Backend::submit(&self.router, generate(&self.model)).unwrap()
    }

    pub fn metric(&self, line_start: &str) -> f64 {
        let text = self.router.metrics();
        let line = text.lines().find(|line| line.starts_with(line_start));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or(0.0)
    }
}

/// All events up to the end; the terminal one is the last.
pub async fn events(mut generation: Generation) -> Vec<Event> {
    let mut events = vec![];
    while let Some(event) = generation.next().await {
        events.push(event);
    }
    let terminal = |event: &Event| !matches!(event, Event::Token { .. } | Event::Audio(_));
    assert_eq!(
        events.iter().filter(|event| terminal(event)).count(),
        1,
        "{events:?}"
    );
    assert!(terminal(events.last().unwrap()), "{events:?}");
    events
}

pub fn failure(events: &[Event]) -> &Failure {
    match events.last() {
        Some(Event::Failed(failure)) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}
