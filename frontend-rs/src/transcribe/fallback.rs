//! One window, listened to until what was heard is plausible.

use std::io::Write;
use std::ops::Range;

use flate2::write::ZlibEncoder;
use flate2::Compression;

use super::{Attempt, Heard, Job, Listener};

/// A text that compresses better than this repeats itself.
const COMPRESSION_RATIO: f32 = 2.4;
/// A mean log-probability below this is a guess.
const AVG_LOGPROB: f32 = -1.0;
/// A window is silent from this probability on, if its text is a guess too.
const NO_SPEECH: f32 = 0.6;
/// How the temperature grows, and where it ends.
const STEP: f32 = 0.2;
const LAST: f32 = 1.0;

/// What a window gave in the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// Its tokens are text and times alone.
    pub heard: Heard,
    pub temperature: f32,
    pub compression_ratio: f32,
    /// Id of the language that it was decoded in; `None` where the model has but one.
    pub language: Option<u32>,
}

impl Settled {
    /// Nobody spoke: what was heard is made up.
    pub fn is_silent(&self) -> bool {
        self.heard.no_speech > NO_SPEECH && self.heard.avg_logprob <= AVG_LOGPROB
    }

    pub fn is_plausible(&self) -> bool {
        let guessed = self.heard.avg_logprob < AVG_LOGPROB;
        if self.heard.no_speech > NO_SPEECH && guessed {
            return true;
        }
        self.compression_ratio <= COMPRESSION_RATIO && !guessed
    }

    /// Of two implausible texts, whether this one is nearer to one: it does not repeat itself, or is more probable.
    fn is_better_than(&self, other: &Self) -> bool {
        let rank = |s: &Self| {
            (
                s.compression_ratio <= COMPRESSION_RATIO,
                s.heard.avg_logprob,
            )
        };
        rank(self) > rank(other)
    }
}

/// Temperatures from `start` on.
fn ladder(start: f32) -> impl Iterator<Item = f32> {
    let rungs = (0u8..).map(move |rung| start + f32::from(rung) * STEP);
    // 0.2 is not exact in binary.
    rungs
        .take_while(|temperature| *temperature <= LAST + 1e-4)
        .map(|temperature| temperature.min(LAST))
}

impl<L: Listener> Job<'_, L> {
    /// Listens to a window. `previous`: ids of the text before it.
    pub(super) async fn window(
        &self,
        audio: Range<usize>,
        previous: &[u32],
        language: Option<u32>,
    ) -> Result<Settled, L::Error> {
        let (speech, settings, context) = (self.speech, self.settings, self.model.context);
        let mut language = language;
        if speech.multilingual && language.is_none() && !previous.is_empty() {
            language = self.detect(audio.clone()).await?;
        }
        let mut best: Option<Settled> = None;
        for (rung, temperature) in (0u64..).zip(ladder(settings.temperature)) {
            let detect = speech.multilingual && language.is_none();
            let prompt = speech.prompt(previous, language, settings.task, context);
            // Half of the context is for the prompt; detection puts out what else would have been part of it.
            let forced = if detect {
                vec![speech.task_id(settings.task)]
            } else {
                Vec::new()
            };
            let given = if detect { 1 + forced.len() as u32 } else { 0 };
            let room = context.saturating_sub(prompt.len() as u32);
            let attempt = Attempt {
                audio: audio.clone(),
                max_tokens: (settings.max_tokens + given).min(room).max(1),
                ignore_eos: settings.ignore_eos,
                prompt,
                detect,
                forced,
                temperature,
                seed: settings
                    .seed
                    .wrapping_add(audio.start as u64)
                    .wrapping_add(rung),
                words: settings.words,
                logprobs: settings.logprobs,
            };
            if rung > 0 {
                Self::count(&self.tally.fallbacks);
            }
            let mut heard = self.listener.listen(attempt).await?;
            if detect {
                language = heard.tokens.first().copied();
                let given = given as usize;
                heard.tokens.drain(..heard.tokens.len().min(given));
                heard.logprobs.drain(..heard.logprobs.len().min(given));
            }
            let text = speech.decode(self.text(), &heard.tokens);
            let this = Settled {
                temperature,
                compression_ratio: compression_ratio(text.trim()),
                language,
                heard,
            };
            let done = settings.ignore_eos || this.is_plausible();
            if done || best.as_ref().is_none_or(|best| this.is_better_than(best)) {
                best = Some(this);
            }
            if done {
                break;
            }
        }
        Self::count(&self.tally.windows);
        Ok(best.expect("the ladder has a rung, as its start is at most 1"))
    }
}

impl<L: Listener> Job<'_, L> {
    /// The language of a window, in a pass of its own: behind earlier text the same pass would favour that text's.
    async fn detect(&self, audio: Range<usize>) -> Result<Option<u32>, L::Error> {
        let (settings, context) = (self.settings, self.model.context);
        let attempt = Attempt {
            prompt: self.speech.prompt(&[], None, settings.task, context),
            max_tokens: 1,
            ignore_eos: false,
            detect: true,
            forced: Vec::new(),
            temperature: 0.0,
            seed: settings.seed.wrapping_add(audio.start as u64),
            words: false,
            logprobs: false,
            audio,
        };
        Ok(self.listener.listen(attempt).await?.tokens.first().copied())
    }
}

/// Bytes of a text over bytes of it compressed.
pub fn compression_ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // A vector takes everything.
    let compressed = encoder
        .write_all(text.as_bytes())
        .and_then(|()| encoder.finish());
    let length = compressed.map_or(1, |bytes| bytes.len().max(1));
    text.len() as f32 / length as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ladder_climbs_to_one() {
        let rungs = |start| {
            ladder(start)
                .map(|t| (t * 10.0).round() as i32)
                .collect::<Vec<_>>()
        };
        assert_eq!(rungs(0.0), [0, 2, 4, 6, 8, 10]);
        assert_eq!(rungs(0.5), [5, 7, 9]);
        assert_eq!(rungs(1.0), [10]);
        assert!(ladder(0.0).all(|t| t <= 1.0));
    }

    #[test]
    fn repetition_compresses() {
        assert_eq!(compression_ratio(""), 0.0);
        assert!(compression_ratio("He was not an ill disposed young man.") < 1.1);
        assert!(compression_ratio(&"thank you ".repeat(20)) > COMPRESSION_RATIO);
    }

    #[test]
    fn silence_needs_both_signs_and_is_no_reason_to_try_again() {
        let settled = |no_speech, avg_logprob, compression_ratio| Settled {
            heard: Heard {
                no_speech,
                avg_logprob,
                ..Heard::default()
            },
            temperature: 0.0,
            compression_ratio,
            language: None,
        };
        let says = |s: Settled| (s.is_silent(), s.is_plausible());
        assert_eq!(says(settled(0.7, -1.2, 1.0)), (true, true));
        assert_eq!(says(settled(0.7, -0.5, 1.0)), (false, true));
        assert_eq!(says(settled(0.5, -1.2, 1.0)), (false, false));
        assert_eq!(says(settled(0.5, -0.5, 2.5)), (false, false));
        assert_eq!(says(settled(0.5, -0.5, 2.4)), (false, true));
    }
}
