//! A transcript that is streamed: a piece for each segment, and an end.

use super::super::error::ApiError;
use super::super::outlet::{Outlet, TranscriptOutlet};
use super::super::run::{give_up, reason, Admission};
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

/// Writes a transcript as it comes, until it ends, fails, or nobody reads it any more.
pub async fn stream(work: Work, outlet: &impl TranscriptOutlet, admission: Admission) {
    let Admission {
        permit: _permit,
        deadline,
    } = admission;
    let app = work.app.clone();
    let lane = outlet.lane();
    let logprobs = work.settings.logprobs;
    let mut deltas = Deltas::default();
    let mut report = |passages: &[crate::transcribe::Passage], _| {
        for passage in passages {
            let text = deltas.push(&passage.segment.text);
            outlet.passage(passage, text.as_deref(), logprobs);
        }
    };
    let result = tokio::select! {
        biased;
        () = lane.gone() => return app.counters.aborted("client_gone"),
        () = tokio::time::sleep_until(deadline) => Err(ApiError::timeout(app.config.request_timeout)),
        result = work.run(&mut report) => result,
    };
    match result {
        Ok(transcript) => outlet.finished(&transcript),
        Err(error) => {
            app.counters.aborted(reason(&error));
            lane.fail(&error);
        }
    }
    if let Err(unsendable) = lane.drained().await {
        give_up(&app, lane, unsendable);
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
