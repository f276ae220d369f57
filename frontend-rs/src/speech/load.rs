//! Reading the speech side of a checkpoint folder.

use std::path::Path;

use serde_json::Value;

use super::{codes, SpeechModel};
use crate::text::{LoadError, TextModel};

/// Architectures that hear.
const ARCHITECTURE: &str = "WhisperForConditionalGeneration";

/// Seconds of audio that one window holds, in tokens of time: 0.00 to 30.00 s.
const TIMES: u32 = 1501;

pub(super) fn load(folder: &Path, text: &mut TextModel) -> Result<Option<SpeechModel>, LoadError> {
    let config = read(folder, "config.json")?;
    if config["architectures"][0] != ARCHITECTURE {
        return Ok(None);
    }
    let generation = read(folder, "generation_config.json")?;
    let known = known_layout(text.vocab);
    let number = |key: &str| {
        generation[key]
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
    };
    let missing = |what: &str| {
        let path = folder.join("generation_config.json");
        LoadError(format!(
            "{}: the id of {what} is neither there nor in tokenizer.json, and a vocabulary of {} tokens is none of \
             Whisper's; save the checkpoint with its generation config",
            path.display(),
            text.vocab
        ))
    };
    // What the checkpoint says of generation, then what its tokenizer says, then what Whisper's vocabularies are known for.
    let id = |key: &str, token: &str, known: Option<u32>| {
        let named = number(key).or_else(|| text.token_id(token));
        named.or(known).ok_or_else(|| missing(token))
    };
    let task = |name: &str, known| {
        let named = generation["task_to_id"][name].as_u64().map(|id| id as u32);
        named
            .or_else(|| text.token_id(&format!("<|{name}|>")))
            .unwrap_or(known)
    };
    let k = known.as_ref();
    let no_timestamps = id(
        "no_timestamps_token_id",
        "<|notimestamps|>",
        k.map(|k| k.no_timestamps),
    )?;
    // In all of Whisper's vocabularies: translate, transcribe, startoflm, startofprev, nospeech, notimestamps.
    let before = |count: u32| no_timestamps.saturating_sub(count);
    let multilingual = generation["is_multilingual"]
        .as_bool()
        .unwrap_or_else(|| match k {
            Some(known) => known.multilingual,
            None => generation["lang_to_id"].is_object(),
        });
    let speech = SpeechModel {
        eot: id("eos_token_id", "<|endoftext|>", k.map(|k| k.eot))?,
        sot: id(
            "decoder_start_token_id",
            "<|startoftranscript|>",
            k.map(|k| k.sot),
        )?,
        sot_prev: id("prev_sot_token_id", "<|startofprev|>", Some(before(2)))?,
        transcribe: task("transcribe", before(4)),
        translate: task("translate", before(5)),
        no_timestamps,
        timestamp_begin: no_timestamps + 1,
        multilingual,
        languages: if multilingual {
            languages(&generation, text, k)
        } else {
            Vec::new()
        },
    };
    if multilingual && speech.languages.is_empty() {
        return Err(missing("any language"));
    }
    if speech.timestamp_begin >= text.vocab {
        return Err(missing("the first time"));
    }
    text.take_special_tokens_literally();
    Ok(Some(speech))
}

fn read(folder: &Path, name: &str) -> Result<Value, LoadError> {
    let path = folder.join(name);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(e) => {
            return Err(LoadError(format!(
                "{}: {e}; make it readable",
                path.display()
            )))
        }
    };
    serde_json::from_slice(&bytes).map_err(|e| {
        let shown = path.display();
        LoadError(format!(
            "{shown}: {e}; the file is damaged; download it again"
        ))
    })
}

/// Language tokens by id: from `lang_to_id`, the tokenizer, or the known layout.
fn languages(
    generation: &Value,
    text: &TextModel,
    known: Option<&SpeechModel>,
) -> Vec<(u32, &'static str)> {
    let named = |code: &str| generation["lang_to_id"][format!("<|{code}|>")].as_u64();
    let in_config = codes().filter_map(|code| Some((named(code)? as u32, code)));
    let in_tokenizer =
        codes().filter_map(|code| Some((text.token_id(&format!("<|{code}|>"))?, code)));
    let mut found: Vec<_> = in_config.collect();
    if found.is_empty() {
        found = in_tokenizer.collect();
    }
    if found.is_empty() {
        found = known
            .map(|known| known.languages.clone())
            .unwrap_or_default();
    }
    found.sort_unstable();
    found
}

/// The layout of Whisper's own vocabularies: 51,864 (English only), 51,865, and 51,866 (large-v3, with Cantonese).
fn known_layout(vocab: u32) -> Option<SpeechModel> {
    let (eot, count, multilingual) = match vocab {
        51_864 => (50_256, 99, false),
        51_865 => (50_257, 99, true),
        51_866 => (50_257, 100, true),
        _ => return None,
    };
    let after = eot + 2 + count;
    debug_assert_eq!(after + 6 + TIMES, vocab);
    Some(SpeechModel {
        eot,
        sot: eot + 1,
        translate: after,
        transcribe: after + 1,
        // after + 2 starts a language-model prompt, which nobody uses; after + 4 says that nobody speaks.
        sot_prev: after + 3,
        no_timestamps: after + 5,
        timestamp_begin: after + 6,
        multilingual,
        languages: (eot + 2..).zip(codes()).take(count as usize).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_layouts_are_whispers() {
        let turbo = known_layout(51_866).unwrap();
        assert_eq!((turbo.eot, turbo.sot), (50_257, 50_258));
        assert_eq!((turbo.translate, turbo.transcribe), (50_359, 50_360));
        assert_eq!(turbo.sot_prev, 50_362);
        assert_eq!(
            (turbo.no_timestamps, turbo.timestamp_begin),
            (50_364, 50_365)
        );
        assert_eq!(turbo.languages.first(), Some(&(50_259, "en")));
        assert_eq!(turbo.languages.last(), Some(&(50_358, "yue")));
        let base = known_layout(51_865).unwrap();
        assert_eq!((base.translate, base.timestamp_begin), (50_358, 50_364));
        assert_eq!(base.languages.last(), Some(&(50_357, "su")));
        let english = known_layout(51_864).unwrap();
        assert_eq!((english.eot, english.timestamp_begin), (50_256, 50_363));
        assert!(!english.multilingual);
        assert_eq!(known_layout(51_867), None);
    }
}
