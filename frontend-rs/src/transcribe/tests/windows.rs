//! Windows, their prompts, and what becomes of them.

use std::ops::Range;

use super::super::toy::{voice, DE, EN, PREV, SOT, TRANSCRIBE, TRANSLATE, ZH};
use super::*;

#[test]
fn a_short_file_is_one_window() {
    let outcome = run(&settings(), &all(5.0), |_, _| {
        said(&[(0.0, " hello", 2.0), (2.0, " world", 6.0)], false)
    });
    assert_eq!(outcome.asked.len(), 1);
    let attempt = &outcome.asked[0];
    assert_eq!(attempt.audio, 0..5 * S);
    assert_eq!(attempt.prompt, [SOT, EN, TRANSCRIBE]);
    assert_eq!((attempt.max_tokens, attempt.temperature), (224, 0.0));
    let transcript = outcome.transcript;
    assert_eq!(transcript.text(), "hello world");
    assert_eq!((transcript.language, transcript.task), ("en", "transcribe"));
    assert_eq!(transcript.segments[1].end, 5.0, "no time is past the end");
    assert_eq!(
        transcript.segments[0].tokens,
        said(&[(0.0, " hello", 2.0)], false).tokens
    );
}

#[test]
fn exactly_one_window_and_a_little_more() {
    let script = |number, attempt: &Attempt| match number {
        0 => said(&[(0.0, " all", 30.0)], false),
        _ => panic!("{attempt:?}"),
    };
    let outcome = run(&settings(), &all(30.0), script);
    assert_eq!(
        (outcome.asked.len(), &outcome.asked[0].audio),
        (1, &(0..WINDOW))
    );
    // 10 ms are no speech, whatever they hold.
    let outcome = run(&settings(), &all(30.01), script);
    assert_eq!(outcome.asked.len(), 1);
    // Half a second is.
    let outcome = run(&settings(), &all(30.5), |number, _| match number {
        0 => said(&[(0.0, " all", 29.0)], false),
        _ => said(&[(0.0, " of it", 0.5)], false),
    });
    assert_eq!(outcome.asked[1].audio, WINDOW..WINDOW + S / 2);
    assert_eq!(outcome.transcript.text(), "all of it");
    assert_eq!(outcome.transcript.segments[1].start, 30.0);
}

#[test]
fn each_window_begins_where_the_last_segment_ended_and_has_the_text_before_it() {
    let outcome = run(&settings(), &all(70.0), |number, _| match number {
        0 => said(&[(0.0, " a", 10.0), (10.0, " b", 28.0)], true),
        1 => said(&[(0.0, " c", 29.0)], false),
        _ => said(&[(0.0, " d", 9.0)], false),
    });
    let starts: Vec<_> = outcome
        .asked
        .iter()
        .map(|attempt| attempt.audio.clone())
        .collect();
    assert_eq!(starts, [0..30 * S, 28 * S..58 * S, 58 * S..70 * S]);
    let first = said(&[(0.0, " a", 10.0), (10.0, " b", 28.0)], false).tokens;
    let expected = [&[PREV][..], &first, &[SOT, EN, TRANSCRIBE]].concat();
    assert_eq!(outcome.asked[1].prompt, expected);
    assert_eq!(outcome.transcript.text(), "a b c d");
    assert_eq!(outcome.transcript.segments[3].start, 58.0);
    assert_eq!(outcome.transcript.segments[3].seek, 5800);
}

#[test]
fn only_the_end_of_a_long_prompt_is_kept() {
    let mut settings = settings();
    settings.prompt = (0..1000).map(|i| i % 250).collect();
    let outcome = run(&settings, &all(5.0), |_, _| {
        said(&[(0.0, " x", 2.0)], false)
    });
    let attempt = &outcome.asked[0];
    assert_eq!(attempt.prompt.len(), 1 + 223 + 3);
    assert_eq!(attempt.prompt[0], PREV);
    assert_eq!(attempt.prompt[1..224], settings.prompt[777..]);
    assert_eq!(attempt.max_tokens, 221, "prompt and output fit the context");
    assert_eq!(outcome.transcript.text(), "x");
}

