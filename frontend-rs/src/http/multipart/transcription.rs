//! The fields of `POST /v1/audio/transcriptions` and `/v1/audio/translations`.

use axum::extract::Request;
use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::super::error::ApiError;
use super::form::Form;
use crate::audio::{language, AudioError, Share};
use crate::speech::Task;

pub use super::form::Upload;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResponseFormat {
    #[default]
    Json,
    Text,
    Srt,
    Vtt,
    VerboseJson,
}

impl ResponseFormat {
    const NAMES: [(&'static str, Self); 5] = [
        ("json", Self::Json),
        ("text", Self::Text),
        ("srt", Self::Srt),
        ("vtt", Self::Vtt),
        ("verbose_json", Self::VerboseJson),
    ];

    /// The media type of the answer's body.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json | Self::VerboseJson => "application/json",
            Self::Text => "text/plain; charset=utf-8",
            Self::Srt => "application/x-subrip; charset=utf-8",
            Self::Vtt => "text/vtt; charset=utf-8",
        }
    }
}

/// Which times `verbose_json` has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granularities {
    pub segment: bool,
    pub word: bool,
}

/// How long audio is cut.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Chunking {
    /// The client leaves it to the server.
    #[default]
    Unsaid,
    Auto,
    /// At pauses, by a voice-activity detector.
    VoiceActivity(VoiceActivity),
}

/// OpenAI's `server_vad`; `None` is the server's choice.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct VoiceActivity {
    /// Probability from which a frame counts as speech, 0 to 1.
    pub threshold: Option<f32>,
    /// Audio kept before speech, milliseconds.
    pub prefix_padding_ms: Option<u32>,
    /// Silence that ends a chunk, milliseconds.
    pub silence_duration_ms: Option<u32>,
}

/// A request to write down what a file says; validated as far as that is possible without a model. `F` is the file, or
/// `()` where samples come beside the fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcription<F = Upload> {
    pub task: Task,
    pub file: F,
    pub model: String,
    /// Code of the spoken language; `None`: to be detected.
    pub language: Option<&'static str>,
    pub prompt: Option<String>,
    pub response_format: ResponseFormat,
    /// 0 to 1; `None`: greedy, with the fallback ladder.
    pub temperature: Option<f32>,
    /// Most tokens of a window; an extension of ours, as `ignore_eos` is.
    pub max_tokens: Option<u32>,
    /// Each window gives exactly `max_tokens`, whatever is heard.
    pub ignore_eos: bool,
    pub granularities: Granularities,
    pub stream: bool,
    /// `include[]=logprobs`.
    pub logprobs: bool,
    pub chunking: Chunking,
}

impl Transcription {
    /// Reads the form in a request's body of at most `limit` bytes, which are counted in `share`.
    pub async fn read(
        request: Request,
        task: Task,
        limit: usize,
        share: &mut Share,
    ) -> Result<Self, ApiError> {
        Self::take(Form::read(request, limit, share).await?, task, Form::file)
    }
}

impl Transcription<()> {
    /// The same fields as a map.
    pub fn of(fields: Map<String, Value>, task: Task) -> Result<Self, ApiError> {
        Self::take(Form::of(fields)?, task, |_| Ok(()))
    }
}

impl<F> Transcription<F> {
    fn take(
        mut form: Form,
        task: Task,
        file: impl FnOnce(&mut Form) -> Result<F, ApiError>,
    ) -> Result<Self, ApiError> {
        // Changes no result here.
        form.one("user")?;
        let response_format = response_format(&mut form)?;
        let stream = boolean(&mut form, "stream")?;
        if stream && !matches!(response_format, ResponseFormat::Json | ResponseFormat::Text) {
            let message = "a stream carries text without times; with 'stream' set, 'response_format' must be 'json' or \
                           'text'";
            return Err(ApiError::invalid("response_format", message));
        }
        let logprobs = logprobs(&mut form)?;
        if logprobs && response_format != ResponseFormat::Json {
            let message = "'include' 'logprobs' needs 'response_format' to be 'json'";
            return Err(ApiError::invalid("include", message));
        }
        for name in ["known_speaker_names", "known_speaker_references"] {
            if !form.list(name).is_empty() {
                let message = format!("'{name}' is not supported: speakers are not told apart");
                return Err(ApiError::unsupported(name, message));
            }
        }
        let ignore_eos = boolean(&mut form, "ignore_eos")?;
        let max_tokens = max_tokens(&mut form)?;
        if ignore_eos && max_tokens.is_none() {
            let message = "'ignore_eos' needs 'max_tokens', the number of tokens of each window";
            return Err(ApiError::invalid("ignore_eos", message));
        }
        let request = Self {
            task,
            max_tokens,
            ignore_eos,
            model: form.one("model")?.ok_or_else(|| {
                ApiError::invalid(
                    "model",
                    "'model' is missing; /v1/models lists what there is",
                )
            })?,
            language: spoken(&mut form)?,
            prompt: form.one("prompt")?,
            response_format,
            temperature: number(&mut form, "temperature", 0.0, 1.0)?,
            granularities: granularities(&mut form, response_format)?,
            stream,
            logprobs,
            chunking: chunking(&mut form)?,
            file: file(&mut form)?,
        };
        form.finish()?;
        Ok(request)
    }
}

fn response_format(form: &mut Form) -> Result<ResponseFormat, ApiError> {
    let name = "response_format";
    let Some(given) = form.one(name)? else {
        return Ok(ResponseFormat::default());
    };
    let names = ResponseFormat::NAMES;
    match names.iter().find(|(known, _)| *known == given) {
        Some((_, format)) => Ok(*format),
        None if given == "diarized_json" => {
            let message = "'response_format' 'diarized_json' is not supported: speakers are not told apart; use \
                           'verbose_json'";
            Err(ApiError::unsupported(name, message))
        }
        None => Err(unknown_value(name, &given, &names.map(|(known, _)| known))),
    }
}

