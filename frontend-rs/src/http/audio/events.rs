//! A transcript as OpenAI's stream of events: `transcript.text.delta` for each segment, `transcript.text.done` at the end.

use serde_json::json;

use super::super::error::ApiError;
use super::super::run::{give_up, reason, Admission};
use super::super::sse::Sink;
use super::Work;

/// Text that grows, without space around the whole.
#[derive(Default)]
struct Deltas {
    begun: bool,
    /// Space that only comes out if something follows.
    held: String,
}

impl Deltas {
    /// What can be sent once `text` has come.
    fn push(&mut self, text: &str) -> Option<String> {
        let text = if self.begun { text } else { text.trim_start() };
        self.begun |= !text.is_empty();
        let mut delta = std::mem::take(&mut self.held) + text;
        let end = delta.trim_end().len();
        self.held = delta.split_off(end);
        Some(delta).filter(|delta| !delta.is_empty())
    }
}

/// Writes a transcript's events until it ends, fails, or nobody reads them any more.
pub async fn stream(work: Work, sink: &Sink, admission: Admission) {
    let Admission {
        permit: _permit,
        deadline,
    } = admission;
    let app = work.app.clone();
    let logprobs = work.settings.logprobs;
    let mut deltas = Deltas::default();
    let mut report = |passages: &[crate::transcribe::Passage], _| {
        for passage in passages {
            let Some(delta) = deltas.push(&passage.segment.text) else {
                continue;
            };
            let mut event = json!({"type": "transcript.text.delta", "delta": delta});
            if logprobs {
                event["logprobs"] = json!(passage.logprobs);
            }
            sink.send(&event.to_string());
        }
    };
    let result = tokio::select! {
        biased;
        () = sink.gone() => return app.counters.aborted("client_gone"),
        () = tokio::time::sleep_until(deadline) => Err(ApiError::timeout(app.config.request_timeout)),
        result = work.run(&mut report) => result,
    };
    match result {
        Ok(transcript) => sink.send(&transcript.done_event().to_string()),
        Err(error) => {
            app.counters.aborted(reason(&error));
            sink.send(&error.body().to_string());
        }
    }
    sink.complete();
    if let Err(unsendable) = sink.drained().await {
        give_up(&app, sink, unsendable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_joined_are_the_trimmed_text() {
        for parts in [
            &[" He was", " not", " an ill. "][..],
            &["  ", " ", "a", " ", "", " b ", " "],
            &[" ", ""],
            &["a\n", "\nb"],
        ] {
            let mut deltas = Deltas::default();
            let sent: Vec<String> = parts.iter().filter_map(|part| deltas.push(part)).collect();
            assert_eq!(sent.concat(), parts.concat().trim());
            assert!(sent.iter().all(|delta| !delta.is_empty()));
        }
    }
}
