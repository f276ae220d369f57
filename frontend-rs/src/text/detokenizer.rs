//! Token ids to text, one token at a time.

use super::Pieces;

/// Turns a growing list of token ids into text that only ever grows: a character comes out once its last byte is
/// there, and bytes that can no longer become a character are dropped. U+FFFD never comes out, and what is still
/// incomplete when the output ends is never shown.
#[derive(Debug)]
pub struct Detokenizer {
    /// The beginning of a character; at most three bytes.
    held: Vec<u8>,
    show_special: bool,
    at_start: bool,
}

impl Default for Detokenizer {
    fn default() -> Self {
        Self {
            held: Vec::new(),
            show_special: false,
            at_start: true,
        }
    }
}

impl Detokenizer {
    /// Special tokens come out as their text instead of nothing.
    pub fn showing_special_tokens() -> Self {
        Self {
            show_special: true,
            ..Self::default()
        }
    }

    /// The text that `id` completes; often one word, empty in the middle of a character.
    pub fn push(&mut self, pieces: &Pieces, id: u32) -> String {
        if pieces.is_special(id) && !self.show_special {
            return String::new();
        }
        let mut bytes = pieces.bytes(id);
        if self.at_start && pieces.strip_leading_space {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.at_start = false;
        self.held.extend_from_slice(bytes);
        self.take_whole()
    }

    fn take_whole(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        let incomplete = loop {
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    break &[][..];
                }
                Err(error) => {
                    let (whole, tail) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(whole).expect("checked by the first pass"));
                    match error.error_len() {
                        Some(invalid) => rest = &tail[invalid..],
                        None => break tail,
                    }
                }
            }
        };
        self.held = incomplete.to_vec();
        // A checkpoint may hold U+FFFD itself as a token, from broken training text.
        if text.contains('\u{FFFD}') {
            text.retain(|c| c != '\u{FFFD}');
        }
        text
    }
}
