//! Files whose containers promise no length, and that were cut off all the same: they end in the middle of a page or frame.
//!
//! A cut between two of these cannot be told from an end. OGG has a mark for the end, but Android's own writer never
//! sets it, so its absence says nothing.

use super::sniff::{adts_frame, mpeg_frame, Container};

/// Bytes that encoders may leave out of the last MP3 frame: Shine loses what does not fill a word of 32 bits.
const MP3_SHORT: usize = 3;
/// Bytes that tell the length of a frame, at most.
const HEADER: usize = 6;

/// What the file was cut off in the middle of.
pub fn cut_inside(container: Container, bytes: &[u8]) -> Option<&'static str> {
    let (cut, inside) = match container {
        Container::Ogg => (ogg(bytes), "a page"),
        Container::Adts => (frames(bytes, adts_frame, [0xff, 0xff, 0xfc], 0), "a frame"),
        Container::Mpeg => (
            frames(bytes, mpeg_frame, [0xff, 0xff, 0x0c], MP3_SHORT),
            "a frame",
        ),
        _ => (false, ""),
    };
    cut.then_some(inside)
}

/// Whether a page goes beyond the end of the file, or the last packet into a page that is not there. No reader gets past
/// such a page, so it is all the same if its length is damaged and others follow.
fn ogg(bytes: &[u8]) -> bool {
    const MAGIC: &[u8] = b"OggS";
    let (mut at, mut goes_on) = (0, false);
    while let Some(gap) = bytes[at..].windows(4).position(|window| window == MAGIC) {
        let page = &bytes[at + gap..];
        let segments = page.get(26).map(|&count| usize::from(count));
        let table = segments.and_then(|count| page.get(27..27 + count));
        let size = table.map(|table| {
            let body: usize = table.iter().map(|&length| usize::from(length)).sum();
            27 + table.len() + body
        });
        let ends = page.len() >= 14 && page[5] & 4 != 0;
        let Some(size) = size.filter(|&size| size <= page.len()) else {
            // The mark of the end comes with how long the stream should have been, which says more.
            return !ends;
        };
        goes_on = !ends && table.and_then(<[u8]>::last) == Some(&0xff);
        at += gap + size;
    }
    let rest = &bytes[at..];
    goes_on || !rest.is_empty() && MAGIC.starts_with(rest)
}

/// Whether a frame goes beyond the end of the file, by more than `short` bytes. `length` reads a frame's header; `fixed` are the bits of its
/// first bytes that are the same in all frames of a stream.
fn frames(bytes: &[u8], length: fn(&[u8]) -> Option<usize>, fixed: [u8; 3], short: usize) -> bool {
    // Who wrote a tag behind the last frame took it for the last.
    let end = |from_end: usize, magic: &[u8]| {
        let at = bytes.len().checked_sub(from_end);
        at.is_some_and(|at| bytes[at..].starts_with(magic))
    };
    if end(128, b"TAG") || end(32, b"APETAGEX") {
        return false;
    }
    let alike = |a: usize, b: usize| {
        let pairs = bytes[a..].iter().zip(&bytes[b..]).zip(fixed);
        pairs.fold(true, |same, ((a, b), mask)| same && (a ^ b) & mask == 0)
    };
    let (mut at, mut last) = (0, 0);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let claimed = length(rest);
        if let Some(size) = claimed.filter(|&size| size <= rest.len()) {
            (last, at) = (at, at + size);
        } else if alike(last, at) && (claimed.is_some() || rest.len() < HEADER) {
            return claimed.is_none_or(|size| size - rest.len() > short);
        } else {
            // Damage or junk; frames go on where two follow each other.
            let pair = |&from: &usize| {
                let size = length(&bytes[from..]).unwrap_or(usize::MAX);
                let next = from.saturating_add(size);
                next < bytes.len() && alike(from, next)
            };
            let Some(from) = (at + 1..bytes.len()).find(pair) else {
                return false;
            };
            at = from;
        }
    }
    false
}
