//! Words and their times.

use super::super::toy::{EOT, ZH};
use super::*;

/// Text tokens that begin every `step` seconds from `from` on.
fn timed(mut heard: Heard, from: f32, step: f32) -> Heard {
    let count = heard.tokens.iter().filter(|id| **id < EOT).count();
    heard.times = (0..=count)
        .map(|index| from + step * index as f32)
        .collect();
    heard
}

fn words(transcript: &Transcript) -> Vec<(&str, f64, f64)> {
    let hundredth = |s: f64| (s * 100.0).round() / 100.0;
    let words = transcript.words.as_ref().unwrap().iter();
    words
        .map(|w| (w.word.as_str(), hundredth(w.start), hundredth(w.end)))
        .collect()
}

#[test]
fn words_have_their_times_and_their_punctuation() {
    let mut settings = settings();
    settings.words = true;
    let outcome = run(&settings, &all(10.0), |_, attempt| {
        assert!(attempt.words);
        timed(said(&[(0.5, " ab cd \"no\", (ja).", 1.5)], false), 0.0, 0.1)
    });
    // Merged punctuation leaves a word its own times.
    let expected = [
        ("ab", 0.0, 0.3),
        ("cd", 0.3, 0.6),
        ("\"no\",", 0.7, 1.0),
        ("(ja).", 1.3, 1.6),
    ];
    let found = words(&outcome.transcript);
    assert_eq!(found, expected);
    let segment = &outcome.transcript.segments[0];
    assert_eq!(
        (segment.start, (segment.end * 10.0).round()),
        (0.0, 16.0),
        "its words' times"
    );
    let mut at = 0.0;
    for (_, start, end) in found {
        assert!(start >= at && end >= start);
        at = start;
    }
}

#[test]
fn the_next_window_begins_behind_the_last_word() {
    let mut settings = settings();
    settings.words = true;
    let outcome = run(&settings, &all(50.0), |number, _| match number {
        0 => timed(said(&[(0.0, " abcde", 20.0)], true), 19.0, 0.2),
        _ => timed(said(&[(0.0, " z", 20.0)], false), 1.0, 0.1),
    });
    // The sixth byte ends at 19 + 6 × 0.2 s.
    assert_eq!(outcome.asked[1].audio.start, (20.2 * S as f64) as usize);
    let last = *words(&outcome.transcript).last().unwrap();
    assert_eq!(last, ("z", 21.2, 21.4));
}

#[test]
fn languages_without_spaces_have_a_word_a_character() {
    let mut settings = settings();
    settings.words = true;
    settings.language = Some("zh");
    let outcome = run(&settings, &all(10.0), |_, attempt| {
        assert_eq!(attempt.prompt[1], ZH);
        timed(said(&[(0.0, "你好。", 4.0)], false), 0.0, 0.1)
    });
    let texts: Vec<_> = words(&outcome.transcript)
        .iter()
        .map(|word| word.0.to_owned())
        .collect();
    assert_eq!(texts, ["你", "好。"]);
}

#[test]
fn without_times_there_are_no_words_and_nothing_breaks() {
    let mut settings = settings();
    settings.words = true;
    let outcome = run(&settings, &all(10.0), |_, _| {
        said(&[(0.0, " a b", 4.0)], false)
    });
    assert_eq!(words(&outcome.transcript), []);
    assert_eq!(outcome.transcript.text(), "a b");
}
