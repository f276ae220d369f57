//! Where long audio is cut so that its pieces can be written down at once.

use std::ops::Range;

use super::{HOP, WINDOW};
use crate::audio::{Voice, POSSIBLE, SAMPLE_RATE};

/// What counts as a pause. The defaults keep all that may be speech.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pauses {
    /// Score from which a frame is speech, 0 to 1.
    pub threshold: f32,
    /// Audio kept around speech, milliseconds.
    pub padding_ms: u32,
    /// Silence between two stretches of speech that may be cut, milliseconds.
    pub silence_ms: u32,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            threshold: POSSIBLE,
            padding_ms: 300,
            silence_ms: 200,
        }
    }
}

/// Pieces of at most a window, in order, without overlap. All speech is in one of them; a cut goes through the middle of a
/// pause, and through the quietest moment of the second half where there is none for 30 s. Audio of one window is one
/// piece as it is.
pub fn cut(voice: &Voice, pauses: &Pauses) -> Vec<Range<usize>> {
    if voice.samples() <= WINDOW {
        return std::iter::once(0..voice.samples()).collect();
    }
    let samples = |ms: u32| ms as usize * SAMPLE_RATE as usize / 1000;
    let stretches = voice.stretches(pauses.threshold, samples(pauses.silence_ms));
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for stretch in padded(&stretches, samples(pauses.padding_ms), voice.samples()) {
        match pieces.last_mut() {
            Some(last) if stretch.end - last.start <= WINDOW => last.end = stretch.end,
            _ => pieces.extend(halved(voice, stretch)),
        }
    }
    for piece in &mut pieces {
        // At whole frames of the features; both sides of a cut move alike.
        piece.start -= piece.start % HOP;
        if piece.end < voice.samples() {
            piece.end -= piece.end % HOP;
        }
    }
    pieces
}

/// The stretches with what lies around them, but never more than half of a pause.
fn padded(stretches: &[Range<usize>], padding: usize, samples: usize) -> Vec<Range<usize>> {
    let between = |left: usize, right: usize| left + (right - left) / 2;
    (0..stretches.len())
        .map(|index| {
            let Range { start, end } = stretches[index];
            let floor = match index {
                0 => 0,
                _ => between(stretches[index - 1].end, start),
            };
            let ceiling = stretches
                .get(index + 1)
                .map_or(samples, |next| between(end, next.start));
            start.saturating_sub(padding).max(floor)..(end + padding).min(ceiling)
        })
        .collect()
}

/// A stretch without a pause in pieces of at most a window.
fn halved(voice: &Voice, mut stretch: Range<usize>) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    while stretch.len() > WINDOW {
        let at = voice.quietest(stretch.start + WINDOW / 2..stretch.start + WINDOW);
        pieces.push(stretch.start..at);
        stretch.start = at;
    }
    pieces.push(stretch);
    pieces
}

#[cfg(test)]
mod tests {
    use super::super::toy::voice;
    use super::*;

    const S: usize = SAMPLE_RATE as usize;

    /// Every stretch of speech lies in exactly one piece, unless it had to be cut.
    fn check(voice: &Voice, pieces: &[Range<usize>]) {
        for pair in pieces.windows(2) {
            assert!(pair[0].end <= pair[1].start, "{pieces:?}");
        }
        for piece in pieces {
            assert!(
                !piece.is_empty() && piece.len() <= WINDOW && piece.end <= voice.samples(),
                "{piece:?}"
            );
            assert_eq!(piece.start % HOP, 0);
        }
        for frame in voice.stretches(POSSIBLE, 1) {
            let middle = frame.start + frame.len() / 2;
            assert_eq!(
                pieces
                    .iter()
                    .filter(|piece| piece.contains(&middle))
                    .count(),
                1,
                "{middle} of {pieces:?}"
            );
        }
    }

    #[test]
    fn a_window_is_one_piece_as_it_is() {
        for samples in [1, 16_000, WINDOW] {
            let pieces = cut(&voice(&[], samples), &Pauses::default());
            assert_eq!((pieces.len(), &pieces[0]), (1, &(0..samples)));
        }
    }

    #[test]
    fn cuts_go_through_pauses() {
        // Speech in bursts of 4 s with pauses of 1 s, for 95 s.
        let bursts: Vec<Range<usize>> = (0..19).map(|i| 5 * i * S..(5 * i + 4) * S).collect();
        let voice = voice(&bursts, 95 * S);
        let pieces = cut(&voice, &Pauses::default());
        check(&voice, &pieces);
        assert_eq!(pieces.len(), 4);
        for piece in &pieces[1..] {
            let second = piece.start as f64 / S as f64;
            assert!(second % 5.0 > 4.4, "a cut at {second}");
        }
    }

    #[test]
    fn long_silence_is_in_no_piece() {
        let voice = voice(&[2 * S..5 * S, 80 * S..90 * S], 100 * S);
        let pieces = cut(&voice, &Pauses::default());
        check(&voice, &pieces);
        assert_eq!(pieces.len(), 2);
        assert!(pieces[0].end < 6 * S && pieces[1].start > 79 * S);
    }

    #[test]
    fn speech_without_a_pause_is_cut_where_it_is_quietest() {
        let samples = 70 * S;
        let mut scores = vec![0.95; samples.div_ceil(crate::audio::FRAME)];
        let quiet = 27 * S / crate::audio::FRAME;
        scores[quiet - 3..quiet + 3].fill(0.6);
        let voice = Voice::from_scores(scores, samples);
        let pieces = cut(&voice, &Pauses::default());
        check(&voice, &pieces);
        assert_eq!(
            pieces.iter().map(Range::len).sum::<usize>(),
            samples,
            "nothing is lost"
        );
        assert!(pieces[0].end.abs_diff(27 * S) < S / 10, "{pieces:?}");
    }

    #[test]
    fn just_over_a_window_loses_nothing() {
        let samples = WINDOW + HOP;
        let voice = voice(std::slice::from_ref(&(0..samples)), samples);
        let pieces = cut(&voice, &Pauses::default());
        check(&voice, &pieces);
        assert_eq!(pieces.iter().map(Range::len).sum::<usize>(), samples);
    }
}
