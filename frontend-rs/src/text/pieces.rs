//! What each token id stands for, as bytes.

use std::collections::HashMap;

use serde::Deserialize;

/// The bytes of every token id, taken from the tokenizer once, so that decoding a token is a table look-up and the
/// bytes of a half character are at hand.
pub struct Pieces {
    bytes: Vec<u8>,
    /// `bytes[ends[id - 1]..ends[id]]` are the bytes of `id`.
    ends: Vec<u32>,
    special: Vec<bool>,
    /// The decoder drops one space at the very start of an output (SentencePiece style).
    pub(super) strip_leading_space: bool,
}

/// The part of `tokenizer.json` that says how tokens become text.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum DecoderSpec {
    ByteLevel,
    ByteFallback,
    Fuse,
    Replace {
        pattern: ReplacePattern,
        content: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    Metaspace {
        replacement: char,
        prepend_scheme: Option<String>,
    },
    Sequence {
        decoders: Vec<DecoderSpec>,
    },
}

#[derive(Deserialize)]
enum ReplacePattern {
    String(String),
    Regex(String),
}

#[derive(Default)]
struct Rules {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
    strip_leading_space: bool,
}

impl Rules {
    fn add(&mut self, spec: DecoderSpec) -> Result<(), String> {
        match spec {
            DecoderSpec::ByteLevel => self.byte_level = true,
            DecoderSpec::ByteFallback => self.byte_fallback = true,
            DecoderSpec::Fuse => {}
            DecoderSpec::Replace {
                pattern: ReplacePattern::String(from),
                content,
            } => self.replace.push((from, content)),
            DecoderSpec::Replace {
                pattern: ReplacePattern::Regex(regex),
                ..
            } => return Err(format!("a Replace decoder with the regex '{regex}'")),
            DecoderSpec::Strip {
                content: ' ',
                start: 0 | 1,
                stop: 0,
            } => self.strip_leading_space = true,
            DecoderSpec::Strip {
                content,
                start,
                stop,
            } => {
                return Err(format!(
                    "a Strip decoder of {content:?} with start {start} and stop {stop}"
                ))
            }
            DecoderSpec::Metaspace {
                replacement,
                prepend_scheme,
            } => {
                self.replace.push((replacement.to_string(), " ".into()));
                self.strip_leading_space = prepend_scheme.as_deref() != Some("never");
            }
            DecoderSpec::Sequence { decoders } => {
                decoders.into_iter().try_for_each(|d| self.add(d))?
            }
        }
        Ok(())
    }

    fn bytes(&self, token: &str, byte_of: &HashMap<char, u8>) -> Vec<u8> {
        if self.byte_level {
            // A token with a character outside the byte alphabet is an added token, written as it is.
            return token
                .chars()
                .map(|c| byte_of.get(&c).copied())
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.as_bytes().to_vec());
        }
        if self.byte_fallback
            && token.len() == 6
            && token.starts_with("<0x")
            && token.ends_with('>')
        {
            if let Ok(byte) = u8::from_str_radix(&token[3..5], 16) {
                return vec![byte];
            }
        }
        let mut token = token.to_owned();
        for (from, to) in &self.replace {
            token = token.replace(from, to);
        }
        token.into_bytes()
    }
}

/// GPT-2's byte alphabet: printable Latin-1 stands for itself, the other bytes for the characters from U+0100 on.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let others = (0..=255u8).filter(|&b| !printable(b)).enumerate();
    let shifted = others.map(|(i, b)| {
        (
            char::from_u32(256 + i as u32).expect("below the surrogates"),
            b,
        )
    });
    (0..=255u8)
        .filter(|&b| printable(b))
        .map(|b| (char::from(b), b))
        .chain(shifted)
        .collect()
}

impl Pieces {
    /// `json` is the text of `tokenizer.json`, from which `tokenizer` was made.
    ///
    /// Errors: the decoder is of a kind that cannot be applied token by token.
    pub(super) fn new(json: &[u8], tokenizer: &tokenizers::Tokenizer) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct File {
            decoder: Option<serde_json::Value>,
        }
        let file: File = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let mut rules = Rules::default();
        let decoder = file.decoder.unwrap_or_default();
        let spec = serde_json::from_value(decoder.clone())
            .map_err(|_| format!("the decoder {}", decoder.get("type").unwrap_or(&decoder)))?;
        rules.add(spec)?;
        let byte_of = byte_alphabet();

        let mut vocab: Vec<(String, u32)> = tokenizer.get_vocab(true).into_iter().collect();
        vocab.sort_unstable_by_key(|(_, id)| *id);
        let mut pieces = Pieces {
            bytes: Vec::new(),
            ends: Vec::new(),
            special: Vec::new(),
            strip_leading_space: rules.strip_leading_space,
        };
        for (token, id) in vocab {
            // Ids without a token (holes) decode to nothing.
            while (pieces.ends.len() as u32) < id {
                pieces.push(&[]);
            }
            if pieces.ends.len() as u32 == id {
                pieces.push(&rules.bytes(&token, &byte_of));
            }
        }
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            if let Some(special) = pieces.special.get_mut(id as usize) {
                *special = token.special;
            }
        }
        Ok(pieces)
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len() as u32);
        self.special.push(false);
    }

    /// The bytes of a token; nothing for an id that the tokenizer does not have (padding rows of the embedding).
    pub fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// True for tokens such as `<|im_end|>` that are control, not text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// The token as text where it is whole characters, else in OpenAI's notation `bytes:\xe2\x80`.
    pub fn display(&self, id: u32) -> String {
        let bytes = self.bytes(id);
        match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.iter().fold(String::from("bytes:"), |text, byte| {
                text + &format!("\\x{byte:02x}")
            }),
        }
    }

    /// One more than the highest id that the tokenizer has.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
