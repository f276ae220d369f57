//! `audio.speech`: a text that is spoken, its samples beside the envelopes.

use std::sync::Arc;

use serde_json::Value;

use super::call::{settle, PIECE};
use super::envelope::Message;
use super::outbox::Lane;
use super::value;
use crate::http::fields::Fields;
use crate::http::outlet::Outlet;
use crate::http::run::{self, Admission};
use crate::http::speech::{ending, prepare, Delivery, Job};
use crate::http::{ApiError, App};
use crate::speak::{Speaking, Step};

/// Fields that say how HTTP packs the audio.
const PACKING: [&str; 2] = ["response_format", "stream_format"];

pub async fn speak(
    app: &Arc<App>,
    admission: Admission,
    body: Vec<u8>,
    lane: &Lane,
) -> Result<(), ApiError> {
    let deadline = admission.deadline;
    let job = run::on_text_threads(app, deadline, body.len(), move |app| {
        let fields = value::fields(&body)?;
        for name in PACKING {
            if fields.get(name).is_some_and(|value| !value.is_null()) {
                let message = format!("'{name}' has no meaning here: the audio comes as samples");
                return Err(ApiError::unsupported(name, message));
            }
        }
        prepare(app, Fields::of(fields))
    })
    .await?;
    let mut speaking = Speaking::start(&*app.backend, job.generate.clone(), job.bounded)?;
    let mut audio = Audio {
        job: &job,
        lane,
        sent: 0,
        samples: 0,
        whole: Vec::new(),
    };
    loop {
        let step = run::within(app, deadline, async { Ok(speaking.next().await?) }).await;
        match step.inspect_err(|error| app.counters.aborted(run::reason(error)))? {
            Step::Audio(samples) => audio.push(&samples),
            Step::Done(reason, usage) => {
                // The row is free before the client has read the rest.
                drop(speaking);
                audio.finish(ending(reason, usage));
                break;
            }
        }
        if let Err(unsendable) = lane.room().await {
            run::give_up(app, lane, unsendable);
            return Ok(());
        }
    }
    settle(app, lane).await;
    Ok(())
}

/// What has been said so far.
struct Audio<'a> {
    job: &'a Job,
    lane: &'a Lane,
    /// Messages.
    sent: usize,
    samples: usize,
    /// Bytes of the whole, where it is not streamed.
    whole: Vec<u8>,
}

impl Audio<'_> {
    fn push(&mut self, samples: &[f32]) {
        self.samples += samples.len();
        let bytes = samples.iter().flat_map(|sample| sample.to_le_bytes());
        if self.job.delivery == Delivery::Whole {
            return self.whole.extend(bytes);
        }
        let bytes: Vec<u8> = bytes.collect();
        for piece in bytes.chunks(PIECE) {
            if self.lane.grow(piece, PIECE) {
                continue;
            }
            let chunk = Message::audio(self.sent, self.job.rate, piece.to_vec());
            self.lane.send([chunk]);
            self.sent += 1;
        }
    }

    fn finish(self, mut result: Value) {
        result["rate"] = self.job.rate.into();
        result["samples"] = self.samples.into();
        let messages = match self.job.delivery {
            Delivery::Whole => Message::result_with_audio(&result, &self.whole, PIECE),
            _ => Message::result(&result, None, PIECE),
        };
        self.lane.send(messages);
    }
}
