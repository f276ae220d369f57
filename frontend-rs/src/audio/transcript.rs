//! A transcript in the shapes of OpenAI's API.

use serde::Serialize;
use serde_json::{json, Value};

use super::language::language_name;
use super::subtitles::{srt, vtt, Cue};

/// A piece of a transcript, as `verbose_json` shows it. Times in seconds from the start of the audio.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    pub id: u32,
    /// Where the window that it was decoded from starts, in frames of 10 ms.
    pub seek: u32,
    #[serde(serialize_with = "milliseconds")]
    pub start: f64,
    #[serde(serialize_with = "milliseconds")]
    pub end: f64,
    pub text: String,
    pub tokens: Vec<u32>,
    pub temperature: f32,
    /// Mean natural logarithm of the tokens' probabilities.
    pub avg_logprob: f32,
    /// Bytes of the text over bytes of it compressed.
    pub compression_ratio: f32,
    pub no_speech_prob: f32,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Word {
    pub word: String,
    #[serde(serialize_with = "milliseconds")]
    pub start: f64,
    #[serde(serialize_with = "milliseconds")]
    pub end: f64,
}

/// A token of the text, as `include[]=logprobs` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoredToken {
    /// As text; bytes that are no whole character as `bytes:\xe2\x80`.
    pub token: String,
    /// Natural logarithm of its probability under the model's rules.
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// `transcribe` or `translate`.
    pub task: &'static str,
    /// Code of the language of the text.
    pub language: &'static str,
    /// Seconds of audio.
    pub duration_s: f64,
    pub segments: Vec<Segment>,
    /// `None` where word times were not asked for.
    pub words: Option<Vec<Word>>,
    /// `None` where log-probabilities were not asked for.
    pub logprobs: Option<Vec<ScoredToken>>,
}

impl Transcript {
    /// All segments' text, without space around it.
    pub fn text(&self) -> String {
        let text: String = self.segments.iter().map(|s| s.text.as_str()).collect();
        text.trim().to_owned()
    }

    /// The body of `response_format=text`: the text and one newline.
    pub fn plain(&self) -> String {
        self.text() + "\n"
    }

    /// The body of `response_format=json`.
    pub fn json(&self) -> Value {
        self.scored(json!({"text": self.text()}))
    }

    /// The body of `response_format=verbose_json`; `segments` says whether to list them.
    pub fn verbose_json(&self, segments: bool) -> Value {
        let mut body = json!({
            "task": self.task,
            "language": language_name(self.language).unwrap_or(self.language),
            "duration": rounded(self.duration_s),
            "text": self.text(),
        });
        if segments {
            body["segments"] = json!(self.segments);
        }
        if let Some(words) = &self.words {
            body["words"] = json!(words);
        }
        body["usage"] = self.usage();
        body
    }

    /// The last event of a stream.
    pub fn done_event(&self) -> Value {
        self.scored(json!({"type": "transcript.text.done", "text": self.text()}))
    }

    fn scored(&self, mut body: Value) -> Value {
        if let Some(logprobs) = &self.logprobs {
            body["logprobs"] = json!(logprobs);
        }
        body["usage"] = self.usage();
        body
    }

    pub fn srt(&self) -> String {
        srt(self.cues())
    }

    pub fn vtt(&self) -> String {
        vtt(self.cues())
    }

    fn cues(&self) -> impl Iterator<Item = Cue<'_>> {
        self.segments.iter().map(|segment| Cue {
            start_s: segment.start,
            end_s: segment.end,
            text: &segment.text,
        })
    }

    /// Audio is charged by begun seconds.
    fn usage(&self) -> Value {
        json!({"type": "duration", "seconds": self.duration_s.ceil() as u64})
    }
}

/// To milliseconds: more digits would be noise, and would show the binary fraction.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn milliseconds<S: serde::Serializer>(seconds: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(rounded(*seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |id, start, end, text: &str| Segment {
            id,
            seek: 0,
            start,
            end,
            text: text.into(),
            tokens: vec![634, 390],
            temperature: 0.0,
            avg_logprob: -0.25,
            compression_ratio: 1.5,
            no_speech_prob: 0.125,
        };
        Transcript {
            task: "transcribe",
            language: "en",
            duration_s: 2.000_04,
            segments: vec![
                segment(0, 0.0, 1.04, " He was not"),
                segment(1, 1.04, f64::from(1.9f32), " an ill disposed young man."),
            ],
            words: None,
            logprobs: None,
        }
    }

    #[test]
    fn plain_shapes() {
        let text = "He was not an ill disposed young man.";
        assert_eq!(transcript().plain(), format!("{text}\n"));
        let usage = json!({"type": "duration", "seconds": 3});
        assert_eq!(transcript().json(), json!({"text": text, "usage": usage}));
        assert!(transcript()
            .vtt()
            .ends_with("00:00:01.040 --> 00:00:01.900\nan ill disposed young man.\n\n"));
        assert!(transcript()
            .srt()
            .starts_with("1\n00:00:00,000 --> 00:00:01,040\nHe was not\n\n2\n"));
        let silent = Transcript {
            segments: Vec::new(),
            ..transcript()
        };
        assert_eq!((silent.plain().as_str(), silent.srt().as_str()), ("\n", ""));
    }

    #[test]
    fn verbose_json_is_exact() {
        let mut transcript = transcript();
        transcript.segments.remove(0);
        let segment = json!({
            "id": 1, "seek": 0, "start": 1.04, "end": 1.9, "text": " an ill disposed young man.", "tokens": [634, 390],
            "temperature": 0.0, "avg_logprob": -0.25, "compression_ratio": 1.5, "no_speech_prob": 0.125,
        });
        let mut wanted = json!({
            "task": "transcribe", "language": "english", "duration": 2.0, "text": "an ill disposed young man.",
            "segments": [segment], "usage": {"type": "duration", "seconds": 3},
        });
        assert_eq!(transcript.verbose_json(true), wanted);
        transcript.words = Some(vec![Word {
            word: "an".into(),
            start: 1.04,
            end: 1.1,
        }]);
        wanted.as_object_mut().map(|body| body.remove("segments"));
        wanted["words"] = json!([{"word": "an", "start": 1.04, "end": 1.1}]);
        assert_eq!(transcript.verbose_json(false), wanted);
    }
}
