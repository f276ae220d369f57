//! One call: the work of an HTTP endpoint, with its answer in envelopes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::http::StatusCode;
use futures_util::FutureExt;
use serde_json::Value;

use super::envelope::{Chunk, Message};
use super::outbox::Lane;
use super::upload::Upload;
use super::{sound, speech, value};
use crate::http::choice::{Delta, Finish};
use crate::http::fields::Fields;
use crate::http::job::Job;
use crate::http::outlet::{Outlet, TextOutlet};
use crate::http::run::{self, Admission, Prepare};
use crate::http::shape::{delta_logprobs, Shape};
use crate::http::{chat_completions, completions, detokenize, models, tokenize};
use crate::http::{ApiError, App};
use crate::speech::Task;

/// Longest result in one message; longer ones come in parts, so that they fit a client's slab.
pub const PIECE: usize = 128 << 10;
/// Longest text of one message.
const TEXT: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    Chat,
    Completions,
    Transcribe,
    Translate,
    Speak,
    Tokenize,
    Detokenize,
    Models,
    Unknown,
}

impl Endpoint {
    const NAMES: [(&'static str, Self); 8] = [
        ("chat.completions", Self::Chat),
        ("completions", Self::Completions),
        ("audio.transcriptions", Self::Transcribe),
        ("audio.translations", Self::Translate),
        ("audio.speech", Self::Speak),
        ("tokenize", Self::Tokenize),
        ("detokenize", Self::Detokenize),
        ("models", Self::Models),
    ];

    pub fn of(name: &str) -> Self {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map_or(Self::Unknown, |(_, endpoint)| *endpoint)
    }

    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, endpoint)| *endpoint == self);
        found.map_or("unknown", |(name, _)| name)
    }
}

/// Does what a call asks for, and sends its terminal.
pub async fn answer(
    app: Arc<App>,
    endpoint: Endpoint,
    upload: Upload,
    rate: Option<u32>,
    lane: Lane,
) {
    let work = serve(&app, endpoint, upload, rate, &lane);
    let result = AssertUnwindSafe(work).catch_unwind().await;
    let error = match result {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error,
        Err(_) => {
            tracing::error!(endpoint = endpoint.name(), "a call panicked");
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            ApiError::new(
                status,
                "internal_error",
                "a fault in the server; see its log",
            )
        }
    };
    lane.fail(&error);
}

async fn serve(
    app: &Arc<App>,
    endpoint: Endpoint,
    upload: Upload,
    rate: Option<u32>,
    lane: &Lane,
) -> Result<(), ApiError> {
    if endpoint == Endpoint::Models {
        lane.send(Message::result(&models::listing(app), None, PIECE));
        return Ok(());
    }
    let admission = run::admit(app)?;
    upload.check(app, rate)?;
    let hears = matches!(endpoint, Endpoint::Transcribe | Endpoint::Translate);
    if upload.has_audio() && !hears {
        let message = format!("'{}' takes no audio; send none with it", endpoint.name());
        return Err(ApiError::invalid("file", message));
    }
    let (body, audio) = upload.whole(app, admission.deadline).await?;
    match endpoint {
        Endpoint::Chat => text(app, admission, body, chat_completions::prepare, lane).await,
        Endpoint::Completions => text(app, admission, body, completions::prepare, lane).await,
        Endpoint::Tokenize => plain(app, admission, body, tokenize::answer, lane).await,
        Endpoint::Detokenize => plain(app, admission, body, detokenize::answer, lane).await,
        Endpoint::Transcribe | Endpoint::Translate => {
            let task = match endpoint {
                Endpoint::Translate => Task::Translate,
                _ => Task::Transcribe,
            };
            sound::transcribe(app, admission, body, task, rate, audio, lane).await
        }
        Endpoint::Speak => speech::speak(app, admission, body, lane).await,
        Endpoint::Models | Endpoint::Unknown => {
            let names = Endpoint::NAMES
                .map(|(name, _)| format!("'{name}'"))
                .join(", ");
            let message = format!("there is no such endpoint; this server has {names}");
            Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", message).param("endpoint"))
        }
    }
}

