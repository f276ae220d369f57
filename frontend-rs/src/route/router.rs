//! The real [`Backend`]: chooses a worker for each sequence and carries its tokens back.
//!
//! One lock guards the table of live sequences, the queue and the workers; nothing under it blocks or waits. A sequence
//! ends where it is taken out of the table, and only there is its terminal event sent: so there is exactly one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};

use super::envelope::{ReadyModel, RequestId, ToWorker};
use super::receive::DROP_REASONS;
use super::request::{AbortOnDrop, Event, Failure, Generate, Generation, SubmitError};
use super::sequence::{Place, Sequence};
use super::table::Table;
use super::worker::{Link, SendError, Worker, WorkerState};
use super::Backend;
use crate::metrics::Metrics;
use crate::model::{ModelEntry, Speaker};

/// What a client is told to wait before it tries again.
const RETRY_AFTER_S: u64 = 1;
/// The same where a worker has to start.
const RETRY_AFTER_START_S: u64 = 5;

/// Cheap to clone; all clones are one router.
#[derive(Clone)]
pub struct Router {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) metrics: Metrics,
    /// Live sequences and holds, for those who wait until there are none.
    live: watch::Sender<usize>,
    max_sequences: usize,
}

#[derive(Default)]
pub(super) struct State {
    models: Vec<Arc<ModelEntry>>,
    pub(super) table: Table<Sequence>,
    /// Sequences that wait for a worker, oldest first.
    pub(super) queue: VecDeque<RequestId>,
    pub(super) workers: Vec<Worker>,
    draining: bool,
    /// Work between two of its sequences.
    holds: usize,
    /// Somebody asks full workers again soon.
    pub(super) asking_again: bool,
}

impl State {
    /// Sequences that wait for a worker.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// What a worker says of its models that the front end cannot know from their checkpoints.
    pub(super) fn learn(&mut self, models: Vec<ReadyModel>) {
        for told in models.into_iter().filter(|told| told.kind == "tts") {
            if let Some(model) = self.models.iter().find(|model| model.name == told.name) {
                model.speaks(Speaker {
                    sample_rate: told.sample_rate,
                    voices: told.voices,
                });
            }
        }
    }

    fn live(&self) -> usize {
        self.table.len() + self.holds
    }
}