#[test]
fn bad_windows_are_heard_again_at_growing_temperatures() {
    let bad = Heard {
        avg_logprob: -1.5,
        ..said(&[(0.0, " um", 2.0)], false)
    };
    let repeated = said(&[(0.0, &" thank you".repeat(20), 2.0)], false);
    let outcome = run(&settings(), &all(5.0), |number, _| match number {
        0 => repeated.clone(),
        1 => bad.clone(),
        _ => said(&[(0.0, " right", 2.0)], false),
    });
    let temperatures: Vec<_> = outcome
        .asked
        .iter()
        .map(|a| (a.temperature * 10.0).round())
        .collect();
    assert_eq!(temperatures, [0.0, 2.0, 4.0]);
    assert_eq!(outcome.transcript.text(), "right");
    assert!((outcome.transcript.segments[0].temperature - 0.4).abs() < 1e-6);
    assert_eq!(outcome.tally.fallbacks.into_inner(), 2);
}

#[test]
fn where_no_attempt_is_good_the_most_probable_without_repetition_counts_and_does_not_lead() {
    let mut settings = settings();
    settings.prompt = vec![9];
    let guess = |words: &str, avg_logprob| Heard {
        avg_logprob,
        ..said(&[(0.0, words, 30.0)], false)
    };
    let outcome = run(&settings, &all(60.0), |number, _| match number {
        0 => guess(&" thank you".repeat(20), -0.1),
        1 => guess(" um", -1.5),
        2 => guess(" uh", -1.4),
        3..=5 => guess(" nonsense", -4.0),
        _ => said(&[(0.0, " right", 2.0)], false),
    });
    assert_eq!(outcome.asked.len(), 7);
    assert_eq!(outcome.transcript.text(), "uh right");
    assert!((outcome.transcript.segments[0].temperature - 0.4).abs() < 1e-6);
    assert_eq!(outcome.asked[6].prompt, [SOT, EN, TRANSCRIBE]);
}

#[test]
fn text_guessed_at_a_high_temperature_does_not_lead() {
    let mut settings = settings();
    settings.temperature = 0.6;
    settings.prompt = vec![9];
    let outcome = run(&settings, &all(60.0), |_, _| {
        said(&[(0.0, " x", 30.0)], false)
    });
    assert_eq!(outcome.asked[0].prompt, [PREV, 9, SOT, EN, TRANSCRIBE]);
    assert_eq!(outcome.asked[1].prompt, [SOT, EN, TRANSCRIBE]);
}

#[test]
fn the_first_window_tells_the_language() {
    let mut settings = settings();
    settings.language = None;
    let detected = |attempt: &Attempt, heard: Heard| {
        let given: &[u32] = if attempt.detect {
            &[DE, TRANSCRIBE]
        } else {
            &[]
        };
        Heard {
            tokens: [given, &heard.tokens].concat(),
            ..heard
        }
    };
    let outcome = run(&settings, &all(60.0), |number, attempt| {
        let mut heard = said(&[(0.0, " ja", 30.0)], false);
        if number == 0 {
            heard.avg_logprob = -2.0;
        }
        detected(attempt, heard)
    });
    let asked: Vec<_> = outcome
        .asked
        .iter()
        .map(|a| (a.detect, a.forced.clone(), a.prompt.clone()))
        .collect();
    assert_eq!(asked[0], (true, vec![TRANSCRIBE], vec![SOT]));
    assert_eq!(
        asked[1],
        (false, vec![], vec![SOT, DE, TRANSCRIBE]),
        "known from the first attempt on"
    );
    assert_eq!(asked[2].2.last(), Some(&TRANSCRIBE));
    assert!(!asked[2].0);
    assert_eq!(outcome.asked[0].max_tokens, 226);
    assert_eq!(outcome.transcript.language, "de");
    assert_eq!(outcome.transcript.text(), "ja ja");
    settings.task = Task::Translate;
    let outcome = run(&settings, &all(5.0), |_, attempt| {
        detected(attempt, said(&[(0.0, " yes", 3.0)], false))
    });
    assert_eq!(outcome.asked[0].forced, [TRANSLATE]);
    assert_eq!(outcome.transcript.language, "en", "of the text");
}

