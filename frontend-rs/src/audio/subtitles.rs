//! Transcripts as subtitles: SRT and WebVTT, as OpenAI's API writes them.

/// A piece of a transcript with its times, in seconds from the start of the audio.
#[derive(Debug, Clone, PartialEq)]
pub struct Cue<'a> {
    pub start_s: f64,
    pub end_s: f64,
    pub text: &'a str,
}

/// SubRip: numbered cues, `00:00:01,000 --> 00:00:02,500`, each followed by an empty line. The media type is
/// `application/x-subrip`.
pub fn srt<'a>(cues: impl IntoIterator<Item = Cue<'a>>) -> String {
    let mut out = String::new();
    for (number, cue) in (1..).zip(cues) {
        let (start, end) = (time(cue.start_s, ','), time(cue.end_s, ','));
        out += &format!("{number}\n{start} --> {end}\n{}\n\n", text(cue.text));
    }
    out
}

/// WebVTT: `00:00:01.000 --> 00:00:02.500`. The media type is `text/vtt`.
pub fn vtt<'a>(cues: impl IntoIterator<Item = Cue<'a>>) -> String {
    let mut out = String::from("WEBVTT\n\n");
    for cue in cues {
        let (start, end) = (time(cue.start_s, '.'), time(cue.end_s, '.'));
        // A bare `<` begins a tag, and players leave out what follows.
        let text = text(cue.text).replace('&', "&amp;").replace('<', "&lt;");
        out += &format!("{start} --> {end}\n{text}\n\n");
    }
    out
}

/// `HH:MM:SS` and milliseconds, rounded to the nearest.
fn time(seconds: f64, point: char) -> String {
    let ms = (seconds.max(0.0) * 1000.0).round() as u64;
    let (s, ms) = (ms / 1000, ms % 1000);
    format!(
        "{:02}:{:02}:{:02}{point}{ms:03}",
        s / 3600,
        s / 60 % 60,
        s % 60
    )
}

/// A cue's text: an arrow or an empty line within it would end the cue.
fn text(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n").replace("-->", "->")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUES: [Cue<'static>; 2] = [
        Cue {
            start_s: 1.0,
            end_s: 2.5,
            text: " He was not an ill disposed young man,",
        },
        Cue {
            start_s: 3_599.999_6,
            end_s: 36_061.000_4,
            text: " a --> b < R&D\n\nc ",
        },
    ];

    #[test]
    fn srt_is_exact() {
        let wanted = "1\n00:00:01,000 --> 00:00:02,500\nHe was not an ill disposed young man,\n\n\
                      2\n01:00:00,000 --> 10:01:01,000\na -> b < R&D\nc\n\n";
        assert_eq!(srt(CUES), wanted);
        assert_eq!(srt([]), "");
    }

    #[test]
    fn vtt_is_exact() {
        let wanted =
            "WEBVTT\n\n00:00:01.000 --> 00:00:02.500\nHe was not an ill disposed young man,\n\n\
                      01:00:00.000 --> 10:01:01.000\na -> b &lt; R&amp;D\nc\n\n";
        assert_eq!(vtt(CUES), wanted);
        assert_eq!(vtt([]), "WEBVTT\n\n");
    }
}
