//! A window's tokens to segments, and where the next window begins.

use std::ops::Range;

use super::{HOP, WINDOW_FRAMES};
use crate::audio::SAMPLE_RATE;
use crate::speech::SpeechModel;

/// Frames of features a token of time stands for.
const FRAMES_A_TIME: usize = 2;
/// Frames of features a second has.
pub const FRAMES_A_SECOND: f64 = SAMPLE_RATE as f64 / HOP as f64;

/// A segment of a window: its tokens' places, and its times in seconds from the start of the window.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    pub tokens: Range<usize>,
    pub start_s: f64,
    pub end_s: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    pub pieces: Vec<Piece>,
    /// Frames from this window's start to the next one's.
    pub advance: usize,
    /// The last segment ended with the window's speech: nothing of the window is left.
    pub whole: bool,
}

/// Splits the tokens of a window of `frames` frames at pairs of times. What follows the last pair was cut off by the
/// window's end and is heard again in the next one.
pub fn split(tokens: &[u32], speech: &SpeechModel, frames: usize) -> Split {
    let is_time = |index: usize| speech.is_timestamp(tokens[index]);
    let ticks = |index: usize| tokens[index].saturating_sub(speech.timestamp_begin) as usize;
    let seconds = |ticks: usize| (ticks * FRAMES_A_TIME) as f64 / FRAMES_A_SECOND;
    let count = tokens.len();
    let whole = count >= 2 && !is_time(count - 2) && is_time(count - 1);
    let mut bounds: Vec<usize> = (1..count)
        .filter(|index| is_time(index - 1) && is_time(*index))
        .collect();
    let mut pieces = Vec::new();
    if bounds.is_empty() {
        let last = (0..count)
            .rev()
            .find(|index| is_time(*index))
            .map_or(0, ticks);
        let end_s = if last > 0 {
            seconds(last)
        } else {
            frames as f64 / FRAMES_A_SECOND
        };
        pieces.push(Piece {
            tokens: 0..count,
            start_s: 0.0,
            end_s,
        });
        return Split {
            pieces,
            advance: frames,
            whole,
        };
    }
    if whole {
        bounds.push(count);
    }
    let mut from = 0;
    for to in bounds {
        let piece = Piece {
            tokens: from..to,
            start_s: seconds(ticks(from)),
            end_s: seconds(ticks(to - 1)),
        };
        pieces.push(piece);
        from = to;
    }
    let advance = match ticks(from - 1) * FRAMES_A_TIME {
        // Times that never leave the start would be heard for ever.
        0 => frames,
        _ if whole => frames,
        advance => advance.min(WINDOW_FRAMES),
    };
    Split {
        pieces,
        advance,
        whole,
    }
}

#[cfg(test)]
mod tests {
    use super::super::toy::{model, time};
    use super::*;

    type Pieces = Vec<(Range<usize>, f64, f64)>;

    fn of(tokens: &[u32], frames: usize) -> (Pieces, usize, bool) {
        let model = model();
        let split = split(tokens, model.speech.as_ref().unwrap(), frames);
        let pieces = split
            .pieces
            .into_iter()
            .map(|p| (p.tokens, p.start_s, p.end_s));
        (pieces.collect(), split.advance, split.whole)
    }

    #[test]
    fn one_segment_that_ends_takes_the_whole_window() {
        let tokens = [time(0.0), 5, 6, time(4.5)];
        assert_eq!(of(&tokens, 3000), (vec![(0..4, 0.0, 4.5)], 3000, true));
    }

    #[test]
    fn what_follows_the_last_pair_is_heard_again() {
        let tokens = [
            time(0.0),
            5,
            time(2.0),
            time(2.5),
            6,
            time(9.0),
            time(9.0),
            7,
            8,
        ];
        assert_eq!(
            of(&tokens, 3000),
            (vec![(0..3, 0.0, 2.0), (3..6, 2.5, 9.0)], 900, false)
        );
    }

    #[test]
    fn a_last_segment_with_an_end_is_taken() {
        let tokens = [time(0.0), 5, time(2.0), time(2.0), 6, time(9.0)];
        assert_eq!(
            of(&tokens, 1000),
            (vec![(0..3, 0.0, 2.0), (3..6, 2.0, 9.0)], 1000, true)
        );
    }

    #[test]
    fn without_any_pair_the_last_time_or_the_window_ends_the_segment() {
        assert_eq!(
            of(&[time(0.0), 5, 6], 1234),
            (vec![(0..3, 0.0, 12.34)], 1234, false)
        );
        assert_eq!(
            of(&[5, time(3.0), 6], 1234),
            (vec![(0..3, 0.0, 3.0)], 1234, false)
        );
        assert_eq!(of(&[], 10), (vec![(0..0, 0.0, 0.1)], 10, false));
    }

    #[test]
    fn every_window_gets_somewhere() {
        let tokens = [time(0.0), 5, time(0.0), time(0.0), 6];
        assert_eq!(of(&tokens, 3000).1, 3000);
    }
}
