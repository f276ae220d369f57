//! Splits a thinking model's text into reasoning and content.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// What a piece of output is.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Part {
    pub reasoning: String,
    pub content: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The model may open its thinking itself: undecided until the first word.
    Start,
    /// After `<think>`: line ends that open the reasoning are dropped.
    ReasoningStart,
    Reasoning,
    /// After `</think>`: line ends in front of the answer are dropped.
    ContentStart,
    Content,
}

/// The reader of one output. Make a new one for each: it has state.
///
/// Tags never come out, nor the line ends around them; text comes out as soon as it cannot be part of a tag.
#[derive(Debug)]
pub struct Reasoning {
    state: State,
    held: String,
}

impl Reasoning {
    /// `prompt` is the rendered conversation: how it ends says whether the output begins inside the thinking (the
    /// template opened it), after it (thinking is off), or whether the model decides.
    pub fn after_prompt(prompt: &str) -> Self {
        let prompt = prompt.trim_end();
        let state = if prompt.ends_with(OPEN) {
            State::ReasoningStart
        } else if prompt.ends_with(CLOSE) {
            State::Content
        } else {
            State::Start
        };
        Self {
            state,
            held: String::new(),
        }
    }

    /// True while what comes is reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::ReasoningStart | State::Reasoning)
    }

    pub fn push(&mut self, text: &str) -> Part {
        self.held.push_str(text);
        let mut part = Part::default();
        while self.step(&mut part) {}
        part
    }

    /// The output has ended; what was held back is text after all.
    pub fn finish(&mut self) -> Part {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            // Only line ends can be held here.
            State::ReasoningStart | State::ContentStart => Part::default(),
            State::Reasoning => Part {
                reasoning: rest,
                content: String::new(),
            },
            State::Start | State::Content => Part {
                reasoning: String::new(),
                content: rest,
            },
        }
    }

    /// Handles what can be decided; true if the state changed and there may be more.
    fn step(&mut self, part: &mut Part) -> bool {
        match self.state {
            State::Start => {
                let word = self.held.trim_start();
                if let Some(rest) = word.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.state = State::ReasoningStart;
                    return true;
                }
                if OPEN.starts_with(word) {
                    return false;
                }
                self.state = State::Content;
                true
            }
            State::ReasoningStart | State::ContentStart => {
                let rest = self.held.trim_start_matches(['\n', '\r']);
                if rest.is_empty() {
                    return false;
                }
                self.held = rest.to_owned();
                self.state = if self.state == State::ReasoningStart {
                    State::Reasoning
                } else {
                    State::Content
                };
                true
            }
            State::Reasoning => {
                if let Some(at) = self.held.find(CLOSE) {
                    part.reasoning
                        .push_str(self.held[..at].trim_end_matches(['\n', '\r']));
                    self.held = self.held[at + CLOSE.len()..].to_owned();
                    self.state = State::ContentStart;
                    return true;
                }
                let keep = close_may_begin_at(&self.held);
                let rest = self.held.split_off(keep);
                part.reasoning
                    .push_str(&std::mem::replace(&mut self.held, rest));
                false
            }
            State::Content => {
                part.content.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }
}

/// Where the longest end of `text` starts that may become line ends and `</think>`.
fn close_may_begin_at(text: &str) -> usize {
    let tag = (1..CLOSE.len())
        .rev()
        .find(|&n| text.ends_with(&CLOSE[..n]))
        .unwrap_or(0);
    text[..text.len() - tag]
        .trim_end_matches(['\n', '\r'])
        .len()
}
