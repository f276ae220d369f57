//! A backend that does what a test's script says.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use denizen_frontend::model::ModelEntry;
use denizen_frontend::route::{
    AbortOnDrop, Backend, Event, Failure, FinishReason, Generate, Generation, SubmitError,
    TokenLogprob, Usage,
};
use tokio::sync::{mpsc, Semaphore};

#[derive(Debug, Clone)]
pub enum Step {
    Event(Event),
    /// Waits for one permit of the backend's gate.
    Gate,
    /// Sends nothing more, until the sequence is aborted.
    Hang,
}

pub type Script = dyn Fn(&Generate) -> Vec<Step> + Send + Sync;

/// Tokens of the toy model for these bytes.
pub fn bytes(text: impl AsRef<[u8]>) -> Vec<Step> {
    text.as_ref()
        .iter()
        .map(|&byte| token(byte.into()))
        .collect()
}

pub fn token(id: u32) -> Step {
    Step::Event(Event::Token { id, logprob: None })
}

pub fn token_with(id: u32, logprob: f32, top: &[(u32, f32)]) -> Step {
    Step::Event(Event::Token {
        id,
        logprob: Some(TokenLogprob {
            logprob,
            top: top.to_vec(),
        }),
    })
}

/// A `Done`; the counts of its usage come from what was submitted and sent.
pub fn done(reason: FinishReason) -> Step {
    Step::Event(Event::Done {
        reason,
        usage: Usage::default(),
        prompt_logprobs: Vec::new(),
        asr: None,
    })
}

pub fn failed(code: &str, retryable: bool) -> Step {
    let failure = Failure {
        code: code.into(),
        message: "the worker died".into(),
        param: None,
        retryable,
    };
    Step::Event(Event::Failed(failure))
}

pub struct Scripted {
    models: Vec<Arc<ModelEntry>>,
    script: Box<Script>,
    pub submitted: Mutex<Vec<Generate>>,
    /// Sequences that exist.
    pub live: Arc<AtomicUsize>,
    /// Sequences that were dropped before their last event.
    pub aborted: Arc<AtomicUsize>,
    pub gate: Arc<Semaphore>,
    pub draining: AtomicBool,
    pub refuse: Mutex<Option<SubmitError>>,
    pub not_ready: Mutex<Vec<String>>,
}

impl Scripted {
    pub fn new(
        models: Vec<Arc<ModelEntry>>,
        script: impl Fn(&Generate) -> Vec<Step> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            models,
            script: Box::new(script),
            submitted: Mutex::default(),
            live: Arc::default(),
            aborted: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            draining: AtomicBool::new(false),
            refuse: Mutex::default(),
            not_ready: Mutex::default(),
        })
    }

    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    pub fn aborted(&self) -> usize {
        self.aborted.load(Ordering::SeqCst)
    }

    pub fn submissions(&self) -> usize {
        self.submitted.lock().unwrap().len()
    }

    /// The last request that came through.
    pub fn last(&self) -> Generate {
        self.submitted
            .lock()
            .unwrap()
            .last()
            .expect("nothing was submitted")
            .clone()
    }
}

impl Backend for Scripted {
    fn submit(&self, request: Generate) -> Result<Generation, SubmitError> {
        if let Some(error) = self.refuse.lock().unwrap().clone() {
            return Err(error);
        }
        let steps = (self.script)(&request);
        let prompt = request.prompt.len() as u32;
        self.submitted.lock().unwrap().push(request);
        self.live.fetch_add(1, Ordering::SeqCst);
        let (sender, receiver) = mpsc::unbounded_channel();
        let gate = self.gate.clone();
        let ended = Arc::new(AtomicBool::new(false));
        let task_ended = ended.clone();
        let task = tokio::spawn(async move {
            let mut sent = 0;
            for step in steps {
                let event = match step {
                    Step::Gate => {
                        gate.acquire().await.unwrap().forget();
                        continue;
                    }
                    Step::Hang => std::future::pending().await,
                    Step::Event(Event::Done {
                        reason,
                        usage,
                        prompt_logprobs,
                        asr,
                    }) => {
                        let usage = Usage {
                            prompt,
                            completion: sent,
                            ..usage
                        };
                        Event::Done {
                            reason,
                            usage,
                            prompt_logprobs,
                            asr,
                        }
                    }
                    Step::Event(event) => event,
                };
                sent += 1;
                if matches!(event, Event::Done { .. } | Event::Failed(_)) {
                    task_ended.store(true, Ordering::SeqCst);
                }
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        let (live, aborted) = (self.live.clone(), self.aborted.clone());
        let abort = AbortOnDrop::new(move || {
            task.abort();
            live.fetch_sub(1, Ordering::SeqCst);
            if !ended.load(Ordering::SeqCst) {
                aborted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Ok(Generation::new(receiver, abort))
    }

    fn models(&self) -> Vec<Arc<ModelEntry>> {
        self.models.clone()
    }

    fn not_ready(&self) -> Vec<String> {
        self.not_ready.lock().unwrap().clone()
    }

    fn draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    fn metrics(&self) -> String {
        "# HELP denizen_requests_running Sequences running.\n# TYPE denizen_requests_running gauge\n\
         denizen_requests_running 0\n"
            .into()
    }
}
