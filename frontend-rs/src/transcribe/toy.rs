//! A model of bytes and a voice of one's own making, for this module's tests.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use serde_json::json;

use crate::audio::{Voice, FRAME};
use crate::model::ModelEntry;

/// Ids: 0–255 bytes, then Whisper's special tokens.
pub const EOT: u32 = 256;
pub const SOT: u32 = 257;
pub const EN: u32 = 258;
pub const DE: u32 = 259;
pub const ZH: u32 = 260;
pub const TRANSLATE: u32 = 261;
pub const TRANSCRIBE: u32 = 262;
pub const PREV: u32 = 263;
const NO_SPEECH: u32 = 264;
const NO_TIMES: u32 = 265;
const FIRST_TIME: u32 = 266;

/// The token of a time in a window.
pub fn time(seconds: f64) -> u32 {
    FIRST_TIME + (seconds / 0.02).round() as u32
}

pub fn text(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Printable stand-ins of bytes, as byte-level tokenizers have them.
fn alphabet() -> Vec<char> {
    let plain = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let stand_in = |byte| {
        let code = if plain(byte) {
            byte
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap()
    };
    (0..256).map(stand_in).collect()
}

pub fn model() -> Arc<ModelEntry> {
    static MODEL: OnceLock<Arc<ModelEntry>> = OnceLock::new();
    MODEL.get_or_init(|| Arc::new(load())).clone()
}

fn load() -> ModelEntry {
    let folder = std::env::temp_dir().join(format!("denizen-toy-speech-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let vocab: serde_json::Map<_, _> = alphabet()
        .iter()
        .zip(0..)
        .map(|(c, id): (_, u32)| (c.to_string(), json!(id)))
        .collect();
    let named = [
        (EOT, "endoftext"),
        (SOT, "startoftranscript"),
        (EN, "en"),
        (DE, "de"),
        (ZH, "zh"),
        (TRANSLATE, "translate"),
        (TRANSCRIBE, "transcribe"),
        (PREV, "startofprev"),
        (NO_SPEECH, "nospeech"),
        (NO_TIMES, "notimestamps"),
    ];
    let added = named.map(|(id, name)| {
        json!({
            "id": id, "content": format!("<|{name}|>"), "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        })
    });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let config = json!({
        "architectures": ["WhisperForConditionalGeneration"], "vocab_size": FIRST_TIME + 1501,
        "max_target_positions": 448,
    });
    let generation = json!({
        "is_multilingual": true, "no_timestamps_token_id": NO_TIMES, "decoder_start_token_id": SOT,
        "lang_to_id": {"<|en|>": EN, "<|de|>": DE, "<|zh|>": ZH},
        "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    });
    for (name, content) in [
        ("tokenizer.json", tokenizer),
        ("config.json", config),
        ("generation_config.json", generation),
    ] {
        std::fs::write(folder.join(name), content.to_string()).unwrap();
    }
    let entry = ModelEntry::load("toy", &folder, None).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    entry
}

/// Speech in the given samples, silence elsewhere.
pub fn voice(speech: &[Range<usize>], samples: usize) -> Voice {
    let scores = (0..samples.div_ceil(FRAME)).map(|frame| {
        let middle = frame * FRAME + FRAME / 2;
        if speech.iter().any(|stretch| stretch.contains(&middle)) {
            0.9
        } else {
            0.1
        }
    });
    Voice::from_scores(scores.collect(), samples)
}
