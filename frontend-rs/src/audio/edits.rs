//! What Symphonia leaves out of containers: which samples to cut away (edit lists in MP4, discard padding in WebM), and
//! how to read files that were cut off, whose last boxes are longer than what is left of them. The walks read headers
//! only, in one pass, and take nothing they meet at its word.

/// Bytes to read in place of a file's own, each with its position.
pub type Patches = Vec<(usize, u8)>;

/// The part of an MP4 track that is meant to be heard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edit {
    /// Where it starts: the encoder's priming, seconds of the track.
    pub skip_s: f64,
    /// How long it is; `None`: to the end.
    pub keep_s: Option<f64>,
}

/// The edit list of track `id`, where it is of the usual form: one piece at normal speed.
pub fn mp4_edit(bytes: &[u8], id: u32) -> Option<Edit> {
    let moov = child(bytes, b"moov")?;
    let movie_scale = timescale(child(moov, b"mvhd")?)?;
    let track = Boxes(moov).find(|(kind, body)| {
        let tkhd = (*kind == *b"trak").then(|| child(body, b"tkhd")).flatten();
        tkhd.is_some_and(|tkhd| {
            let at = if tkhd.first() == Some(&1) { 20 } else { 12 };
            word(tkhd, at) == Some(id)
        })
    })?;
    let media_scale = timescale(child(child(track.1, b"mdia")?, b"mdhd")?)?;
    let list = child(child(track.1, b"edts")?, b"elst")?;
    let wide = list.first()? == &1;
    let size = if wide { 20 } else { 12 };
    let count = word(list, 4)? as usize;
    let mut real = None;
    for entry in list.get(8..)?.chunks_exact(size).take(count) {
        let (duration, start) = if wide {
            let long = |at| u64::from(word(entry, at).unwrap_or(0)) << 32;
            (
                long(0) | u64::from(word(entry, 4)?),
                (long(8) | u64::from(word(entry, 12)?)) as i64,
            )
        } else {
            (
                u64::from(word(entry, 0)?),
                i64::from(word(entry, 4)? as i32),
            )
        };
        // A start of -1 is an empty edit: the track begins later than the movie, which changes no sample.
        if start < 0 {
            continue;
        }
        if real.is_some() || word(entry, size - 4)? != 0x1_0000 {
            return None;
        }
        real = Some(Edit {
            skip_s: start as f64 / media_scale,
            // A fragmented file's first header does not know the length.
            keep_s: (duration > 0).then_some(duration as f64 / movie_scale),
        });
    }
    real
}

/// The four letters of the codec of an MP4 file's first sound track.
pub fn mp4_sound(bytes: &[u8]) -> Option<[u8; 4]> {
    let tracks = Boxes(child(bytes, b"moov")?).filter(|(kind, _)| kind == b"trak");
    let mut media = tracks.filter_map(|(_, track)| child(track, b"mdia"));
    let sound = media.find(|media| {
        let handler = child(media, b"hdlr").and_then(|handler| handler.get(8..12));
        handler == Some(b"soun")
    })?;
    let table = child(child(child(sound, b"minf")?, b"stbl")?, b"stsd")?;
    table.get(12..16)?.try_into().ok()
}

/// Makes the `mdat` box of a file that was cut off within it reach to the end of the file. The reader would skip a box
/// that is too long, and all samples with it.
pub fn mp4_mend(bytes: &[u8]) -> Patches {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let (Some(size), Some(kind)) = (word(rest, 0), rest.get(4..8)) else {
            return Patches::new();
        };
        let size = match size {
            1 => {
                let half = |at| u64::from(word(rest, at).unwrap_or(0));
                half(8) << 32 | half(12)
            }
            size => u64::from(size),
        };
        if size > rest.len() as u64 {
            let cut = kind == b"mdat";
            // A size of 0 says that the box is the last.
            return (0..4).filter(|_| cut).map(|n| (at + n, 0)).collect();
        }
        match usize::try_from(size) {
            Ok(size) if size >= 8 => at += size,
            _ => return Patches::new(),
        }
    }
}

