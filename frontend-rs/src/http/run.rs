//! From a request to its response: admission, preparation, generation.

use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use axum::Json;
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::choice::{Choice, Delta, Finish, TokenInfo};
use super::error::ApiError;
use super::job::Job;
use super::shape::Shape;
use super::sse::{self, Sink, Unsendable};
use super::{body, App};
use crate::route::{Event, Failure, Generation, SubmitError};

/// A choice as a whole.
#[derive(Default)]
pub struct Collected {
    pub reasoning: String,
    pub content: String,
    pub logprobs: Vec<TokenInfo>,
    pub finish: Finish,
}

/// One of the places for requests in flight, and when the request must have ended.
pub struct Admission {
    pub permit: OwnedSemaphorePermit,
    pub deadline: Instant,
}

pub fn admit(app: &App) -> Result<Admission, ApiError> {
    if app.backend.draining() {
        return Err(ApiError::draining());
    }
    let permit = Semaphore::try_acquire_owned(app.in_flight.clone()).map_err(|_| {
        let limit = app.config.max_in_flight;
        ApiError::from(SubmitError::Busy {
            limit,
            retry_after_s: 1,
        })
    })?;
    Ok(Admission {
        permit,
        deadline: Instant::now() + app.config.request_timeout,
    })
}

/// Waits for `work`, but not past the request's deadline.
pub async fn within<T>(
    app: &App,
    deadline: Instant,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let result = tokio::time::timeout_at(deadline, work).await;
    result.unwrap_or_else(|_| Err(ApiError::timeout(app.config.request_timeout)))
}

/// Reads a JSON body and has it `prepare`d on the text threads.
pub async fn prepared<T: Send + 'static>(
    app: &Arc<App>,
    admission: &Admission,
    request: Request,
    prepare: fn(&App, Bytes) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let body = tokio::time::timeout_at(
        admission.deadline,
        body::read_json(request, app.config.max_body),
    )
    .await;
    let body = body.unwrap_or_else(|_| Err(ApiError::slow_body(app.config.request_timeout)))?;
    let shared = app.clone();
    let length = body.len();
    within(app, admission.deadline, async {
        app.pool.run(length, move || prepare(&shared, body)).await?
    })
    .await
}

/// Answers a completion request of either endpoint.
pub async fn generate(
    app: Arc<App>,
    request: Request,
    prepare: fn(&App, Bytes) -> Result<Job, ApiError>,
) -> Result<Response, ApiError> {
    let admission = admit(&app)?;
    let job = prepared(&app, &admission, request, prepare).await?;
    let mut running = Running::submit(&app, &job)?;
    let shape = Shape::new(&job);
    if !job.params.stream {
        let collected = within(&app, admission.deadline, running.collect())
            .await
            .inspect_err(|error| {
                app.counters.aborted(reason(error));
            })?;
        return Ok(Json(shape.response(&job, &collected)).into_response());
    }
    let (sink, events) = sse::channel(app.config.max_buffered, app.config.slow_client_timeout);
    tokio::spawn(async move { stream(&app, job, shape, running, &sink, admission).await });
    Ok((stream_headers(), Body::from_stream(events)).into_response())
}

/// Of every response that is a stream of events.
pub fn stream_headers() -> [(HeaderName, HeaderValue); 3] {
    let event_stream = HeaderValue::from_static("text/event-stream; charset=utf-8");
    [
        (header::CONTENT_TYPE, event_stream),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Proxies that buffer would turn a stream into one block.
        (
            HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        ),
    ]
}

/// Why a request was given up, as `/metrics` calls it.
pub fn reason(error: &ApiError) -> &'static str {
    if error.code.as_deref() == Some("timeout") {
        "timeout"
    } else {
        "failed"
    }
}

/// The sequences of a request. Dropping it aborts what has not ended.
struct Running {
    choices: Vec<Choice>,
    next: FuturesUnordered<
        futures_util::future::BoxFuture<'static, (usize, Generation, Option<Event>)>,
    >,
}

async fn next_event(
    index: usize,
    mut generation: Generation,
) -> (usize, Generation, Option<Event>) {
    let event = generation.next().await;
    (index, generation, event)
}

