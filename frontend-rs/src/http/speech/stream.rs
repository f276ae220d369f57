//! Speech as it is made: raw bytes of a file, or OpenAI's events `speech.audio.delta` and `speech.audio.done`.

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use serde_json::json;

use super::super::error::ApiError;
use super::super::run::{self, Admission};
use super::super::sse::{Sink, Unsendable};
use super::super::App;
use super::job::{Delivery, Job};
use crate::route::Usage;
use crate::sound::Encoder;
use crate::speak::{Speaking, Step};

/// Writes what is spoken until it ends, fails, or nobody reads it any more. `first` has come already.
pub async fn stream(
    app: &App,
    job: &Job,
    mut speaking: Speaking,
    first: Step,
    sink: &Sink,
    admission: Admission,
) {
    let Admission {
        permit: _permit,
        deadline,
    } = admission;
    let mut encoder = Encoder::new(job.format, job.rate);
    let mut step = first;
    let result = loop {
        match step {
            Step::Audio(samples) => send(sink, job.delivery, encoder.push(&samples)),
            Step::Done(usage) => break Ok(usage),
        }
        if let Err(unsendable) = sink.room().await {
            return give_up(app, job, sink, unsendable);
        }
        let next = tokio::select! {
            biased;
            () = sink.gone() => return app.counters.aborted("client_gone"),
            () = tokio::time::sleep_until(deadline) => Err(ApiError::timeout(app.config.request_timeout)),
            next = speaking.next() => next.map_err(ApiError::from),
        };
        step = match next {
            Ok(next) => next,
            Err(error) => break Err(error),
        };
    };
    // The row is free before the client has read the rest.
    drop(speaking);
    match result {
        Ok(usage) => {
            send(sink, job.delivery, encoder.finish());
            if job.delivery == Delivery::Events {
                sink.send(&done(usage).to_string());
            }
            sink.complete();
        }
        Err(error) => {
            app.counters.aborted(run::reason(&error));
            fail(job.delivery, sink, &error);
        }
    }
    if let Err(unsendable) = sink.drained().await {
        give_up(app, job, sink, unsendable);
    }
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

fn done(usage: Usage) -> serde_json::Value {
    json!({
        "type": "speech.audio.done",
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