fn timescale(header: &[u8]) -> Option<f64> {
    let at = if header.first()? == &1 { 20 } else { 12 };
    word(header, at).filter(|&scale| scale > 0).map(f64::from)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
}

fn child<'a>(bytes: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    Boxes(bytes)
        .find(|(found, _)| found == kind)
        .map(|(_, body)| body)
}

/// The boxes that follow each other in a slice; ends at the first that does not fit.
struct Boxes<'a>(&'a [u8]);

impl<'a> Iterator for Boxes<'a> {
    type Item = ([u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let kind = self.0.get(4..8)?.try_into().ok()?;
        let (header, size) = match word(self.0, 0)? {
            0 => (8, self.0.len()),
            1 => {
                let size = u64::from(word(self.0, 8)?) << 32 | u64::from(word(self.0, 12)?);
                (16, usize::try_from(size).ok()?)
            }
            size => (8, size as usize),
        };
        // The last box of a file that was cut off still has its first bytes.
        let body = self.0.get(header..size.min(self.0.len()))?;
        self.0 = &self.0[size.min(self.0.len())..];
        Some((kind, body))
    }
}

/// What the header walk over a WebM file finds.
pub struct Webm {
    /// Seconds to cut from the end of its sound: the DiscardPadding of the last block.
    pub discard_s: f64,
    /// Give a segment or cluster that is longer than the file an unknown size, which such files may have anyway.
    pub patches: Patches,
}

pub fn webm(bytes: &[u8]) -> Webm {
    const SEGMENT: u64 = 0x1853_8067;
    const CLUSTER: u64 = 0x1f43_b675;
    const BLOCK_GROUP: u64 = 0xa0;
    const BLOCK: u64 = 0xa1;
    const SIMPLE_BLOCK: u64 = 0xa3;
    const DISCARD_PADDING: u64 = 0x75a2;
    let mut discard_s = 0.0;
    let mut patches = Patches::new();
    let mut at = 0;
    while let Some((id, id_length)) = vint(bytes, at, false) {
        let size_at = at + id_length;
        let Some((size, size_length)) = vint(bytes, size_at, true) else {
            break;
        };
        at = size_at + size_length;
        let fits = size <= (bytes.len() - at) as u64;
        match id {
            // Walked through, whatever their size.
            SEGMENT | CLUSTER | BLOCK_GROUP => {
                if !fits && id != BLOCK_GROUP {
                    patches.push((size_at, 0xff >> (size_length - 1)));
                    patches.extend((1..size_length).map(|n| (size_at + n, 0xff)));
                }
                continue;
            }
            BLOCK | SIMPLE_BLOCK => discard_s = 0.0,
            DISCARD_PADDING if fits && size <= 8 => {
                let value = &bytes[at..at + size as usize];
                let nanoseconds = value.iter().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
                discard_s = nanoseconds as f64 * 1e-9;
            }
            _ => {}
        }
        if !fits {
            break;
        }
        at += size as usize;
    }
    // More than the longest Opus packet is no padding.
    if discard_s > 0.12 {
        discard_s = 0.0;
    }
    Webm { discard_s, patches }
}

/// An EBML number and its length in bytes; `masked` takes the length marker off, as sizes want it.
fn vint(bytes: &[u8], at: usize, masked: bool) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    let length = first.leading_zeros() as usize + 1;
    if length > 8 {
        return None;
    }
    let raw = bytes.get(at..at + length)?;
    let value = raw.iter().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
    let mask = if masked {
        (1u64 << (7 * length)) - 1
    } else {
        u64::MAX
    };
    Some((value & mask, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let size = (8 + body.len() as u32).to_be_bytes();
        [&size[..], kind, body].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn movie(edits: &[u32]) -> Vec<u8> {
        let mut elst = words(&[0, edits.len() as u32 / 3]);
        elst.extend(words(edits));
        let track = [
            boxed(b"tkhd", &words(&[0, 0, 0, 7])),
            boxed(b"edts", &boxed(b"elst", &elst)),
            boxed(b"mdia", &boxed(b"mdhd", &words(&[0, 0, 0, 16_000]))),
        ];
        let moov = [
            boxed(b"mvhd", &words(&[0, 0, 0, 1000])),
            boxed(b"trak", &track.concat()),
        ];
        [boxed(b"ftyp", b"M4A "), boxed(b"moov", &moov.concat())].concat()
    }

    #[test]
    fn reads_the_usual_edit_list() {
        let file = movie(&[7100, 1024, 0x1_0000]);
        let edit = Edit {
            skip_s: 0.064,
            keep_s: Some(7.1),
        };
        assert_eq!(mp4_edit(&file, 7), Some(edit));
        assert_eq!(mp4_edit(&file, 8), None);
        let late = movie(&[500, u32::MAX, 0x1_0000, 7100, 1024, 0x1_0000]);
        assert_eq!(mp4_edit(&late, 7), Some(edit));
    }

    #[test]
    fn leaves_unusual_edit_lists_alone() {
        let pieces = movie(&[100, 0, 0x1_0000, 100, 4000, 0x1_0000]);
        assert_eq!(mp4_edit(&pieces, 7), None);
        assert_eq!(mp4_edit(&movie(&[100, 0, 0x2_0000]), 7), None);
        let file = movie(&[7100, 1024, 0x1_0000]);
        for length in 0..file.len() {
            assert_eq!(mp4_edit(&file[..length], 7), None, "cut at {length}");
        }
    }

    #[test]
    fn names_the_codec_of_the_sound() {
        let track = |handler: &[u8], codec: &[u8; 4]| {
            let entry = [&words(&[0, 1])[..], &boxed(codec, &[0; 28])].concat();
            let table = boxed(b"minf", &boxed(b"stbl", &boxed(b"stsd", &entry)));
            let handler = boxed(b"hdlr", &[&[0; 8], handler].concat());
            boxed(b"trak", &boxed(b"mdia", &[handler, table].concat()))
        };
        let movie = [track(b"vide", b"avc1"), track(b"soun", b"samr")].concat();
        assert_eq!(mp4_sound(&boxed(b"moov", &movie)), Some(*b"samr"));
        assert_eq!(mp4_sound(&boxed(b"moov", &track(b"vide", b"avc1"))), None);
    }

    #[test]
    fn mends_boxes_that_are_cut_off() {
        let file = [boxed(b"ftyp", b"M4A "), boxed(b"mdat", &[7; 100])].concat();
        let zeros: Patches = (12..16).map(|at| (at, 0)).collect();
        assert_eq!(mp4_mend(&file), []);
        assert_eq!(mp4_mend(&file[..file.len() - 1]), zeros);
        let long = [
            boxed(b"ftyp", b"M4A "),
            words(&[1]),
            b"mdat".to_vec(),
            words(&[1, 0]),
        ]
        .concat();
        assert_eq!(mp4_mend(&long), zeros);
        assert_eq!(mp4_mend(&boxed(b"moov", &[0; 9])[..12]), []);
        // Segment of 200 bytes, written in two; cluster of 20 in one.
        let file = b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x40\xc8\x1f\x43\xb6\x75\x94";
        assert_eq!(webm(file).patches, [(9, 0x7f), (10, 0xff), (15, 0xff)]);
        assert_eq!(webm(&[&file[..], &[0xec; 200]].concat()).patches, []);
    }

    #[test]
    fn takes_the_padding_of_the_last_block_only() {
        let group = |padding: &[u8]| {
            let block = [&[0xa1, 0x84, 0x81, 0, 0, 0][..], padding].concat();
            [&[0xa0, 0x80 | block.len() as u8][..], &block].concat()
        };
        // Segment and cluster of unknown size.
        let head = b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff\x1f\x43\xb6\x75\xff";
        let padding = b"\x75\xa2\x84\x00\x98\x96\x80";
        let last = [&head[..], &group(b""), &group(padding)].concat();
        assert_eq!(webm(&last).discard_s, 0.01);
        let middle = [&head[..], &group(padding), &group(b"")].concat();
        assert_eq!(webm(&middle).discard_s, 0.0);
    }
}
