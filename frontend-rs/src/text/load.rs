//! Reading the text side of a checkpoint folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{LoadError, Pieces, SamplingDefaults, TextModel};
use crate::chat::ChatTemplate;

/// Tokens that end a turn in the common chat formats. They count only where the tokenizer has them as special tokens.
const TURN_ENDS: [&str; 6] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
];

fn error(path: &Path, what: impl std::fmt::Display, remedy: &str) -> LoadError {
    LoadError(format!("{}: {what}; {remedy}", path.display()))
}

/// A folder's file as JSON; `None` if it is not there.
fn read_json(path: &Path) -> Result<Option<Value>, LoadError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(error(path, e, "make it readable")),
    };
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|e| error(path, e, "the file is damaged; download it again"))?;
    if !value.is_object() {
        return Err(error(
            path,
            "not a JSON object",
            "the file is damaged; download it again",
        ));
    }
    Ok(Some(value))
}

pub(super) fn load(folder: &Path) -> Result<TextModel, LoadError> {
    if !folder.is_dir() {
        return Err(error(
            folder,
            "no such folder",
            "give the path of a Hugging Face checkpoint folder",
        ));
    }
    let config_path = folder.join("config.json");
    let config = read_json(&config_path)?.ok_or_else(|| {
        error(
            &config_path,
            "not found",
            "a checkpoint folder needs the model's config.json",
        )
    })?;
    // Vision-language wrappers keep the language model's part under `text_config`.
    let size = |key: &str| -> Result<u32, LoadError> {
        let value = config
            .get("text_config")
            .and_then(|c| c.get(key))
            .or_else(|| config.get(key));
        value
            .and_then(Value::as_u64)
            .and_then(|n| u32::try_from(n).ok())
            .filter(|&n| n > 0)
            .ok_or_else(|| {
                error(
                    &config_path,
                    format!("no usable '{key}'"),
                    "set it to the model's value",
                )
            })
    };
    // Whisper's name for it.
    let context = size("max_target_positions").or_else(|_| size("max_position_embeddings"))?;
    let vocab = size("vocab_size")?;

    let tokenizer_path = folder.join("tokenizer.json");
    let bytes = std::fs::read(&tokenizer_path).map_err(|e| {
        if e.kind() != std::io::ErrorKind::NotFound {
            return error(&tokenizer_path, e, "make it readable");
        }
        let remedy = "a checkpoint folder needs the fast tokenizer's tokenizer.json \
                      (transformers' AutoTokenizer.save_pretrained writes it)";
        error(&tokenizer_path, "not found", remedy)
    })?;
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|e| {
        error(
            &tokenizer_path,
            e,
            "the file is damaged or newer than this server; download it again",
        )
    })?;
    // Some checkpoints leave the truncation and padding of their training in the file.
    tokenizer.with_padding(None);
    tokenizer
        .with_truncation(None)
        .map_err(|e| error(&tokenizer_path, e, "remove its 'truncation'"))?;
    let pieces = Pieces::new(&bytes, &tokenizer).map_err(|e| {
        let remedy = "only ByteLevel, Metaspace and ByteFallback decoders are supported";
        error(&tokenizer_path, format!("{e} is not supported"), remedy)
    })?;
    if pieces.len() > vocab as usize {
        let what = format!(
            "has token ids up to {} but config.json's vocab_size is {vocab}",
            pieces.len() - 1
        );
        return Err(error(
            &tokenizer_path,
            what,
            "use the tokenizer that belongs to the checkpoint",
        ));
    }

    let tokenizer_config_path = folder.join("tokenizer_config.json");
    let tokenizer_config = read_json(&tokenizer_config_path)?.unwrap_or_default();
    let generation_path = folder.join("generation_config.json");
    let generation = read_json(&generation_path)?.unwrap_or_default();

    let special_tokens: Vec<(String, String)> = [
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "sep_token",
        "cls_token",
    ]
    .iter()
    .filter_map(|name| Some((name.to_string(), token_text(tokenizer_config.get(name)?)?)))
    .collect();
    let template = chat_template(folder, &tokenizer_config, &tokenizer_config_path)?
        .map(|(path, source)| {
            ChatTemplate::compile(source, special_tokens.clone()).map_err(|e| {
                error(
                    &path,
                    format!("the chat template does not compile: {e}"),
                    "repair the template",
                )
            })
        })
        .transpose()?;

    let mut stop_ids = BTreeSet::new();
    for (path, file) in [(&generation_path, &generation), (&config_path, &config)] {
        stop_ids.extend(end_ids(path, file)?);
        if let Some(text) = file.get("text_config") {
            stop_ids.extend(end_ids(path, text)?);
        }
    }
    let eos = special_tokens
        .iter()
        .filter(|(name, _)| name == "eos_token")
        .map(|(_, token)| token.as_str());
    stop_ids.extend(eos.filter_map(|token| tokenizer.token_to_id(token)));
    let turn_ends = TURN_ENDS
        .iter()
        .filter_map(|token| tokenizer.token_to_id(token));
    stop_ids.extend(turn_ends.filter(|&id| pieces.is_special(id)));
    if let Some(id) = stop_ids.iter().find(|&&id| id >= vocab) {
        let what = format!("end id {id} is outside the vocabulary of {vocab}");
        return Err(error(
            &generation_path,
            what,
            "correct 'eos_token_id' there or in config.json",
        ));
    }

    let defaults = sampling_defaults(&generation_path, &generation)?;
    Ok(TextModel {
        tokenizer_sha256: Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
        stop_ids: stop_ids.into_iter().collect(),
        context,
        vocab,
        defaults,
        pieces,
        template,
        tokenizer,
        literal: OnceLock::new(),
    })
}