impl Running {
    /// All or nothing: if one sequence is refused, those before it are aborted by being dropped.
    fn submit(app: &App, job: &Job) -> Result<Self, ApiError> {
        let next = FuturesUnordered::new();
        for index in 0..job.choices() {
            let generation = app.backend.submit(job.generate(index))?;
            next.push(Box::pin(next_event(index, generation)) as _);
        }
        Ok(Self {
            choices: (0..job.choices())
                .map(|index| Choice::new(job, index))
                .collect(),
            next,
        })
    }

    /// What the next event brings, with the index of its choice; `None` once all choices have finished.
    async fn next(&mut self) -> Option<Result<(usize, Delta), Failure>> {
        let (index, generation, event) = self.next.next().await?;
        let event = event.unwrap_or_else(|| {
            Event::Failed(Failure {
                code: "internal_error".into(),
                message: "a sequence ended without a result".into(),
                param: None,
                retryable: true,
            })
        });
        let delta = match self.choices[index].feed(event) {
            Ok(delta) => delta,
            Err(failure) => return Some(Err(failure)),
        };
        if delta.finish.is_none() {
            self.next.push(Box::pin(next_event(index, generation)));
        }
        Some(Ok((index, delta)))
    }

    async fn collect(&mut self) -> Result<Vec<Collected>, ApiError> {
        let mut collected: Vec<Collected> =
            self.choices.iter().map(|_| Collected::default()).collect();
        while let Some(step) = self.next().await {
            let (index, delta) = step?;
            let choice = &mut collected[index];
            choice.reasoning.push_str(&delta.reasoning);
            choice.content.push_str(&delta.content);
            choice.logprobs.extend(delta.logprobs);
            if let Some(finish) = delta.finish {
                choice.finish = finish;
            }
        }
        Ok(collected)
    }
}

/// Writes a request's events until it ends, fails, or nobody reads them any more. Its place is free when the client has
/// everything.
async fn stream(
    app: &App,
    job: Job,
    shape: Shape,
    mut running: Running,
    sink: &Sink,
    admission: Admission,
) {
    let Admission {
        permit: _permit,
        deadline,
    } = admission;
    for data in shape.opening(&job) {
        sink.send(&data);
    }
    let mut finishes: Vec<Finish> = vec![Finish::default(); job.choices()];
    let timeout = tokio::time::sleep_until(deadline);
    tokio::pin!(timeout);
    let error = loop {
        let step = tokio::select! {
            biased;
            () = sink.gone() => return app.counters.aborted("client_gone"),
            () = &mut timeout => {
                app.counters.aborted("timeout");
                break Some(ApiError::timeout(app.config.request_timeout));
            }
            step = running.next() => step,
        };
        match step {
            None => break None,
            Some(Ok((index, delta))) if !delta.is_empty() => {
                sink.send(&shape.chunk(&job, index, &delta));
                if let Some(finish) = delta.finish {
                    finishes[index] = finish;
                }
            }
            Some(Ok(_)) => {}
            Some(Err(failure)) => {
                app.counters.aborted("failed");
                break Some(failure.into());
            }
        }
        if let Err(unsendable) = sink.room().await {
            return give_up(app, sink, unsendable);
        }
    };
    // The rows are free before the client has read the rest.
    drop(running);
    match error {
        Some(error) => sink.send(&error.body().to_string()),
        None => {
            if job.params.include_usage {
                sink.send(&shape.usage_chunk(&job, &finishes));
            }
            sink.send("[DONE]");
        }
    }
    sink.complete();
    if let Err(unsendable) = sink.drained().await {
        give_up(app, sink, unsendable);
    }
}

pub fn give_up(app: &App, sink: &Sink, unsendable: Unsendable) {
    match unsendable {
        Unsendable::Gone => app.counters.aborted("client_gone"),
        Unsendable::Slow => {
            app.counters.aborted("slow_client");
            let seconds = app.config.slow_client_timeout.as_secs();
            let message =
                format!("the client took nothing for {seconds} s while its buffer was full");
            let error = ApiError::new(
                axum::http::StatusCode::REQUEST_TIMEOUT,
                "slow_client",
                message,
            );
            sink.discard();
            sink.send(&error.body().to_string());
        }
    }
}
