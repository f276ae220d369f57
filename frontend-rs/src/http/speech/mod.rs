//! `POST /v1/audio/speech` and `GET /v1/audio/voices`.
//!
//! # Layout
//!
//! `job` (what a body asks for) → this file (whole answers) or `stream` (raw audio or events, as it is made); `voices`.

mod job;
mod stream;
mod voices;

pub use voices::voices;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use super::{run, sse, App};
use crate::sound::{Encoder, SoundError};
use crate::speak::{Speaking, Step};
pub use job::{prepare, Delivery, Job};
pub use stream::ending;

/// Hertz of an answer's audio, which raw PCM does not tell.
const SAMPLE_RATE: HeaderName = HeaderName::from_static("x-sample-rate");

pub async fn speech(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let admission = run::admit(&app)?;
    let job = run::prepared(&app, &admission, request, prepare).await?;
    let mut speaking = Speaking::start(&*app.backend, job.generate.clone(), job.bounded)?;
    let count = |error: &ApiError| app.counters.aborted(run::reason(error));
    let rate = HeaderValue::from(job.rate);
    let audio = HeaderValue::from_static(job.format.content_type());
    if job.delivery == Delivery::Whole {
        let file = run::within(&app, admission.deadline, whole(&job, &mut speaking));
        let file = file.await.inspect_err(count)?;
        return Ok(([(header::CONTENT_TYPE, audio), (SAMPLE_RATE, rate)], file).into_response());
    }
    // What goes wrong before the first sound has a status of its own.
    let first = run::within(&app, admission.deadline, async {
        Ok(speaking.next().await?)
    });
    let first = first.await.inspect_err(count)?;
    let (sink, body) = sse::channel(app.config.max_buffered, app.config.slow_client_timeout);
    let delivery = job.delivery;
    tokio::spawn(
        async move { stream::stream(&app, &job, speaking, first, &sink, admission).await },
    );
    let mut response = (run::stream_headers(), Body::from_stream(body)).into_response();
    response.headers_mut().insert(SAMPLE_RATE, rate);
    if delivery == Delivery::Raw {
        response.headers_mut().insert(header::CONTENT_TYPE, audio);
    }
    Ok(response)
}

/// The file as a whole, with its sizes.
async fn whole(job: &Job, speaking: &mut Speaking) -> Result<Vec<u8>, ApiError> {
    let mut encoder = Encoder::new(job.format, job.rate)?;
    let mut file = Vec::new();
    while let Step::Audio(samples) = speaking.next().await? {
        file.extend(encoder.push(&samples)?);
    }
    file.extend(encoder.finish()?);
    encoder.seal(&mut file);
    Ok(file)
}

impl From<SoundError> for ApiError {
    fn from(error: SoundError) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "internal_error", error.to_string())
    }
}
