//! What a worker's envelopes do to the table.

use super::envelope::{
    AudioChunk, Done, Envelope, FromWorker, Load, RequestId, Stats, TokenRow, WorkerError,
    WorkerHello,
};
use super::request::{Event, Failure};
use super::router::{Router, Shared, State};
use super::sequence::{Place, Unfit};
use super::tts;

/// Reasons of `denizen_dropped_envelopes_total`.
const OLD_EPOCH: &str = "old_epoch";
const UNKNOWN_KIND: &str = "unknown_kind";
const UNKNOWN_REQUEST: &str = "unknown_request";
pub(super) const DROP_REASONS: [&str; 3] = [OLD_EPOCH, UNKNOWN_KIND, UNKNOWN_REQUEST];

/// Code of a failure: the worker broke the protocol.
const WORKER_PROTOCOL: &str = "worker_protocol";

/// What the supervisor must know of an envelope.
#[derive(Debug, PartialEq)]
pub enum Notice {
    Hello(WorkerHello),
    Loading(Load),
    /// The worker takes requests now.
    Ready,
    /// The worker itself failed.
    Failed(WorkerError),
    Bye {
        why: String,
    },
}

impl Router {
    /// Handles an envelope of `worker` in its life `epoch`.
    pub fn receive(&self, worker: usize, epoch: u64, envelope: Envelope) -> Option<Notice> {
        let shared = self.shared();
        let mut state = shared.lock();
        if state.workers[worker].epoch != epoch {
            shared.drop_envelope(OLD_EPOCH);
            return None;
        }
        match envelope.body {
            None => shared.drop_envelope(UNKNOWN_KIND),
            Some(FromWorker::Hello(hello)) => return Some(Notice::Hello(hello)),
            Some(FromWorker::Ready { models, credits }) => {
                state.learn(models);
                state.workers[worker].grant(credits);
                shared.pump(&mut state);
                return Some(Notice::Ready);
            }
            Some(FromWorker::Tokens(rows)) => {
                for row in rows {
                    shared.token(&mut state, worker, row);
                }
            }
            Some(FromWorker::Audio(chunk)) => {
                let id = RequestId::from_wire(envelope.request);
                shared.audio(&mut state, worker, id, chunk, envelope.attachment);
            }
            Some(FromWorker::Done(done)) => {
                shared.done(&mut state, worker, envelope.request, done);
                self.ask_again(&mut state);
            }
            Some(FromWorker::Error(error)) if envelope.request == 0 => {
                return Some(Notice::Failed(error))
            }
            Some(FromWorker::Error(error)) => {
                let failure = Failure {
                    code: error.code,
                    message: error.message,
                    param: error.param,
                    retryable: error.retryable,
                };
                shared.terminal(&mut state, worker, envelope.request, Event::Failed(failure));
            }
            Some(FromWorker::Stats(Stats {
                load: Some(load), ..
            })) => {
                state.workers[worker].loads(load.clone());
                return Some(Notice::Loading(load));
            }
            Some(FromWorker::Stats(stats)) => shared.stats(&mut state, worker, stats),
            Some(FromWorker::Bye { why }) => return Some(Notice::Bye { why }),
        }
        None
    }
}

impl Shared {
    fn drop_envelope(&self, reason: &str) {
        self.metrics.dropped.with_label_values(&[reason]).inc();
    }

    /// True if the request is live and this worker's.
    fn owns(&self, state: &mut State, worker: usize, id: RequestId) -> bool {
        let owns = state
            .table
            .get_mut(id)
            .is_some_and(|sequence| sequence.place == Place::Worker(worker));
        if !owns {
            self.drop_envelope(UNKNOWN_REQUEST);
        }
        owns
    }

    fn token(&self, state: &mut State, worker: usize, row: TokenRow) {
        let id = RequestId::from_wire(row.request);
        if !self.owns(state, worker, id) {
            return;
        }
        let Some(sequence) = state.table.get_mut(id) else {
            return;
        };
        if let Err(unfit) = sequence.token(row.index, row.token, row.logprob) {
            self.refuse_event(state, id, unfit);
        }
    }

    fn audio(
        &self,
        state: &mut State,
        worker: usize,
        id: RequestId,
        chunk: AudioChunk,
        attachment: Option<Vec<u8>>,
    ) {
        if !self.owns(state, worker, id) {
            return;
        }
        let Some(sequence) = state.table.get_mut(id) else {
            return;
        };
        let attachment = attachment.unwrap_or_default();
        let taken = match tts::samples(&attachment) {
            Some(samples) if samples.len() == chunk.samples as usize && !samples.is_empty() => {
                sequence.audio(chunk.index, samples)
            }
            _ => Err(Unfit::Wrong(format!(
                "the worker sent {} bytes as {} samples of audio",
                attachment.len(),
                chunk.samples
            ))),
        };
        if let Err(unfit) = taken {
            self.refuse_event(state, id, unfit);
        }
    }

    /// Gives up a sequence whose event cannot be handed on: a lost or doubled one would be wrong text or sound.
    fn refuse_event(&self, state: &mut State, id: RequestId, unfit: Unfit) {
        match unfit {
            Unfit::Wrong(message) => self.give_up(state, id, WORKER_PROTOCOL, message, true),
            Unfit::Behind => {
                let message = "the client reads too slowly; its request was aborted".to_owned();
                self.give_up(state, id, "slow_client", message, false);
            }
        }
    }

    /// Fails a sequence that its worker still runs. It is taken out of the table now, so the worker's answer to the
    /// ABORT finds nothing.
    fn give_up(
        &self,
        state: &mut State,
        id: RequestId,
        code: &str,
        message: String,
        retryable: bool,
    ) {
        self.abort(state, id);
        let failure = Failure {
            code: code.to_owned(),
            message,
            param: None,
            retryable,
        };
        self.end(state, id, Event::Failed(failure));
    }

    fn done(&self, state: &mut State, worker: usize, request: u64, done: Done) {
        let Done {
            reason,
            usage,
            prompt_logprobs,
            asr,
            samples,
            stop_id: _,
        } = done;
        let id = RequestId::from_wire(request);
        let sequence = state.table.get_mut(id);
        let missing = sequence.and_then(|sequence| sequence.missing(reason, samples));
        let terminal = match missing {
            None => Event::Done {
                reason,
                usage,
                prompt_logprobs,
                asr,
            },
            Some(message) => Event::Failed(Failure {
                code: WORKER_PROTOCOL.to_owned(),
                message,
                param: None,
                retryable: true,
            }),
        };
        self.terminal(state, worker, request, terminal);
    }

    fn terminal(&self, state: &mut State, worker: usize, request: u64, terminal: Event) {
        let id = RequestId::from_wire(request);
        if self.owns(state, worker, id) {
            self.end(state, id, terminal);
            self.pump(state);
        }
    }

    fn stats(&self, state: &mut State, worker: usize, stats: Stats) {
        let old = &state.workers[worker].stats;
        let label = worker.to_string();
        let label = &[label.as_str()];
        // A worker counts from its start; these counters go on over its lives.
        self.metrics
            .preemptions
            .with_label_values(label)
            .inc_by(stats.preemptions.saturating_sub(old.preemptions));
        self.metrics
            .steps
            .with_label_values(label)
            .inc_by(stats.steps.saturating_sub(old.steps));
        state.workers[worker].stats = stats;
    }
}
