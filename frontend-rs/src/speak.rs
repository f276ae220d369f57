//! A text through the router to a worker that speaks, and its audio back.

use crate::route::{
    Backend, Event, Failure, FinishReason, Generate, Generation, SubmitError, Usage,
};

/// What comes of a text that is being spoken.
#[derive(Debug)]
pub enum Step {
    /// The next samples, at the model's rate; never none.
    Audio(Vec<f32>),
    /// Nothing follows. The count of output tokens is that of audio frames.
    Done(Usage),
}

/// A text that is being spoken. Dropping it ends the work.
pub struct Speaking {
    generation: Generation,
}

impl Speaking {
    /// `request` has its [`tts`](Generate::tts).
    pub fn start(backend: &dyn Backend, request: Generate) -> Result<Self, SubmitError> {
        let generation = backend.submit(request)?;
        Ok(Self { generation })
    }

    /// Not to be called again after [`Step::Done`] or an error.
    pub async fn next(&mut self) -> Result<Step, Failure> {
        let wrong = |message: &str| Failure {
            code: "worker_protocol".to_owned(),
            message: message.to_owned(),
            param: None,
            retryable: true,
        };
        match self.generation.next().await {
            Some(Event::Audio(samples)) => Ok(Step::Audio(samples)),
            Some(Event::Done {
                reason: FinishReason::Abort,
                ..
            }) => Err(Failure::aborted()),
            Some(Event::Done { usage, .. }) => Ok(Step::Done(usage)),
            Some(Event::Failed(failure)) => Err(failure),
            // The router lets no token through to a sequence that is spoken.
            Some(Event::Token { .. }) => Err(wrong("the worker sent tokens as speech")),
            None => Err(wrong("the worker ended speech without its end")),
        }
    }
}