/// A special token's text: a string, or an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}

/// The template's source and the file that it came from.
fn chat_template(
    folder: &Path,
    tokenizer_config: &Value,
    tokenizer_config_path: &Path,
) -> Result<Option<(PathBuf, String)>, LoadError> {
    let path = folder.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(source) => return Ok(Some((path, source))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(error(&path, e, "make it a readable UTF-8 file")),
    }
    let source = match tokenizer_config.get("chat_template") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(source)) => source.clone(),
        // Several named templates; "default" is the one for plain chat.
        Some(Value::Array(named)) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))
            .or_else(|| named.first().filter(|_| named.len() == 1))
            .and_then(|entry| entry.get("template")?.as_str())
            .ok_or_else(|| {
                let what = "'chat_template' is a list without an entry named 'default'";
                error(
                    tokenizer_config_path,
                    what,
                    "name one of its templates 'default'",
                )
            })?
            .to_owned(),
        Some(_) => {
            let what = "'chat_template' is neither a string nor a list of named templates";
            return Err(error(
                tokenizer_config_path,
                what,
                "correct it or write chat_template.jinja beside it",
            ));
        }
    };
    Ok(Some((tokenizer_config_path.to_owned(), source)))
}

/// `eos_token_id`: absent, null, an id or a list of ids.
fn end_ids(path: &Path, file: &Value) -> Result<Vec<u32>, LoadError> {
    let id = |value: &Value| {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| {
                error(
                    path,
                    format!("'eos_token_id' holds {value}"),
                    "it must be a token id or a list of token ids",
                )
            })
    };
    match file.get("eos_token_id") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(value) => Ok(vec![id(value)?]),
    }
}

fn sampling_defaults(path: &Path, generation: &Value) -> Result<SamplingDefaults, LoadError> {
    let number = |key: &str, fallback: f32, valid: fn(f32) -> bool| match generation.get(key) {
        None | Some(Value::Null) => Ok(fallback),
        Some(value) => value
            .as_f64()
            .map(|x| x as f32)
            .filter(|x| valid(*x))
            .ok_or_else(|| {
                error(
                    path,
                    format!("'{key}' is {value}, which cannot be used"),
                    "correct or remove it",
                )
            }),
    };
    let fallback = SamplingDefaults::default();
    let temperature = number("temperature", fallback.temperature, |x| {
        (0.0..=2.0).contains(&x)
    })?;
    // `transformers` never writes its default, false: where it stands, somebody chose greedy decoding.
    let greedy = generation.get("do_sample") == Some(&Value::Bool(false));
    Ok(SamplingDefaults {
        temperature: if greedy { 0.0 } else { temperature },
        top_k: number("top_k", 0.0, |x| {
            (0.0..=1e6).contains(&x) && x.fract() == 0.0
        })? as u32,
        top_p: number("top_p", fallback.top_p, |x| (0.0..=1.0).contains(&x))?,
        min_p: number("min_p", fallback.min_p, |x| (0.0..=1.0).contains(&x))?,
        repetition_penalty: number("repetition_penalty", fallback.repetition_penalty, |x| {
            x > 0.0 && x <= 10.0
        })?,
    })
}