fn spoken(form: &mut Form) -> Result<Option<&'static str>, ApiError> {
    let Some(given) = form.one("language")? else {
        return Ok(None);
    };
    language(&given).map(Some).ok_or_else(|| {
        let message = format!(
            "the language {given:?} is unknown; give an ISO 639-1 code such as 'de', or an English name such as \
             'german', or leave 'language' out to have it detected"
        );
        ApiError::invalid("language", message)
    })
}

fn granularities(form: &mut Form, format: ResponseFormat) -> Result<Granularities, ApiError> {
    let name = "timestamp_granularities";
    let given = form.list(name);
    if given.is_empty() {
        return Ok(Granularities {
            segment: true,
            word: false,
        });
    }
    if format != ResponseFormat::VerboseJson {
        let message = "'timestamp_granularities' needs 'response_format' to be 'verbose_json'";
        return Err(ApiError::invalid(name, message));
    }
    let mut wanted = Granularities {
        segment: false,
        word: false,
    };
    for value in given {
        match value.as_str() {
            "segment" => wanted.segment = true,
            "word" => wanted.word = true,
            other => return Err(unknown_value(name, other, &["segment", "word"])),
        }
    }
    Ok(wanted)
}

fn logprobs(form: &mut Form) -> Result<bool, ApiError> {
    let given = form.list("include");
    match given.iter().find(|value| *value != "logprobs") {
        Some(other) => Err(unknown_value("include", other, &["logprobs"])),
        None => Ok(!given.is_empty()),
    }
}

/// `auto`, an object as JSON, or its members under keys, as the OpenAI clients write it.
fn chunking(form: &mut Form) -> Result<Chunking, ApiError> {
    let name = "chunking_strategy";
    let mut members: Vec<(String, String)> = form.keyed(name);
    match form.one(name)? {
        None => {}
        Some(given) if given == "auto" && members.is_empty() => return Ok(Chunking::Auto),
        Some(given) => match serde_json::from_str(&given) {
            Ok(Value::Object(object)) => members.extend(object.into_iter().map(|(key, value)| {
                let text = match value {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                (key, text)
            })),
            _ => {
                return Err(unknown_value(
                    name,
                    &given,
                    &["auto", "{\"type\": \"server_vad\", …}"],
                ))
            }
        },
    }
    if members.is_empty() {
        return Ok(Chunking::Unsaid);
    }
    let mut vad = VoiceActivity::default();
    let mut kind = None;
    for (key, value) in members {
        let param = format!("{name}.{key}");
        match key.as_str() {
            "type" => kind = Some(value),
            "threshold" => vad.threshold = Some(parse(&param, &value, 0.0, 1.0)?),
            "prefix_padding_ms" => {
                vad.prefix_padding_ms = Some(parse(&param, &value, 0.0, 60_000.0)? as u32);
            }
            "silence_duration_ms" => {
                vad.silence_duration_ms = Some(parse(&param, &value, 0.0, 60_000.0)? as u32);
            }
            _ => {
                let message =
                    format!("unknown parameter '{param}'; remove it or check its spelling");
                return Err(ApiError::invalid(param, message).code("unknown_parameter"));
            }
        }
    }
    match kind.as_deref() {
        Some("server_vad") => Ok(Chunking::VoiceActivity(vad)),
        other => Err(unknown_value(
            "chunking_strategy.type",
            other.unwrap_or(""),
            &["server_vad"],
        )),
    }
}

fn boolean(form: &mut Form, name: &str) -> Result<bool, ApiError> {
    let Some(given) = form.one(name)? else {
        return Ok(false);
    };
    match given.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(unknown_value(name, &given, &["true", "false"])),
    }
}

fn number(form: &mut Form, name: &str, low: f32, high: f32) -> Result<Option<f32>, ApiError> {
    let given = form.one(name)?;
    given
        .map(|given| parse(name, &given, low, high))
        .transpose()
}

fn max_tokens(form: &mut Form) -> Result<Option<u32>, ApiError> {
    let name = "max_tokens";
    let Some(given) = form.one(name)? else {
        return Ok(None);
    };
    let number = given
        .trim()
        .parse::<u32>()
        .ok()
        .filter(|number| *number > 0);
    number.map(Some).ok_or_else(|| {
        let message = format!("'{name}' must be a whole number of at least 1, not {given:?}");
        ApiError::invalid(name, message)
    })
}

fn parse(param: &str, given: &str, low: f32, high: f32) -> Result<f32, ApiError> {
    let number = given.trim().parse::<f32>();
    number
        .ok()
        .filter(|n| (low..=high).contains(n))
        .ok_or_else(|| {
            let message =
                format!("'{param}' must be a number between {low} and {high}, not {given:?}");
            ApiError::invalid(param, message)
        })
}

fn unknown_value(param: &str, given: &str, known: &[&str]) -> ApiError {
    let known: Vec<String> = known.iter().map(|known| format!("'{known}'")).collect();
    let message = format!("'{param}' cannot be {given:?}; use {}", known.join(" or "));
    ApiError::invalid(param, message)
}

impl From<AudioError> for ApiError {
    fn from(error: AudioError) -> Self {
        let message = error.to_string();
        match error {
            AudioError::TooLarge { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message).param("file")
            }
            AudioError::BeyondMemory { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "audio_too_long", message).param("file")
            }
            AudioError::NoMemory { .. } => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_exceeded",
                message,
            )
            .retry_after(5),
            AudioError::TooLong { .. } => Self::invalid("file", message).code("audio_too_long"),
            _ => Self::invalid("file", message).code("invalid_audio"),
        }
    }
}
