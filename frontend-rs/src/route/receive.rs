//! What a worker's envelopes do to the table.

use super::envelope::{
    Done, Envelope, FromWorker, Load, RequestId, Stats, TokenRow, WorkerError, WorkerHello,
};
use super::request::{Event, Failure};
use super::router::{Router, Shared, State};
use super::sequence::Place;

/// Reasons of `denizen_dropped_envelopes_total`.
const OLD_EPOCH: &str = "old_epoch";
const UNKNOWN_KIND: &str = "unknown_kind";
const UNKNOWN_REQUEST: &str = "unknown_request";
pub(super) const DROP_REASONS: [&str; 3] = [OLD_EPOCH, UNKNOWN_KIND, UNKNOWN_REQUEST];

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
            Some(FromWorker::Ready { credits, .. }) => {
                state.workers[worker].grant(credits);
                shared.pump(&mut state);
                return Some(Notice::Ready);
            }
            Some(FromWorker::Tokens(rows)) => {
                for row in rows {
                    shared.token(&mut state, worker, row);
                }
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
        if row.index != sequence.received {
            // A lost or doubled token would be wrong text; better no text.
            let message = format!(
                "the worker sent token {} where token {} was due",
                row.index, sequence.received
            );
            self.give_up(state, id, "worker_protocol", message, true);
        } else if !sequence.token(row.token, row.logprob) {
            let message = "the client reads too slowly; its request was aborted".to_owned();
            self.give_up(state, id, "slow_client", message, false);
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
            stop_id: _,
        } = done;
        self.terminal(
            state,
            worker,
            request,
            Event::Done {
                reason,
                usage,
                prompt_logprobs,
                asr,
            },
        );
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
