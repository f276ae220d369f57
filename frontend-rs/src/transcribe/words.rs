//! Words with their times, from the times of tokens.

use std::collections::VecDeque;

use super::{Passage, SAMPLE_RATE_S};
use crate::audio::Word;
use crate::speech::SpeechModel;
use crate::text::TextModel;

/// Languages that put no spaces between words: each character is one.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
/// What goes with the word after it, and what with the word before.
const OPENING: &str = "\"'“¿([{-";
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";
const SENTENCE_ENDS: &str = ".。!！?？";
/// A word is hardly ever longer than twice the median, and the median never above this, seconds.
const MEDIAN_MAX_S: f64 = 0.7;

/// A word of a window: its text with the space before it, how many text tokens it has, and seconds from the window's
/// start. A word that was merged into another has no text and no tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Aligned {
    pub text: String,
    pub tokens: usize,
    pub start_s: f64,
    pub end_s: f64,
}

/// A window's words, and the median length of its words as they were heard, seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Alignment {
    words: VecDeque<Aligned>,
    median_s: f64,
}

/// Text tokens to words. `times`: where each token begins, and where the last one ends; without them there are no words.
pub fn align(text: &TextModel, tokens: &[u32], times: &[f32], language: Option<&str>) -> Alignment {
    if tokens.is_empty() || times.len() <= tokens.len() {
        return Alignment::default();
    }
    let characters = by_character(text, tokens);
    let spaced = !language.is_some_and(|code| WITHOUT_SPACES.contains(&code));
    let words = if spaced {
        by_space(characters)
    } else {
        characters
    };
    let mut first = 0;
    let mut aligned: Vec<Aligned> = Vec::with_capacity(words.len());
    for (text, count) in words {
        let last = first + count;
        let (start_s, end_s) = (f64::from(times[first]), f64::from(times[last]));
        aligned.push(Aligned {
            text,
            tokens: count,
            start_s,
            end_s,
        });
        first = last;
    }
    let median_s = median_s(&aligned);
    cut_at_sentences(&mut aligned, 2.0 * median_s);
    merge_punctuation(&mut aligned);
    Alignment {
        words: aligned.into(),
        median_s,
    }
}

/// The least groups of tokens that are whole characters.
fn by_character(text: &TextModel, tokens: &[u32]) -> Vec<(String, usize)> {
    let mut groups = Vec::new();
    let (mut bytes, mut count) = (Vec::new(), 0);
    for id in tokens {
        bytes.extend_from_slice(text.pieces().bytes(*id));
        count += 1;
        let incomplete =
            std::str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_none());
        if !incomplete {
            groups.push((readable(&bytes), count));
            (bytes, count) = (Vec::new(), 0);
        }
    }
    if count > 0 {
        groups.push((readable(&bytes), count));
    }
    groups
}

/// Without bytes that are no character, as the text is shown elsewhere.
fn readable(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    text.retain(|c| c != '\u{FFFD}');
    text
}

fn by_space(groups: Vec<(String, usize)>) -> Vec<(String, usize)> {
    let mut words: Vec<(String, usize)> = Vec::new();
    for (text, count) in groups {
        let begins = text.starts_with(' ') || PUNCTUATION.contains(text.trim());
        match words.last_mut() {
            Some((word, tokens)) if !begins => {
                word.push_str(&text);
                *tokens += count;
            }
            _ => words.push((text, count)),
        }
    }
    words
}

/// Median length of the words that have one.
fn median_s(words: &[Aligned]) -> f64 {
    let lengths = words.iter().map(|word| word.end_s - word.start_s);
    let mut lengths: Vec<f64> = lengths.filter(|length| *length != 0.0).collect();
    lengths.sort_by(f64::total_cmp);
    let middle = lengths.len() / 2;
    let median = match lengths.len() {
        0 => return 0.0,
        count if count % 2 == 1 => lengths[middle],
        _ => (lengths[middle - 1] + lengths[middle]) / 2.0,
    };
    median.min(MEDIAN_MAX_S)
}

