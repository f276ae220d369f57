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
pub use events::stream;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::time::Instant;

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

/// Audio on its way to a transcript.
pub struct Work {
    app: Arc<App>,
    model: Arc<ModelEntry>,
    settings: Settings,
    recording: Recording,
}

async fn answer(app: Arc<App>, request: Request, task: Task) -> Result<Response, ApiError> {
    let admission = run::admit(&app)?;
    let mut share = app.audio.memory.share();
    let form = Transcription::read(request, task, app.config.max_upload, &mut share);
    let form = tokio::time::timeout_at(admission.deadline, form)
        .await
        .unwrap_or_else(|_| Err(ApiError::slow_body(app.config.request_timeout)))?;
    let (file, format, granularities, stream) = (
        form.file.bytes.clone(),
        form.response_format,
        form.granularities,
        form.stream,
    );
    let limits = limits(&app);
    let open =
        move |go_on: &mut dyn FnMut() -> bool| Ok(Recording::open(&file, &limits, share, go_on)?);
    let work = Work::prepare(&app, admission.deadline, form, open).await?;
    if stream {
        let (sink, body) = sse::channel(app.config.max_buffered, app.config.slow_client_timeout);
        tokio::spawn(async move { events::stream(work, &sink, admission).await });
        return Ok((run::stream_headers(), Body::from_stream(body)).into_response());
    }
    let transcript = work.whole(admission.deadline).await?;
    Ok(body(&transcript, format, granularities.segment))
}

/// What audio may ask of this server.
pub fn limits(app: &App) -> Limits {
    Limits {
        max_bytes: app.config.max_upload,
        max_seconds: app.config.max_audio.as_secs_f64(),
        ..Limits::default()
    }
}

/// Makes a recording of what a request sent; blocks, and gives up when it is told to.
pub trait Open:
    FnOnce(&mut dyn FnMut() -> bool) -> Result<Option<Recording>, ApiError> + Send + 'static
{
}
impl<T> Open for T where
    T: FnOnce(&mut dyn FnMut() -> bool) -> Result<Option<Recording>, ApiError> + Send + 'static
{
}

impl Work {
    /// Checks the request against its model and opens its audio.
    pub async fn prepare<F: Send + 'static>(
        app: &Arc<App>,
        deadline: Instant,
        form: Transcription<F>,
        open: impl Open,
    ) -> Result<Self, ApiError> {
        let model = app.model(&form.model)?;
        let size = form.prompt.as_ref().map_or(0, String::len);
        let settings = {
            let model = model.clone();
            let settle = move |_: &App| settings::settle(&form, &model);
            run::on_text_threads(app, deadline, size, settle).await?
        };
        let recording = run::within(app, deadline, decode(app, open)).await?;
        app.audio.file(recording.duration_s);
        Ok(Self {
            app: app.clone(),
            model,
            settings,
            recording,
        })
    }

    /// The transcript, once all is written down.
    pub async fn whole(&self, deadline: Instant) -> Result<Transcript, ApiError> {
        run::within(&self.app, deadline, self.run(&mut |_, _| ()))
            .await
            .inspect_err(|error| self.app.counters.aborted(run::reason(error)))
    }

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

/// Opens audio on a thread, as soon as one is free. The thread stops when the returned future is dropped.
async fn decode(app: &App, open: impl Open) -> Result<Recording, ApiError> {
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
    let abandoned = Arc::new(AtomicBool::new(false));
    let _abandon = Abandon(abandoned.clone());
    let work = move || {
        let _permit = permit;
        open(&mut || !abandoned.load(Ordering::Relaxed))
    };
    let recording = tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| stopped())?;
    recording?.ok_or_else(stopped)
}

/// What an answer holds: a map, or text where the format is one of text.
pub fn value(transcript: &Transcript, format: ResponseFormat, segments: bool) -> Value {
    match format {
        ResponseFormat::Json => transcript.json(),
        ResponseFormat::VerboseJson => transcript.verbose_json(segments),
        ResponseFormat::Text => transcript.plain().into(),
        ResponseFormat::Srt => transcript.srt().into(),
        ResponseFormat::Vtt => transcript.vtt().into(),
    }
}

fn body(transcript: &Transcript, format: ResponseFormat, segments: bool) -> Response {
    let body = match value(transcript, format, segments) {
        Value::String(text) => text,
        map => map.to_string(),
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
