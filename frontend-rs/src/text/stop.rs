//! Stop strings in a text that arrives in pieces.

/// Finds the first stop string to be completed, however the text is cut. What comes out never holds any of the match,
/// and holds everything before it; at any time only a proper prefix of a stop string is kept back.
#[derive(Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What one piece of text led to.
#[derive(Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// Text that can be shown now.
    pub text: String,
    /// A stop string was completed; `text` ends where it began, and nothing may follow.
    pub stopped: bool,
}

impl StopMatcher {
    /// `stops` are not empty strings.
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            held: String::new(),
        }
    }

    pub fn push(&mut self, piece: &str) -> StopMatch {
        if self.stops.is_empty() {
            return StopMatch {
                text: piece.to_owned(),
                stopped: false,
            };
        }
        self.held.push_str(piece);
        // Of the matches, the one that a character-by-character reader sees first: the earliest end. Of several that
        // end there, the longest, so that no part of it is shown.
        let first = self
            .stops
            .iter()
            .filter_map(|stop| {
                self.held
                    .find(stop.as_str())
                    .map(|start| (start + stop.len(), start))
            })
            .min();
        if let Some((_, start)) = first {
            self.held.truncate(start);
            return StopMatch {
                text: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let keep = self.longest_prefix_at_end();
        let rest = self.held.split_off(self.held.len() - keep);
        StopMatch {
            text: std::mem::replace(&mut self.held, rest),
            stopped: false,
        }
    }

    /// The output has ended without a stop string: what was kept back is text after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes kept back because they may begin a stop string.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Length in bytes of the longest end of `held` that is a proper prefix of a stop string.
    fn longest_prefix_at_end(&self) -> usize {
        let longest = self
            .stops
            .iter()
            .map(|stop| stop.len() - 1)
            .max()
            .unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        (from..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| {
                self.stops
                    .iter()
                    .any(|stop| stop.starts_with(&self.held[at..]))
            })
            .map_or(0, |at| self.held.len() - at)
    }
}
