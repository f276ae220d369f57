//! Calls that bring audio: samples straight to the windows of a transcript.

use std::sync::Arc;

use serde_json::{json, Value};

use super::call::{settle, PIECE};
use super::envelope::{Chunk, Message};
use super::outbox::Lane;
use super::value;
use crate::audio::{Share, Transcript};
use crate::http::audio::{self, limits, Work};
use crate::http::multipart::{ResponseFormat, Transcription};
use crate::http::outlet::TranscriptOutlet;
use crate::http::run::{self, Admission};
use crate::http::{ApiError, App};
use crate::listen::Recording;
use crate::speech::Task;
use crate::transcribe::Passage;

/// `audio.transcriptions` and `audio.translations`.
pub async fn transcribe(
    app: &Arc<App>,
    admission: Admission,
    body: Vec<u8>,
    task: Task,
    rate: Option<u32>,
    (samples, share): (Vec<f32>, Share),
    lane: &Lane,
) -> Result<(), ApiError> {
    let rate = check_rate(app, rate)?;
    let read = move |_: &App| Transcription::of(value::fields(&body)?, task);
    let form = run::on_text_threads(app, admission.deadline, 0, read).await?;
    let (format, segments, stream) = (
        form.response_format,
        form.granularities.segment,
        form.stream,
    );
    let open = move |go_on: &mut dyn FnMut() -> bool| {
        check_samples(&samples)?;
        Ok(Recording::of_samples(samples, rate, share, go_on)?)
    };
    let work = Work::prepare(app, admission.deadline, form, open).await?;
    if stream {
        let answer = TranscriptAnswer {
            lane,
            format,
            segments,
        };
        audio::stream(work, &answer, admission).await;
        return Ok(());
    }
    let transcript = work.whole(admission.deadline).await?;
    let result = audio::value(&transcript, format, segments);
    lane.send(Message::result(&result, None, PIECE));
    settle(app, lane).await;
    Ok(())
}

fn check_rate(app: &App, rate: Option<u32>) -> Result<u32, ApiError> {
    let limits = limits(app);
    let (min, max) = (limits.min_rate, limits.max_rate);
    match rate {
        Some(rate) if (min..=max).contains(&rate) => Ok(rate),
        Some(rate) => {
            let message =
                format!("'rate' is {rate} Hz; rates from {min} to {max} Hz are possible: resample the audio");
            Err(ApiError::invalid("rate", message))
        }
        None => Err(ApiError::invalid(
            "rate",
            "'rate' is missing; give the audio's sample rate in hertz",
        )),
    }
}

fn check_samples(samples: &[f32]) -> Result<(), ApiError> {
    let invalid = |message: String| ApiError::invalid("file", message).code("invalid_audio");
    if samples.is_empty() {
        return Err(invalid(
            "no audio came with the request; send samples".into(),
        ));
    }
    match samples.iter().position(|sample| !sample.is_finite()) {
        None => Ok(()),
        Some(at) => Err(invalid(format!(
            "sample {at} is {}; all must be finite",
            samples[at]
        ))),
    }
}

struct TranscriptAnswer<'a> {
    lane: &'a Lane,
    format: ResponseFormat,
    segments: bool,
}

impl TranscriptOutlet for TranscriptAnswer<'_> {
    type Lane = Lane;

    fn lane(&self) -> &Lane {
        self.lane
    }

    fn passage(&self, passage: &Passage, text: Option<&str>, logprobs: bool) {
        let logprobs = logprobs.then(|| json!(passage.logprobs));
        let words = (!passage.words.is_empty()).then(|| json!(passage.words));
        self.lane.send([Message::chunk(Chunk {
            text: text.unwrap_or_default(),
            segments: Some(&Value::Array(vec![json!(passage.segment)])),
            words: words.as_ref(),
            logprobs: logprobs.as_ref(),
            ..Chunk::default()
        })]);
    }

    fn finished(&self, transcript: &Transcript) {
        let result = audio::value(transcript, self.format, self.segments);
        self.lane.send(Message::result(&result, None, PIECE));
    }
}
