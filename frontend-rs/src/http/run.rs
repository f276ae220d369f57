//! From a request to its response: admission, preparation, generation.

use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{header, HeaderValue};
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
use crate::route::{Event, Failure, Generation};

/// A choice as a whole.
#[derive(Default)]
pub struct Collected {
    pub reasoning: String,
    pub content: String,
    pub logprobs: Vec<TokenInfo>,
    pub finish: Finish,
}

/// Takes one of the places for requests in flight.
fn admit(app: &App) -> Result<OwnedSemaphorePermit, ApiError> {
    if app.backend.draining() {
        return Err(ApiError::draining());
    }
    Semaphore::try_acquire_owned(app.in_flight.clone()).map_err(|_| {
        let limit = app.config.max_in_flight;
        crate::route::SubmitError::Busy {
            limit,
            retry_after_s: 1,
        }
        .into()
    })
}

/// Runs `work` with one of the places for requests in flight and the request's deadline.
pub async fn limited<T, F: Future<Output = Result<T, ApiError>>>(
    app: &App,
    work: impl FnOnce(OwnedSemaphorePermit, Instant) -> F,
) -> Result<T, ApiError> {
    let permit = admit(app)?;
    let deadline = Instant::now() + app.config.request_timeout;
    let result = tokio::time::timeout_at(deadline, work(permit, deadline)).await;
    result.unwrap_or_else(|_| Err(ApiError::timeout(app.config.request_timeout.as_secs())))
}

/// Reads a JSON body and has it `prepare`d on the text threads.
pub async fn prepared<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    prepare: fn(&App, Bytes) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let body = body::read_json(request, app.config.max_body).await?;
    let shared = app.clone();
    app.pool
        .run(body.len(), move || prepare(&shared, body))
        .await?
}

/// Answers a completion request of either endpoint.
pub async fn generate(
    app: Arc<App>,
    request: Request,
    prepare: fn(&App, Bytes) -> Result<Job, ApiError>,
) -> Result<Response, ApiError> {
    let app = &app;
    limited(app, |permit, deadline| async move {
        let job = prepared(app, request, prepare).await?;
        let mut running = Running::submit(app, &job)?;
        let shape = Shape::new(&job);
        if !job.params.stream {
            let _permit = permit;
            let collected = running.collect(app).await?;
            return Ok(Json(shape.response(&job, &collected)).into_response());
        }
        let (sink, events) = sse::channel(app.config.max_buffered, app.config.slow_client_timeout);
        let streamed = app.clone();
        tokio::spawn(async move {
            let _permit = permit;
            stream(&streamed, job, shape, running, &sink, deadline).await;
        });
        let headers = [
            (
                header::CONTENT_TYPE,
                HeaderValue::from_static("text/event-stream; charset=utf-8"),
            ),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            // Proxies that buffer would turn a stream into one block.
            (
                header::HeaderName::from_static("x-accel-buffering"),
                HeaderValue::from_static("no"),
            ),
        ];
        Ok((headers, Body::from_stream(events)).into_response())
    })
    .await
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

    async fn collect(&mut self, app: &App) -> Result<Vec<Collected>, ApiError> {
        let mut collected: Vec<Collected> =
            self.choices.iter().map(|_| Collected::default()).collect();
        while let Some(step) = self.next().await {
            let (index, delta) = step.inspect_err(|_| app.counters.aborted("failed"))?;
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

/// Writes a request's events until it ends, fails, or nobody reads them any more.
async fn stream(
    app: &App,
    job: Job,
    shape: Shape,
    mut running: Running,
    sink: &Sink,
    deadline: Instant,
) {
    for data in shape.opening(&job) {
        sink.send(&data);
    }
    let mut finishes: Vec<Finish> = vec![Finish::default(); job.choices()];
    let error = loop {
        let step = tokio::select! {
            biased;
            () = sink.gone() => return app.counters.aborted("client_gone"),
            () = tokio::time::sleep_until(deadline) => {
                app.counters.aborted("timeout");
                break Some(ApiError::timeout(app.config.request_timeout.as_secs()));
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

fn give_up(app: &App, sink: &Sink, unsendable: Unsendable) {
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
