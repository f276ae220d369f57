//! A text through the router to a worker that speaks, and its audio back.

use crate::route::{
    Backend, Event, Failure, FinishReason, Generate, Generation, SubmitError, Usage,
};

/// What comes of a text that is being spoken.
#[derive(Debug)]
pub enum Step {
    /// The next samples, at the model's rate; never none.
    Audio(Vec<f32>),
    /// Nothing follows. The count of output tokens is that of audio frames. Only a speech with a bound of its own can end
    /// for its length.
    Done(FinishReason, Usage),
}

/// A text that is being spoken. Dropping it ends the work.
pub struct Speaking {
    generation: Generation,
    bounded: bool,
}

impl Speaking {
    /// `request` has its [`tts`](Generate::tts). `bounded`: the client chose its `max_tokens`, so that an end there is no
    /// fault.
    pub fn start(
        backend: &dyn Backend,
        request: Generate,
        bounded: bool,
    ) -> Result<Self, SubmitError> {
        let generation = backend.submit(request)?;
        Ok(Self {
            generation,
            bounded,
        })
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
            Some(Event::Done {
                reason: FinishReason::Length,
                ..
            }) if !self.bounded => Err(Failure {
                code: "speech_cut_off".to_owned(),
                message: "the speech did not end within the model's context; shorten 'input'"
                    .to_owned(),
                param: Some("input".to_owned()),
                retryable: false,
            }),
            Some(Event::Done { reason, usage, .. }) => Ok(Step::Done(reason, usage)),
            Some(Event::Failed(failure)) => Err(failure),
            // The router lets no token through to a sequence that is spoken.
            Some(Event::Token { .. }) => Err(wrong("the worker sent tokens as speech")),
            None => Err(wrong("the worker ended speech without its end")),
        }
    }
}