#[test]
fn noise_before_the_speech_has_no_say_in_the_language() {
    let script = |number: usize, attempt: &Attempt| {
        let (no_speech, avg_logprob, language) = match number {
            0 => (0.9, -1.5, ZH),
            _ => (0.1, -0.2, DE),
        };
        let mut heard = said(&[(0.0, " ja", 30.0)], false);
        if attempt.detect {
            heard.tokens.splice(0..0, [language, TRANSCRIBE]);
        }
        Heard {
            no_speech,
            avg_logprob,
            ..heard
        }
    };
    let mut settings = settings();
    settings.language = None;
    let voice = voice(&[0..29 * S, 31 * S..59 * S], 60 * S);
    for mode in [Mode::Sequential, Mode::Parallel(Pauses::default())] {
        settings.mode = mode;
        let outcome = run(&settings, &voice, script);
        assert_eq!(outcome.transcript.language, "de", "{mode:?}");
        assert_eq!(outcome.transcript.text(), "ja");
    }
}

#[test]
fn the_prompt_has_no_say_in_the_language() {
    let mut settings = settings();
    settings.language = None;
    settings.prompt = vec![7, 8];
    settings.temperature = 0.4;
    settings.words = true;
    let outcome = run(&settings, &all(60.0), |_, attempt| {
        if attempt.detect {
            return Heard {
                tokens: vec![DE],
                ..Heard::default()
            };
        }
        said(&[(0.0, " ja", 30.0)], false)
    });
    let first = &outcome.asked[0];
    assert!(first.detect && first.forced.is_empty() && !first.words);
    assert_eq!((&first.prompt[..], first.max_tokens), (&[SOT][..], 1));
    assert_eq!(
        (first.audio.clone(), first.temperature),
        (0..WINDOW, 0.0),
        "all of the window, greedily"
    );
    assert_eq!(outcome.asked[1].audio, 0..WINDOW);
    assert_eq!(outcome.asked[1].prompt, [PREV, 7, 8, SOT, DE, TRANSCRIBE]);
    assert!(outcome.asked[1..].iter().all(|attempt| !attempt.detect));
    assert_eq!(
        (outcome.asked.len(), outcome.transcript.language),
        (3, "de")
    );
    assert_eq!(outcome.tally.windows.into_inner(), 2);
}

#[test]
fn tokens_are_scored_where_that_is_asked_for() {
    let mut settings = settings();
    settings.language = None;
    let script = |_: usize, attempt: &Attempt| {
        let mut heard = said(
            &[(0.0, " a", 1.0), (1.0, "b", 2.0), (2.0, "no length", 2.0)],
            false,
        );
        heard.tokens.splice(0..0, [DE, TRANSCRIBE]);
        // Less by one a token, from the language on.
        if attempt.logprobs {
            heard.logprobs = (0..heard.tokens.len()).map(|i| -(i as f32)).collect();
        }
        heard
    };
    assert_eq!(run(&settings, &all(5.0), script).transcript.logprobs, None);
    settings.logprobs = true;
    let outcome = run(&settings, &all(5.0), script);
    let scored = outcome.transcript.logprobs.unwrap();
    let shown: Vec<_> = scored
        .iter()
        .map(|s| (s.token.as_str(), s.logprob))
        .collect();
    // Neither the language and the task, nor times; and nothing of a segment without length.
    assert_eq!(shown, [(" ", -3.0), ("a", -4.0), ("b", -7.0)]);
    assert_eq!(scored[1].bytes, b"a");
}

#[test]
fn silence_is_not_listened_to() {
    let quiet = voice(&[], 10 * S);
    let outcome = run(&settings(), &quiet, |_, attempt| panic!("{attempt:?}"));
    assert!(outcome.transcript.segments.is_empty() && outcome.reported.is_empty());
    assert_eq!(outcome.transcript.text(), "");
    assert_eq!(outcome.tally.silent.into_inner(), 1);
    // Loud noise is for the model to tell.
    let made_up = Heard {
        no_speech: 0.9,
        avg_logprob: -1.2,
        ..said(&[(0.0, " Thanks for watching!", 2.0)], false)
    };
    let outcome = run(&settings(), &all(10.0), |_, _| made_up.clone());
    assert_eq!(outcome.asked.len(), 1, "no second attempt");
    assert!(outcome.transcript.segments.is_empty());
}