/// Checks a body on the text threads.
async fn prepared<T: Send + 'static>(
    app: &Arc<App>,
    admission: &Admission,
    body: Vec<u8>,
    prepare: Prepare<T>,
) -> Result<T, ApiError> {
    run::on_text_threads(app, admission.deadline, body.len(), move |app| {
        prepare(app, Fields::of(value::fields(&body)?))
    })
    .await
}

/// An endpoint that answers with one map and generates nothing.
async fn plain(
    app: &Arc<App>,
    admission: Admission,
    body: Vec<u8>,
    answer: Prepare<Value>,
    lane: &Lane,
) -> Result<(), ApiError> {
    let result = prepared(app, &admission, body, answer).await?;
    lane.room().await.ok();
    lane.send(Message::result(&result, None, PIECE));
    settle(app, lane).await;
    Ok(())
}

/// The call keeps its place until its client has everything.
pub async fn settle(app: &App, lane: &Lane) {
    if let Err(unsendable) = lane.drained().await {
        run::give_up(app, lane, unsendable);
    }
}

async fn text(
    app: &Arc<App>,
    admission: Admission,
    body: Vec<u8>,
    prepare: Prepare<Job>,
    lane: &Lane,
) -> Result<(), ApiError> {
    let job = prepared(app, &admission, body, prepare).await?;
    let shape = Shape::new(&job);
    if job.params.stream {
        let running = run::Running::submit(app, &job)?;
        let answer = TextAnswer { lane, shape };
        run::stream(app, job, running, &answer, admission).await;
        return Ok(());
    }
    let collected = run::collect(app, &job, admission.deadline).await?;
    let result = shape.response(&job, &collected);
    let tokens: Vec<Vec<u32>> = collected.into_iter().map(|choice| choice.tokens).collect();
    lane.send(Message::result(&result, Some(&tokens), PIECE));
    settle(app, lane).await;
    Ok(())
}

struct TextAnswer<'a> {
    lane: &'a Lane,
    shape: Shape,
}

impl TextOutlet for TextAnswer<'_> {
    type Lane = Lane;

    fn lane(&self) -> &Lane {
        self.lane
    }

    /// Its prompt, if that is to be echoed.
    fn opening(&self, job: &Job, index: usize) {
        let echo = job.prompt_of(index).echo.as_deref().unwrap_or_default();
        for text in pieces(echo) {
            self.lane.send([Message::chunk(Chunk {
                index: Some(index),
                text,
                ..Chunk::default()
            })]);
        }
    }

    fn delta(&self, job: &Job, index: usize, delta: &Delta) {
        if delta.is_empty() && delta.token.is_none() {
            return;
        }
        self.lane.send([Message::chunk(Chunk {
            index: Some(index),
            text: &delta.content,
            reasoning: &delta.reasoning,
            tokens: delta.token.as_slice(),
            logprobs: delta_logprobs(job, index, delta).as_ref(),
            finish_reason: delta.finish.as_ref().map(|finish| finish.reason),
            ..Chunk::default()
        })]);
    }

    fn finished(&self, job: &Job, finishes: &[Finish]) {
        let summary = self.shape.summary(job, finishes);
        self.lane.send(Message::result(&summary, None, PIECE));
    }
}

/// A text in pieces of at most [`TEXT`] bytes, cut between characters.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let end = (0..=TEXT.min(text.len()))
            .rev()
            .find(|at| text.is_char_boundary(*at))?;
        let (piece, rest) = text.split_at(end);
        text = rest;
        Some(piece).filter(|piece| !piece.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_short_and_make_the_whole() {
        for text in ["", "a", &"ü".repeat(TEXT), &"abc".repeat(TEXT)] {
            assert_eq!(pieces(text).collect::<String>(), *text);
            assert!(pieces(text).all(|piece| piece.len() <= TEXT && !piece.is_empty()));
        }
    }

    #[test]
    fn endpoints_have_their_names() {
        for (name, endpoint) in Endpoint::NAMES {
            assert_eq!((Endpoint::of(name), endpoint.name()), (endpoint, name));
        }
        assert_eq!(Endpoint::of("chat").name(), "unknown");
    }
}