impl Router {
    /// `max_sequences`: most sequences queued or running; more are refused.
    pub fn new(max_sequences: usize) -> Self {
        let metrics = Metrics::default();
        for reason in DROP_REASONS {
            metrics.dropped.with_label_values(&[reason]);
        }
        let (state, live) = (Mutex::default(), watch::Sender::new(0));
        Self {
            shared: Arc::new(Shared {
                state,
                metrics,
                live,
                max_sequences,
            }),
        }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub fn set_models(&self, models: Vec<Arc<ModelEntry>>) {
        for model in &models {
            self.shared.metrics.add_model(&model.name);
        }
        self.shared.lock().models = models;
    }

    /// Adds a worker and returns its index.
    pub fn add_worker(&self, name: String, models: Vec<String>) -> usize {
        let mut state = self.shared.lock();
        state.workers.push(Worker::new(name, models));
        self.shared.metrics.add_worker(state.workers.len() - 1);
        state.workers.len() - 1
    }

    /// A life of a worker begins.
    pub fn worker_started(&self, worker: usize, epoch: u64, link: Arc<dyn Link>) {
        self.shared.lock().workers[worker].start(epoch, link);
    }

    /// Sends the first envelope of a life.
    pub fn greet(&self, worker: usize, hello: &ToWorker<'_>) {
        self.shared.lock().workers[worker].post(hello, 0);
    }

    /// It makes no progress (`Some(why)`), or does again (`None`).
    pub fn worker_stalled(&self, worker: usize, why: Option<String>) {
        let mut state = self.shared.lock();
        let place = &mut state.workers[worker].state;
        *place = match (&*place, why) {
            (WorkerState::Ready | WorkerState::Stalled(_), Some(why)) => WorkerState::Stalled(why),
            (WorkerState::Stalled(_), None) => WorkerState::Ready,
            _ => return,
        };
        self.shared.pump(&mut state);
    }

    /// Messages that found no room go now, if there is some.
    pub fn pump(&self) {
        let mut state = self.shared.lock();
        self.shared.pump(&mut state);
        self.ask_again(&mut state);
    }

    /// A life of a worker has ended. Its sequences that have sent nothing yet are given to another worker, once; the
    /// rest fail. May be called again for the same death, when more is known of it.
    pub fn worker_died(&self, worker: usize, why: &str) {
        let mut state = self.shared.lock();
        let name = state.workers[worker].name.clone();
        if !matches!(state.workers[worker].state, WorkerState::Down(_)) {
            self.shared
                .metrics
                .worker_deaths
                .with_label_values(&[&worker.to_string()])
                .inc();
        }
        state.workers[worker].stop(why.to_owned());
        let lost = state
            .table
            .ids(|sequence| sequence.place == Place::Worker(worker));
        for id in lost.into_iter().rev() {
            let Some(sequence) = state.table.get_mut(id) else {
                continue;
            };
            if sequence.may_move() {
                sequence.place = Place::Queue;
                sequence.moved = true;
                state.queue.push_front(id);
                self.shared.metrics.resubmitted.inc();
            } else {
                let failure = Failure {
                    code: "worker_died".to_owned(),
                    message: format!(
                        "{name} died while it served this request ({why}); send the request again"
                    ),
                    param: None,
                    retryable: true,
                };
                self.shared.end(&mut state, id, Event::Failed(failure));
            }
        }
        self.shared.pump(&mut state);
    }

    /// Whether a worker has sequences that have not ended.
    pub fn worker_busy(&self, worker: usize) -> bool {
        self.shared.lock().workers[worker].in_flight > 0
    }

    /// Tells a worker to finish and go.
    pub fn drain_worker(&self, worker: usize) {
        self.shared.lock().workers[worker].post(&ToWorker::Drain, 0);
    }

    /// From now on new sequences are refused and `/ready` says 503.
    pub fn drain(&self) {
        self.shared.lock().draining = true;
    }

    /// Returns when no sequence is live.
    pub async fn idle(&self) {
        // The sender lives as long as `self`.
        let _ = self
            .shared
            .live
            .subscribe()
            .wait_for(|live| *live == 0)
            .await;
    }

    /// Ends all sequences; returns how many there were.
    pub fn fail_all(&self, failure: &Failure) -> usize {
        let mut state = self.shared.lock();
        let ids = state.table.ids(|_| true);
        for id in &ids {
            self.shared.abort(&mut state, *id);
            self.shared
                .end(&mut state, *id, Event::Failed(failure.clone()));
        }
        ids.len()
    }

    /// Hands a sequence to a worker; also [`Backend::submit`].
    fn submit(&self, generate: Generate) -> Result<Generation, SubmitError> {
        let model = generate.model.name.clone();
        let mut state = self.shared.lock();
        let refusal = self.shared.refuse(&state, &generate);
        if let Some(refusal) = refusal {
            self.shared
                .metrics
                .requests
                .with_label_values(&[&model, "rejected"])
                .inc();
            return Err(refusal);
        }
        let (events, receiver) = mpsc::unbounded_channel();
        let sequence = Sequence::new(generate, events, self.shared.metrics.sequence(&model));
        let reader = sequence.reader.clone();
        let id = state.table.insert(sequence);
        state.queue.push_back(id);
        self.shared.live.send_replace(state.live());
        self.shared.pump(&mut state);
        self.ask_again(&mut state);
        let shared = self.shared.clone();
        let abort = AbortOnDrop::new(move || shared.client_left(id));
        Ok(Generation::watched(receiver, abort, reader))
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is finished before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_holds(&self, change: impl FnOnce(usize) -> usize) {
        let mut state = self.lock();
        state.holds = change(state.holds);
        self.live.send_replace(state.live());
    }

    fn refuse(&self, state: &State, generate: &Generate) -> Option<SubmitError> {
        let model = generate.model.name.as_str();
        let continues = generate.asr.as_ref().is_some_and(|window| window.continues);
        if state.draining && !continues {
            return Some(SubmitError::Draining);
        }
        if !state
            .workers
            .iter()
            .any(|worker| worker.state == WorkerState::Ready && worker.hosts(model))
        {
            return Some(SubmitError::NotReady {
                model: model.to_owned(),
                retry_after_s: RETRY_AFTER_START_S,
            });
        }
        if state.table.len() >= self.max_sequences {
            return Some(SubmitError::Busy {
                limit: self.max_sequences,
                retry_after_s: RETRY_AFTER_S,
            });
        }
        None
    }

    /// The ready worker with room that hosts the model and has the fewest sequences.
    fn choose(state: &State, model: &str) -> Option<usize> {
        let candidates = state
            .workers
            .iter()
            .enumerate()
            .filter(|(_, w)| w.has_room() && w.hosts(model));
        candidates
            .min_by_key(|(_, worker)| worker.in_flight)
            .map(|(index, _)| index)
    }

    /// Gives queued sequences to workers, oldest first, as far as there is room. A model whose workers are full does not
    /// hold up another model's sequences.
    pub(super) fn pump(&self, state: &mut State) {
        for worker in &mut state.workers {
            worker.flush();
        }
        let mut kept = VecDeque::new();
        while let Some(id) = state.queue.pop_front() {
            if !state.workers.iter().any(Worker::has_room) {
                state.queue.push_front(id);
                break;
            }
            if let Some(id) = self.place(state, id) {
                kept.push_back(id);
            }
        }
        // What could not be placed is older than what was not looked at.
        kept.append(&mut state.queue);
        state.queue = kept;
    }

    /// Sends a queued sequence to a worker; returns its id if it has to wait on.
    fn place(&self, state: &mut State, id: RequestId) -> Option<RequestId> {
        let model = state.table.get_mut(id)?.generate.model.name.clone();
        let Some(index) = Self::choose(state, &model) else {
            return Some(id);
        };
        let State { table, workers, .. } = state;
        let (sequence, worker) = (table.get_mut(id)?, &mut workers[index]);
        let submit = ToWorker::Submit(sequence.submit());
        match worker.try_send(&submit, id.to_wire(), sequence.attachment()) {
            Ok(()) => {
                worker.in_flight += 1;
                sequence.place = Place::Worker(index);
                None
            }
            Err(SendError::Full | SendError::Gone) => Some(id),
            Err(SendError::TooLarge(message)) => {
                let failure = Failure {
                    code: "request_too_large".to_owned(),
                    message,
                    param: None,
                    retryable: false,
                };
                self.end(state, id, Event::Failed(failure));
                None
            }
        }
    }

    /// Takes a sequence out of the table and sends its terminal event.
    pub(super) fn end(&self, state: &mut State, id: RequestId, terminal: Event) {
        let Some(sequence) = state.table.remove(id) else {
            return;
        };
        if let Place::Worker(worker) = sequence.place {
            let worker = &mut state.workers[worker];
            worker.in_flight = worker.in_flight.saturating_sub(1);
        }
        let model = &sequence.generate.model.name;
        self.metrics
            .requests
            .with_label_values(&[model, sequence.outcome(&terminal)])
            .inc();
        self.metrics
            .prompt_tokens
            .with_label_values(&[model])
            .inc_by(u64::from(sequence.prompt_tokens));
        sequence.end(terminal);
        self.live.send_replace(state.live());
    }

    /// Tells a sequence's worker to stop; the sequence stays in the table until the worker's terminal.
    pub(super) fn abort(&self, state: &mut State, id: RequestId) {
        let Some(sequence) = state.table.get_mut(id) else {
            return;
        };
        if let Place::Worker(worker) = sequence.place {
            if !sequence.aborted {
                sequence.aborted = true;
                state.workers[worker].post(&ToWorker::Abort, id.to_wire());
            }
        }
    }

    /// The client dropped its generation: nobody waits for the events any more.
    fn client_left(&self, id: RequestId) {
        let mut state = self.lock();
        let Some(sequence) = state.table.get_mut(id) else {
            return;
        };
        if sequence.place == Place::Queue {
            state.queue.retain(|queued| *queued != id);
            self.end(&mut state, id, Event::Failed(Failure::client_left()));
        } else {
            self.abort(&mut state, id);
        }
    }
}

impl Backend for Router {
    fn submit(&self, request: Generate) -> Result<Generation, SubmitError> {
        self.submit(request)
    }

    fn hold(&self) -> AbortOnDrop {
        self.shared.change_holds(|holds| holds + 1);
        let shared = self.shared.clone();
        AbortOnDrop::new(move || shared.change_holds(|holds| holds.saturating_sub(1)))
    }

    fn models(&self) -> Vec<Arc<ModelEntry>> {
        self.shared.lock().models.clone()
    }

    fn not_ready(&self) -> Vec<String> {
        let state = self.shared.lock();
        if state.workers.is_empty() {
            return vec!["the server is starting".to_owned()];
        }
        state.workers.iter().filter_map(Worker::not_ready).collect()
    }

    fn draining(&self) -> bool {
        self.shared.lock().draining
    }

    fn metrics(&self) -> String {
        self.shared.refresh_gauges();
        self.shared.metrics.render()
    }
}