#[test]
fn segments_without_text_or_length_are_left_out() {
    let outcome = run(&settings(), &all(10.0), |_, _| {
        said(
            &[(0.0, " ", 2.0), (2.0, " a", 2.0), (3.0, " b", 4.0)],
            false,
        )
    });
    assert_eq!(outcome.transcript.text(), "b");
    assert_eq!(outcome.transcript.segments.len(), 1);
}

#[test]
fn pieces_are_heard_at_once_without_each_others_text_and_come_out_in_order() {
    let bursts: Vec<Range<usize>> = (0..19).map(|i| 5 * i * S..(5 * i + 4) * S).collect();
    let voice = voice(&bursts, 95 * S);
    let mut settings = settings();
    settings.mode = Mode::Parallel(Pauses::default());
    settings.prompt = vec![9];
    let script = |_, attempt: &Attempt| {
        let second = attempt.audio.start / S;
        let length = attempt.audio.len() as f64 / S as f64;
        said(
            &[(0.0, &format!(" from {second}"), length.min(29.0))],
            false,
        )
    };
    let outcome = run(&settings, &voice, script);
    assert!(outcome.asked.len() >= 4);
    assert_eq!(outcome.at_once, outcome.asked.len() as u64);
    assert!(outcome
        .asked
        .iter()
        .all(|attempt| attempt.prompt == [PREV, 9, SOT, EN, TRANSCRIBE]));
    assert!(outcome
        .asked
        .iter()
        .all(|attempt| attempt.audio.len() <= WINDOW));
    let mut starts: Vec<_> = outcome.asked.iter().map(|a| a.audio.start / S).collect();
    starts.sort_unstable();
    let expected: String = starts
        .iter()
        .map(|second| format!(" from {second}"))
        .collect();
    assert_eq!(outcome.transcript.text(), expected.trim());
    // The language comes from the first piece alone.
    settings.language = None;
    let outcome = run(&settings, &voice, |_, attempt| {
        let mut heard = said(&[(0.0, " x", 20.0)], false);
        if attempt.detect {
            heard.tokens.splice(0..0, [DE, TRANSCRIBE]);
        }
        heard
    });
    assert_eq!(
        outcome
            .asked
            .iter()
            .filter(|attempt| attempt.detect)
            .count(),
        1
    );
    assert_eq!(outcome.transcript.language, "de");
}

#[test]
fn a_piece_that_was_not_heard_to_its_end_is_gone_on_with() {
    let mut settings = settings();
    settings.mode = Mode::Parallel(Pauses::default());
    let outcome = run(&settings, &all(20.0), |number, _| match number {
        0 => said(&[(0.0, " a", 12.0)], true),
        _ => said(&[(0.0, " b", 8.0)], false),
    });
    assert_eq!(outcome.asked[1].audio, 12 * S..20 * S);
    assert_eq!(
        outcome.asked[1].prompt,
        [SOT, EN, TRANSCRIBE],
        "without its text"
    );
    assert_eq!(outcome.transcript.text(), "a b");
}

#[test]
fn forced_lengths_are_kept_whatever_is_heard() {
    let mut settings = settings();
    (settings.max_tokens, settings.ignore_eos) = (27, true);
    let nonsense = Heard {
        avg_logprob: -9.0,
        no_speech: 0.9,
        ..said(&[(0.0, &" um".repeat(20), 2.0)], true)
    };
    let quiet = voice(&[], 40 * S);
    let outcome = run(&settings, &quiet, |_, _| nonsense.clone());
    let asked: Vec<_> = outcome
        .asked
        .iter()
        .map(|a| (a.audio.clone(), a.max_tokens, a.ignore_eos))
        .collect();
    assert_eq!(
        asked,
        [(0..30 * S, 27, true), (30 * S..40 * S, 27, true)],
        "each window once, none skipped"
    );
    assert_eq!(outcome.tally.fallbacks.into_inner(), 0);
}
