//! Speech as it is made: raw bytes of a file, or OpenAI's events `speech.audio.delta` and `speech.audio.done`.

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use serde_json::json;
use tokio::time::Instant;

use super::super::error::ApiError;
use super::super::run::{self, Admission};
use super::super::sse::{Sink, Unsendable};
use super::super::App;
use super::job::{Delivery, Job};
use crate::route::{FinishReason, Usage};
use crate::sound::Encoder;
use crate::speak::{Speaking, Step};

/// Why a stream ends before its time.
enum Stop {
    Unsendable(Unsendable),
    Error(ApiError),
}

impl From<Unsendable> for Stop {
    fn from(unsendable: Unsendable) -> Self {
        Self::Unsendable(unsendable)
    }
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

/// Writes what is spoken until it ends, fails, or nobody reads it any more. `first` has come already.
pub async fn stream(
    app: &App,
    job: &Job,
    speaking: Speaking,
    first: Step,
    sink: &Sink,
    admission: Admission,
) {
    let Admission {
        permit: _permit,
        deadline,
    } = admission;
    // The row is free before the client has read the rest.
    match write(app, job, speaking, first, sink, deadline).await {
        Ok(()) => sink.complete(),
        Err(Stop::Unsendable(unsendable)) => return give_up(app, job, sink, unsendable),
        Err(Stop::Error(error)) => {
            app.counters.aborted(run::reason(&error));
            fail(job.delivery, sink, &error);
        }
    }
    if let Err(unsendable) = sink.drained().await {
        give_up(app, job, sink, unsendable);
    }
}

async fn write(
    app: &App,
    job: &Job,
    mut speaking: Speaking,
    first: Step,
    sink: &Sink,
    deadline: Instant,
) -> Result<(), Stop> {
    let mut encoder = Encoder::new(job.format, job.rate).map_err(ApiError::from)?;
    let timeout = tokio::time::sleep_until(deadline);
    tokio::pin!(timeout);
    let mut step = first;
    let (reason, usage) = loop {
        match step {
            Step::Audio(samples) => send(
                sink,
                job.delivery,
                encoder.push(&samples).map_err(ApiError::from)?,
            ),
            Step::Done(reason, usage) => break (reason, usage),
        }
        sink.room().await?;
        step = tokio::select! {
            biased;
            () = sink.gone() => return Err(Unsendable::Gone.into()),
            () = &mut timeout => return Err(ApiError::timeout(app.config.request_timeout).into()),
            step = speaking.next() => step.map_err(ApiError::from)?,
        };
    };
    send(
        sink,
        job.delivery,
        encoder.finish().map_err(ApiError::from)?,
    );
    if job.delivery == Delivery::Events {
        sink.send(&done(reason, usage).to_string());
    }
    Ok(())
}

fn send(sink: &Sink, delivery: Delivery, bytes: Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    if delivery == Delivery::Events {
        let delta = json!({"type": "speech.audio.delta", "audio": STANDARD.encode(&bytes)});
        sink.send(&delta.to_string());
    } else {
        sink.push(bytes.into());
    }
}

fn done(reason: FinishReason, usage: Usage) -> serde_json::Value {
    let mut event = json!({"type": "speech.audio.done"});
    let ending = ending(reason, usage);
    for key in ["finish_reason", "usage"] {
        event[key] = ending[key].clone();
    }
    event
}

/// How a speech ended, and what it took.
pub fn ending(reason: FinishReason, usage: Usage) -> serde_json::Value {
    let cut = reason == FinishReason::Length;
    json!({
        "finish_reason": if cut { "length" } else { "stop" },
        "usage": {
            "input_tokens": usage.prompt,
            "output_tokens": usage.completion,
            "total_tokens": u64::from(usage.prompt) + u64::from(usage.completion),
        },
    })
}

/// Ends a stream that cannot be finished: an event, or a body that breaks off, so that no client takes what it has for
/// the whole.
fn fail(delivery: Delivery, sink: &Sink, error: &ApiError) {
    if delivery == Delivery::Events {
        sink.send(&error.body().to_string());
        sink.complete();
    } else {
        tracing::warn!("speech broke off: {}", error.message);
        sink.fail();
    }
}

fn give_up(app: &App, job: &Job, sink: &Sink, unsendable: Unsendable) {
    if job.delivery == Delivery::Raw && unsendable == Unsendable::Slow {
        // No error can be written among samples.
        app.counters.aborted("slow_client");
        tracing::warn!("speech broke off: its client took nothing for too long");
        sink.discard();
        sink.fail();
    } else {
        run::give_up(app, sink, unsendable);
    }
}
