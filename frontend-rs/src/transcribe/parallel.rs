//! All pieces of long audio at once.

use futures_util::{stream, StreamExt};

use super::cuts::{cut, Pauses};
use super::{Job, Listener, Report, Written};

/// Pieces of one file that are listened to at once; more would keep other files waiting.
const AT_ONCE: usize = 16;

impl<L: Listener> Job<'_, L> {
    /// Each piece is written down by itself, without the text before it. The first one tells the language.
    pub(super) async fn parallel(
        &self,
        pauses: &Pauses,
        language: Option<u32>,
        report: Report<'_>,
    ) -> Result<Written, L::Error> {
        let mut pieces = cut(self.voice, pauses).into_iter();
        let mut written = Written {
            passages: Vec::new(),
            language,
        };
        while let (None, true) = (written.language, self.speech.multilingual) {
            let Some(piece) = pieces.next() else { break };
            let first = self.sequential(piece, None, false, report).await?;
            written.language = first.language;
            written.passages.extend(first.passages);
        }
        let language = written.language;
        let rest = pieces.map(|piece| async move {
            let end = piece.end;
            let mut ignored = |_: &[_], _| ();
            (
                self.sequential(piece, language, false, &mut ignored).await,
                end,
            )
        });
        let mut rest = stream::iter(rest).buffered(AT_ONCE);
        while let Some((part, end)) = rest.next().await {
            let mut part = part?.passages;
            for (id, passage) in (written.passages.len() as u32..).zip(&mut part) {
                passage.segment.id = id;
            }
            report(&part, end);
            written.passages.extend(part);
        }
        Ok(written)
    }
}
