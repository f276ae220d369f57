//! `POST /v1/audio/transcriptions` and `POST /v1/audio/translations`.
//!
//! # Layout
//!
//! This file (form → decoding → windows → answer) with `settings` (what the form and the model agree on), `events` (the
//! stream), `counters`.

mod counters;
mod events;
mod settings;

pub use counters::Counters;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::error::ApiError;
use super::multipart::{ResponseFormat, Transcription};
use super::run;
use super::{sse, App};
use crate::audio::{Limits, Transcript};
use crate::listen::{ListenError, Recording, Windows};
use crate::model::ModelEntry;
use crate::speech::Task;
use crate::transcribe::{Job, Report, Settings};

pub async fn transcriptions(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(app, request, Task::Transcribe).await
}

pub async fn translations(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(app, request, Task::Translate).await
}

/// A file on its way to a transcript.
struct Work {
    app: Arc<App>,
    model: Arc<ModelEntry>,
    settings: Settings,
    recording: Recording,
}

async fn answer(app: Arc<App>, request: Request, task: Task) -> Result<Response, ApiError> {
    let admission = run::admit(&app)?;
    let form = Transcription::read(request, task, app.config.max_upload);
    let form = tokio::time::timeout_at(admission.deadline, form)
        .await
        .unwrap_or_else(|_| Err(ApiError::slow_body(app.config.request_timeout)))?;
    let model = app.model(&form.model)?;
    let (file, format, granularities, stream) = (
        form.file.bytes.clone(),
        form.response_format,
        form.granularities,
        form.stream,
    );
    let settings = {
        let (model, size) = (model.clone(), form.prompt.as_ref().map_or(0, String::len));
        let settle = move || settings::settle(&form, &model);
        run::within(&app, admission.deadline, async {
            app.pool.run(size, settle).await?
        })
        .await?
    };
    let recording = run::within(&app, admission.deadline, decode(&app, file)).await?;
    app.audio.file(recording.duration_s);
    let work = Work {
        app: app.clone(),
        model,
        settings,
        recording,
    };
    if stream {
        let (sink, body) = sse::channel(app.config.max_buffered, app.config.slow_client_timeout);
        tokio::spawn(async move { events::stream(work, &sink, admission).await });
        return Ok((run::stream_headers(), Body::from_stream(body)).into_response());
    }
    let transcript = run::within(&app, admission.deadline, work.run(&mut |_, _| ()))
        .await
        .inspect_err(|error| app.counters.aborted(run::reason(error)))?;
    Ok(body(&transcript, format, granularities.segment))
}

impl Work {
    async fn run(&self, report: Report<'_>) -> Result<Transcript, ApiError> {
        let speech = self
            .model
            .speech
            .as_ref()
            .ok_or_else(|| settings::deaf(&self.model))?;
        let pcm = self.recording.pcm.clone();
        let listener = Windows::new(self.app.backend.clone(), self.model.clone(), pcm);
        let job = Job {
            model: &self.model,
            speech,
            listener: &listener,
            voice: &self.recording.voice,
            settings: &self.settings,
            duration_s: self.recording.duration_s,
            tally: &self.app.audio.tally,
        };
        Ok(job.run(report).await?)
    }
}

/// Tells a thread that nobody waits for it any more.
struct Abandon(Arc<AtomicBool>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Decodes an upload on a thread, as soon as one is free. The thread stops when the returned future is dropped.
async fn decode(app: &App, file: Bytes) -> Result<Recording, ApiError> {
    let stopped = || {
        let message = "the file could not be decoded because of a fault in the server";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    };
    let permit = app
        .decoding
        .clone()
        .acquire_owned()
        .await
        .map_err(|_| stopped())?;
    let limits = Limits {
        max_bytes: app.config.max_upload,
        max_seconds: app.config.max_audio.as_secs_f64(),
        ..Limits::default()
    };
    let share = app.audio.memory.share();
    let abandoned = Arc::new(AtomicBool::new(false));
    let _abandon = Abandon(abandoned.clone());
    let work = move || {
        let _permit = permit;
        Recording::open(&file, &limits, share, || !abandoned.load(Ordering::Relaxed))
    };
    let recording = tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| stopped())?;
    recording?.ok_or_else(stopped)
}

fn body(transcript: &Transcript, format: ResponseFormat, segments: bool) -> Response {
    let body = match format {
        ResponseFormat::Json => transcript.json().to_string(),
        ResponseFormat::VerboseJson => transcript.verbose_json(segments).to_string(),
        ResponseFormat::Text => transcript.plain(),
        ResponseFormat::Srt => transcript.srt(),
        ResponseFormat::Vtt => transcript.vtt(),
    };
    ([(header::CONTENT_TYPE, format.content_type())], body).into_response()
}

impl From<ListenError> for ApiError {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::Refused(refusal) => refusal.into(),
            ListenError::Failed(failure) => failure.into(),
        }
    }
}
