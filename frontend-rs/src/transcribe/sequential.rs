//! Window after window: each begins where the last complete segment of the one before it ended.

use std::ops::Range;

use super::fallback::Settled;
use super::segments::{split, Split, FRAMES_A_SECOND};
use super::words::{self, Alignment};
use super::{Job, Listener, Passage, Report, Written, HOP, WINDOW_FRAMES};
use crate::audio::{ScoredToken, Segment, SAMPLE_RATE};

/// Text of a window that was guessed at more than this temperature does not lead the next one, nor does implausible text.
const LEADS_BELOW: f32 = 0.5;

impl<L: Listener> Job<'_, L> {
    /// Writes down the samples of `clip`. `lead`: each window gets the text before it; else the client's prompt alone.
    pub(super) async fn sequential(
        &self,
        clip: Range<usize>,
        mut language: Option<u32>,
        lead: bool,
        report: Report<'_>,
    ) -> Result<Written, L::Error> {
        let frames = clip.len() / HOP;
        let mut seek = 0;
        let mut passages: Vec<Passage> = Vec::new();
        let mut previous = self.settings.prompt.clone();
        let mut last_word_end_s = clip.start as f64 / f64::from(SAMPLE_RATE);
        while seek < frames {
            let size = (frames - seek).min(WINDOW_FRAMES);
            let start = clip.start + seek * HOP;
            // The last window has the samples that fill no frame.
            let end = if seek + size == frames {
                clip.end
            } else {
                start + size * HOP
            };
            let audio = start..end.min(start + super::WINDOW);
            let forced = self.settings.ignore_eos;
            if !forced && !self.voice.possible_in(audio.clone()) {
                Self::count(&self.tally.silent);
                seek += size;
                report(&[], start + size * HOP);
                continue;
            }
            let settled = self.window(audio, &previous, language).await?;
            if !forced && settled.is_silent() {
                Self::count(&self.tally.silent);
                seek += size;
                report(&[], start + size * HOP);
                continue;
            }
            // Only now: noise has no language.
            language = language.or(settled.language);
            let parts = split(&settled.heard.tokens, self.speech, size);
            let mut found = self.passages(&settled, &parts, start);
            let mut advance = if forced { size } else { parts.advance };
            if self.settings.words {
                let aligned = self.aligned(&settled);
                words::assign(
                    aligned,
                    &mut found,
                    self.speech,
                    &mut last_word_end_s,
                    start,
                );
                let end = words::end(&found);
                last_word_end_s = end.unwrap_or(last_word_end_s);
                if let (false, Some(end)) = (parts.whole || forced, end) {
                    let spoken = end - start as f64 / f64::from(SAMPLE_RATE);
                    if spoken > 0.0 {
                        advance = ((spoken * FRAMES_A_SECOND).round() as usize).clamp(1, size);
                    }
                }
            }
            found.retain(|passage| {
                passage.segment.end > passage.segment.start
                    && !passage.segment.text.trim().is_empty()
            });
            self.tidy(&mut found, &passages);
            if lead {
                previous.extend(
                    found
                        .iter()
                        .flat_map(|passage| passage.segment.tokens.iter()),
                );
                let implausible = !forced && !settled.is_plausible();
                if settled.temperature > LEADS_BELOW || implausible {
                    previous.clear();
                }
            }
            seek += advance;
            report(&found, (start + advance * HOP).min(clip.end));
            passages.extend(found);
        }
        Ok(Written { passages, language })
    }

    /// The segments of a window that starts at sample `start`.
    fn passages(&self, settled: &Settled, parts: &Split, start: usize) -> Vec<Passage> {
        let offset_s = start as f64 / f64::from(SAMPLE_RATE);
        let pieces = parts.pieces.iter().map(|piece| {
            let tokens = settled.heard.tokens[piece.tokens.clone()].to_vec();
            let logprobs = settled.heard.logprobs.get(piece.tokens.clone());
            Passage {
                logprobs: self.scored(&tokens, logprobs.unwrap_or_default()),
                segment: Segment {
                    id: 0,
                    seek: (start / HOP) as u32,
                    start: (offset_s + piece.start_s).min(self.duration_s),
                    end: (offset_s + piece.end_s).min(self.duration_s),
                    text: self.speech.decode(self.text(), &tokens),
                    tokens,
                    temperature: settled.temperature,
                    avg_logprob: settled.heard.avg_logprob,
                    compression_ratio: settled.compression_ratio,
                    no_speech_prob: settled.heard.no_speech,
                },
                words: Vec::new(),
            }
        });
        pieces.collect()
    }

    /// The text tokens of a segment with their log-probabilities; none if these were not asked for.
    fn scored(&self, tokens: &[u32], logprobs: &[f32]) -> Vec<ScoredToken> {
        let pieces = self.text().pieces();
        tokens
            .iter()
            .zip(logprobs)
            .filter(|(id, _)| **id < self.speech.eot)
            .map(|(id, logprob)| ScoredToken {
                token: pieces.display(*id),
                logprob: *logprob,
                bytes: pieces.bytes(*id).to_vec(),
            })
            .collect()
    }

    fn aligned(&self, settled: &Settled) -> Alignment {
        let language = settled.language.and_then(|id| self.speech.language_of(id));
        let text = settled
            .heard
            .tokens
            .iter()
            .copied()
            .filter(|id| *id < self.speech.eot);
        words::align(
            self.text(),
            &text.collect::<Vec<_>>(),
            &settled.heard.times,
            language,
        )
    }

    /// Times that never run backwards or past the end, and ids that count on.
    fn tidy(&self, found: &mut [Passage], before: &[Passage]) {
        let mut floor = before.last().map_or(0.0, |passage| passage.segment.start);
        for (id, passage) in (before.len() as u32..).zip(found) {
            let segment = &mut passage.segment;
            segment.id = id;
            segment.start = segment.start.clamp(floor, self.duration_s.max(floor));
            segment.end = segment.end.min(self.duration_s).max(segment.start);
            floor = segment.start;
            let mut at = segment.start.min(
                passage
                    .words
                    .first()
                    .map_or(segment.start, |word| word.start),
            );
            for word in &mut passage.words {
                word.start = word.start.clamp(at, self.duration_s.max(at));
                word.end = word.end.min(self.duration_s).max(word.start);
                at = word.start;
            }
        }
    }
}
