//! From a request to its response: admission, preparation, generation.

use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use axum::Json;
use futures_util::stream::FuturesUnordered;
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::choice::{Choice, Delta, Finish, TokenInfo};
use super::error::ApiError;
use super::fields::Fields;
use super::job::Job;
use super::outlet::{Chunks, Outlet, TextOutlet};
use super::shape::Shape;
use super::sse::{self, Unsendable};
use super::{body, App};
use crate::route::{Event, Failure, Generation, SubmitError};

/// A choice as a whole.
#[derive(Default)]
pub struct Collected {
    pub reasoning: String,
    pub content: String,
    pub tokens: Vec<u32>,
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

/// Checks the fields of a request, and says what they ask for.
pub type Prepare<T> = fn(&App, Fields) -> Result<T, ApiError>;

/// Reads a JSON body and has it `prepare`d on the text threads.
pub async fn prepared<T: Send + 'static>(
    app: &Arc<App>,
    admission: &Admission,
    request: Request,
    prepare: Prepare<T>,
) -> Result<T, ApiError> {
    let body = tokio::time::timeout_at(
        admission.deadline,
        body::read_json(request, app.config.max_body),
    )
    .await;
    let body = body.unwrap_or_else(|_| Err(ApiError::slow_body(app.config.request_timeout)))?;
    on_text_threads(app, admission.deadline, body.len(), move |app| {
        prepare(app, Fields::parse(&body)?)
    })
    .await
}

/// Runs `work`, whose input has `length` bytes, on the text threads.
pub async fn on_text_threads<T: Send + 'static>(
    app: &Arc<App>,
    deadline: Instant,
    length: usize,
    work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let shared = app.clone();
    within(app, deadline, async {
        app.pool.run(length, move || work(&shared)).await?
    })
    .await
}

/// Answers a completion request of either endpoint.
pub async fn generate(
    app: Arc<App>,
    request: Request,
    prepare: Prepare<Job>,
) -> Result<Response, ApiError> {
    let admission = admit(&app)?;
    let job = prepared(&app, &admission, request, prepare).await?;
    let shape = Shape::new(&job);
    if !job.params.stream {
        let collected = collect(&app, &job, admission.deadline).await?;
        return Ok(Json(shape.response(&job, &collected)).into_response());
    }
    let running = Running::submit(&app, &job)?;
    let (sink, events) = sse::channel(app.config.max_buffered, app.config.slow_client_timeout);
    let outlet = Chunks { sink, shape };
    tokio::spawn(async move { stream(&app, job, running, &outlet, admission).await });
    Ok((stream_headers(), Body::from_stream(events)).into_response())
}

/// Generates all choices of a job, and waits for them.
pub async fn collect(app: &App, job: &Job, deadline: Instant) -> Result<Vec<Collected>, ApiError> {
    let mut running = Running::submit(app, job)?;
    within(app, deadline, running.collect())
        .await
        .inspect_err(|error| app.counters.aborted(reason(error)))
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
pub struct Running {
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
    pub fn submit(app: &App, job: &Job) -> Result<Self, ApiError> {
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
        } else {
            generation.satisfied();
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
            choice.tokens.extend(delta.token);
            choice.logprobs.extend(delta.logprobs);
            if let Some(finish) = delta.finish {
                choice.finish = finish;
            }
        }
        Ok(collected)
    }
}

/// Writes a request's output until it ends, fails, or nobody reads it any more. Its place is free when the client has
/// everything.
pub async fn stream(
    app: &App,
    job: Job,
    mut running: Running,
    outlet: &impl TextOutlet,
    admission: Admission,
) {
    let Admission {
        permit: _permit,
        deadline,
    } = admission;
    let lane = outlet.lane();
    for index in 0..job.choices() {
        outlet.opening(&job, index);
        if let Err(unsendable) = lane.room().await {
            return give_up(app, lane, unsendable);
        }
    }
    let mut finishes: Vec<Finish> = vec![Finish::default(); job.choices()];
    let timeout = tokio::time::sleep_until(deadline);
    tokio::pin!(timeout);
    let error = loop {
        let step = tokio::select! {
            biased;
            () = lane.gone() => return app.counters.aborted("client_gone"),
            () = &mut timeout => {
                app.counters.aborted("timeout");
                break Some(ApiError::timeout(app.config.request_timeout));
            }
            step = running.next() => step,
        };
        match step {
            None => break None,
            Some(Ok((index, delta))) => {
                outlet.delta(&job, index, &delta);
                if let Some(finish) = delta.finish {
                    finishes[index] = finish;
                }
            }
            Some(Err(failure)) => {
                app.counters.aborted("failed");
                break Some(failure.into());
            }
        }
        if let Err(unsendable) = lane.room().await {
            return give_up(app, lane, unsendable);
        }
    };
    // The rows are free before the client has read the rest.
    drop(running);
    match error {
        Some(error) => lane.fail(&error),
        None => outlet.finished(&job, &finishes),
    }
    if let Err(unsendable) = lane.drained().await {
        give_up(app, lane, unsendable);
    }
}

pub fn give_up(app: &App, lane: &impl Outlet, unsendable: Unsendable) {
    match unsendable {
        Unsendable::Gone => app.counters.aborted("client_gone"),
        Unsendable::Slow => {
            app.counters.aborted("slow_client");
            lane.discard();
            lane.fail(&ApiError::slow_client(app.config.slow_client_timeout));
        }
    }
}
