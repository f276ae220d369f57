//! Detokenizer and stop strings, for every way to cut a text.

use denizen_frontend::model::ModelEntry;
use denizen_frontend::text::{Detokenizer, StopMatcher};
use proptest::prelude::*;

use crate::support::{models, qwen, smol, tiny, tiny_id};

const HARD: &str = "👩‍👩‍👧‍👦 🇯🇵 龘𠮷 שָׁלוֹם नमस्ते é e\u{301} ﷽ \u{200d}\u{feff}\u{1F3FB}\r\n\ta  b";

fn streamed(model: &ModelEntry, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::default();
    ids.iter()
        .map(|&id| detokenizer.push(model.text.pieces(), id))
        .collect()
}

/// penta2himajin/qwisp#134, exo#1691: U+FFFD in a stream, or a stream that stops for ever.
#[test]
fn utf8_split_at_every_cut_point_never_shows_half_a_character() {
    for model in [tiny(), smol(), qwen()] {
        let ids = model.text.encode(HARD, false).unwrap();
        let pieces = streamed(&model, &ids);
        // Qwen's tokenizer composes characters (NFC) before it splits.
        let whole = model.text.decode(&ids);
        assert_eq!(pieces.concat(), whole);
        if model.name != "qwen" {
            assert_eq!(whole, HARD);
        }
        for cut in 0..ids.len() {
            let shown = streamed(&model, &ids[..cut]).concat();
            assert!(!shown.contains('\u{FFFD}'));
            assert!(whole.starts_with(&shown), "{shown:?}");
            // Nothing complete is held back: fewer than four bytes are missing.
            let bytes: usize = ids[..cut]
                .iter()
                .map(|&id| model.text.pieces().bytes(id).len())
                .sum();
            assert!(bytes - shown.len() < 4);
        }
    }
}

#[test]
fn bytes_that_are_no_character_are_dropped_and_do_not_stop_the_stream() {
    let model = tiny();
    let ids: Vec<u32> = b"a\xff\xfeb\xe2\x82c\xf0\x9f\x98d\x80\xef\xbf\xbde\xe2"
        .iter()
        .map(|&b| b.into())
        .collect();
    assert_eq!(streamed(&model, &ids).concat(), "abcde");
}

#[test]
fn the_detokenizer_equals_the_tokenizers_own_decoder() {
    for (model, json) in [(smol(), "smollm2"), (qwen(), "qwen3_5")] {
        let tokenizer = tokenizers::Tokenizer::from_bytes(models::tokenizer_json(json)).unwrap();
        let last = tokenizer.get_vocab_size(true) as u32;
        let mut random = 12345u64;
        for length in [1, 2, 3, 50] {
            for _ in 0..200 {
                let ids: Vec<u32> = (0..length)
                    .map(|_| {
                        random = random
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        (random >> 33) as u32 % last
                    })
                    .collect();
                let expected = tokenizer
                    .decode(&ids, true)
                    .unwrap()
                    .replace('\u{FFFD}', "");
                assert_eq!(streamed(&model, &ids).concat(), expected, "{ids:?}");
            }
        }
    }
}

#[test]
fn special_tokens_are_not_text_but_think_tags_are() {
    let model = tiny();
    let ids = [
        tiny_id("<|im_start|>"),
        65,
        tiny_id("<think>"),
        66,
        tiny_id("<|im_end|>"),
        299,
    ];
    assert_eq!(streamed(&model, &ids).concat(), "A<think>B");
    assert_eq!(model.text.decode(&ids), "<|im_start|>A<think>B<|im_end|>");
}

#[test]
fn a_sentencepiece_decoder_drops_the_first_space_only() {
    let folder = models::tiny_folder();
    let mut tokenizer = models::tiny_tokenizer();
    tokenizer["decoder"] = serde_json::json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]});
    tokenizer["model"] = serde_json::json!({
        "type": "BPE", "byte_fallback": true, "merges": [],
        "vocab": {"▁": 0, "▁hi": 1, "<0xF0>": 2, "<0x9F>": 3, "<0x99>": 4, "<0x82>": 5, "<s>": 6},
    });
    tokenizer["added_tokens"] = serde_json::json!([]);
    tokenizer["pre_tokenizer"] = serde_json::Value::Null;
    folder.write_json("tokenizer.json", &tokenizer);
    let text = denizen_frontend::text::TextModel::load(&folder.0).unwrap();
    let mut detokenizer = Detokenizer::default();
    let pieces: Vec<String> = [1, 1, 2, 3, 4, 5, 0]
        .iter()
        .map(|&id| detokenizer.push(text.pieces(), id))
        .collect();
    assert_eq!(pieces, ["hi", " hi", "", "", "", "🙂", " "]);
}

#[test]
fn partial_characters_are_shown_as_bytes_in_logprobs() {
    assert_eq!(tiny().text.pieces().display(0xE2), "bytes:\\xe2");
    assert_eq!(tiny().text.pieces().display(b'a'.into()), "a");
}

/// What a reader that looks at one character after the other shows before the first completed stop string.
fn reference(text: &str, stops: &[String]) -> (String, bool) {
    for end in (1..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let found = stops
            .iter()
            .filter(|stop| text[..end].ends_with(stop.as_str()))
            .map(String::len)
            .max();
        if let Some(length) = found {
            return (text[..end - length].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

fn cut(text: &str, cuts: &[usize]) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for (i, c) in text.chars().enumerate() {
        if cuts.contains(&i) {
            pieces.push(String::new());
        }
        pieces.last_mut().unwrap().push(c);
    }
    pieces
}

proptest! {
    /// vllm#3574, mlx-knife#68: part of a stop string leaks. smg#2203: too much is held back.
    #[test]
    fn every_split_of_a_text_shows_the_same_and_nothing_of_a_stop_string(
        text in "[abé]{0,24}",
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
        cuts in prop::collection::vec(0usize..24, 0..12),
    ) {
        let mut matcher = StopMatcher::new(stops.clone());
        let mut shown = String::new();
        let mut fed = String::new();
        let mut stopped = false;
        for piece in cut(&text, &cuts) {
            let found = matcher.push(&piece);
            shown.push_str(&found.text);
            fed.push_str(&piece);
            if found.stopped {
                stopped = true;
                break;
            }
            let held = &fed[shown.len()..];
            prop_assert_eq!(held.len(), matcher.held());
            // Only a proper prefix of a stop string is kept back.
            prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held) && s.len() > held.len()));
        }
        if !stopped {
            shown.push_str(&matcher.finish());
        }
        prop_assert_eq!((shown, stopped), reference(&text, &stops));
    }

    #[test]
    fn any_bytes_decode_the_same_one_by_one_as_at_once(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let ids: Vec<u32> = bytes.iter().map(|&b| b.into()).collect();
        let expected = String::from_utf8_lossy(&bytes).replace('\u{FFFD}', "");
        prop_assert_eq!(streamed(&tiny(), &ids).concat(), expected);
    }
}