/// A pause between two sentences belongs to neither.
fn cut_at_sentences(words: &mut [Aligned], longest: f64) {
    let ends = |word: &Aligned| !word.text.is_empty() && SENTENCE_ENDS.contains(&word.text);
    for index in 1..words.len() {
        if words[index].end_s - words[index].start_s <= longest {
            continue;
        }
        if ends(&words[index]) {
            words[index].end_s = words[index].start_s + longest;
        } else if ends(&words[index - 1]) {
            words[index].start_s = words[index].end_s - longest;
        }
    }
}

fn merge_punctuation(words: &mut [Aligned]) {
    let mut following = words.len().saturating_sub(1);
    for index in (0..words.len().saturating_sub(1)).rev() {
        let text = &words[index].text;
        if text.starts_with(' ') && OPENING.contains(text.trim()) {
            merge(words, index, following, true);
        } else {
            following = index;
        }
    }
    let mut previous = 0;
    for index in 1..words.len() {
        let text = &words[index].text;
        if !words[previous].text.ends_with(' ') && CLOSING.contains(text.as_str()) {
            merge(words, index, previous, false);
        } else {
            previous = index;
        }
    }
}

/// Moves text and tokens of the word `from` to the word `to`, in front of or behind what it has.
fn merge(words: &mut [Aligned], from: usize, to: usize, in_front: bool) {
    let text = std::mem::take(&mut words[from].text);
    words[to].tokens += std::mem::take(&mut words[from].tokens);
    if in_front {
        words[to].text.insert_str(0, &text);
    } else {
        words[to].text.push_str(&text);
    }
}

/// Gives each segment its words, and takes its times from them where they are plausible. `last_end_s`: where the speech
/// before this window ended; `start`: the window's first sample.
pub fn assign(
    mut alignment: Alignment,
    passages: &mut [Passage],
    speech: &SpeechModel,
    last_end_s: &mut f64,
    start: usize,
) {
    let (median, longest) = (alignment.median_s, 2.0 * alignment.median_s);
    let offset_s = start as f64 / SAMPLE_RATE_S;
    for passage in passages {
        let wanted = passage
            .segment
            .tokens
            .iter()
            .filter(|id| **id < speech.eot)
            .count();
        let mut taken = 0;
        while taken < wanted {
            let Some(word) = alignment.words.pop_front() else {
                break;
            };
            taken += word.tokens;
            if !word.text.is_empty() {
                passage.words.push(Word {
                    word: word.text,
                    start: offset_s + word.start_s,
                    end: offset_s + word.end_s,
                });
            }
        }
        settle(passage, *last_end_s, median, longest);
        if !passage.words.is_empty() {
            *last_end_s = passage.segment.end;
        }
        for word in &mut passage.words {
            word.word = word.word.trim().to_owned();
        }
        passage.words.retain(|word| !word.word.is_empty());
    }
}

/// Shortens words that a pause has stretched, and brings the segment's times and the words' together.
fn settle(passage: &mut Passage, last_end_s: f64, median: f64, longest: f64) {
    let segment = &mut passage.segment;
    let words = passage.words.as_mut_slice();
    let Some(first) = words.first().cloned() else {
        return;
    };
    let pair_is_long = words
        .get(1)
        .is_some_and(|second| second.end - first.start > 2.0 * longest);
    if first.end - last_end_s > 4.0 * median && (first.end - first.start > longest || pair_is_long)
    {
        if let [first, second, ..] = words {
            if second.end - second.start > longest {
                let boundary = (second.end / 2.0).max(second.end - longest);
                first.end = boundary;
                second.start = boundary;
            }
        }
        words[0].start = (words[0].end - longest).max(0.0);
    }
    let first = &mut words[0];
    if segment.start < first.end && segment.start - 0.5 > first.start {
        first.start = (first.end - median).min(segment.start).max(0.0);
    } else {
        segment.start = first.start;
    }
    let last = &mut words[words.len() - 1];
    if segment.end > last.start && segment.end + 0.5 < last.end {
        last.end = (last.start + median).max(segment.end);
    } else {
        segment.end = last.end;
    }
}

/// Where the last word of a window ends.
pub fn end(passages: &[Passage]) -> Option<f64> {
    let last = passages
        .iter()
        .rev()
        .find_map(|passage| passage.words.last());
    last.map(|word| word.end)
}
