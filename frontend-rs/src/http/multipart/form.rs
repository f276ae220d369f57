//! A form's body to its fields.

use axum::extract::Request;
use axum::http::{header, StatusCode};
use bytes::{Bytes, BytesMut};
use multer::{Constraints, Error, Multipart, SizeLimit};
use serde_json::{Map, Value};

use super::super::body::too_large;
use super::super::error::ApiError;
use crate::audio::Share;

/// Text fields of a form; the audio endpoints have about 15.
const MAX_FIELDS: usize = 128;
/// Bytes of one text field; the longest is a prompt.
const MAX_TEXT: usize = 1 << 20;

/// An uploaded file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub bytes: Bytes,
    /// As the client calls it; for logs only.
    pub name: Option<String>,
}

/// A text field. `a[b]` has the name `a` and the key `b`; `a[]` and `a[0]` have the name `a` and an empty key.
struct Field {
    name: String,
    key: String,
    value: String,
}

/// The fields of a form, taken one by one as with `Fields`: what is left at the end is unknown.
pub struct Form {
    file: Option<Upload>,
    fields: Vec<Field>,
}

impl Form {
    /// Reads the body; at most `limit` bytes, and one file, in the field `file`. What it takes is counted in `share` as it
    /// comes.
    pub async fn read(request: Request, limit: usize, share: &mut Share) -> Result<Self, ApiError> {
        let given = request.headers().get(header::CONTENT_TYPE);
        let boundary = given
            .and_then(|given| multer::parse_boundary(given.to_str().ok()?).ok())
            .ok_or_else(|| {
                let message = format!(
                    "send the body as 'Content-Type: multipart/form-data; boundary=…', not {}",
                    given.map_or("without a content type".into(), |given| format!(
                        "{given:?}"
                    ))
                );
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                ApiError::new(status, "unsupported_media_type", message)
            })?;
        let limits = SizeLimit::new().whole_stream(limit as u64);
        let constraints = Constraints::new().size_limit(limits);
        let stream = request.into_body().into_data_stream();
        let mut parts = Multipart::with_constraints(stream, boundary, constraints);
        let mut form = Self {
            file: None,
            fields: Vec::new(),
        };
        while let Some(part) = parts.next_field().await.map_err(|e| fault(&e, limit))? {
            let Some(name) = part.name().map(str::to_owned) else {
                return Err(invalid(
                    "a part of the form has no name; give each part one",
                ));
            };
            if name == "file" {
                if form.file.is_some() {
                    let message = "the form has two parts named 'file'; send one file a request";
                    return Err(ApiError::invalid("file", message));
                }
                let name = part.file_name().map(str::to_owned);
                let bytes = read_part(part, "file", limit, limit, share).await?;
                form.file = Some(Upload { bytes, name });
                continue;
            }
            if form.fields.len() == MAX_FIELDS {
                let message = format!("the form has more than {MAX_FIELDS} fields");
                return Err(invalid(&message));
            }
            let bytes = read_part(part, &name, MAX_TEXT, limit, share).await?;
            let value = String::from_utf8(bytes.into()).map_err(|_| {
                let message = format!("'{name}' is not UTF-8 text; encode it as UTF-8");
                ApiError::invalid(&name, message)
            })?;
            let (name, key) = split_key(&name);
            form.fields.push(Field { name, key, value });
        }
        Ok(form)
    }

    /// A form with these fields, each as a client would write it into one.
    pub fn of(map: Map<String, Value>) -> Result<Self, ApiError> {
        let mut fields = Vec::new();
        for (name, value) in map {
            let values = match value {
                Value::Array(list) => list,
                one => vec![one],
            };
            for value in values {
                let value = match value {
                    Value::Null => continue,
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                if fields.len() == MAX_FIELDS {
                    let message = format!("the request has more than {MAX_FIELDS} fields");
                    return Err(ApiError::invalid(name, message));
                }
                if value.len() > MAX_TEXT {
                    let message = format!("'{name}' has more than {MAX_TEXT} bytes; shorten it");
                    return Err(ApiError::invalid(name, message));
                }
                let (name, key) = split_key(&name);
                fields.push(Field { name, key, value });
            }
        }
        Ok(Self { file: None, fields })
    }

    pub fn file(&mut self) -> Result<Upload, ApiError> {
        self.file.take().ok_or_else(|| {
            let message = "the form has no part named 'file'; send the audio file in it";
            ApiError::invalid("file", message)
        })
    }

    /// The one value of a field; an empty one equals an absent one, as HTML forms send it.
    pub fn one(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let mut values = self.take(|field| field.name == name && field.key.is_empty());
        let Some(first) = values.pop() else {
            return Ok(None);
        };
        if values.iter().any(|other| other.value != first.value) {
            let message = format!("'{name}' is given more than once; give it once");
            return Err(ApiError::invalid(name, message));
        }
        Ok(Some(first.value).filter(|value| !value.trim().is_empty()))
    }

    /// All values of a field: repeated, with or without brackets, separated by commas, or a JSON list of strings.
    pub fn list(&mut self, name: &str) -> Vec<String> {
        let mut values = Vec::new();
        for field in self.take(|field| field.name == name && field.key.is_empty()) {
            let text = field.value.trim();
            match serde_json::from_str::<Vec<String>>(text) {
                Ok(list) => values.extend(list),
                Err(_) => values.extend(text.split(',').map(|value| value.trim().to_owned())),
            }
        }
        values.retain(|value| !value.is_empty());
        values
    }

    /// The values of a field that stand under keys: `name[key]`.
    pub fn keyed(&mut self, name: &str) -> Vec<(String, String)> {
        self.take(|field| field.name == name && !field.key.is_empty())
            .into_iter()
            .map(|field| (field.key, field.value))
            .collect()
    }

    /// Everything that nobody has taken is a mistake of the client's, and silently ignoring it would hide that.
    pub fn finish(self) -> Result<(), ApiError> {
        let Some(field) = self.fields.first() else {
            return Ok(());
        };
        let name = if field.key.is_empty() {
            field.name.clone()
        } else {
            format!("{}[{}]", field.name, field.key)
        };
        let message = format!("unknown parameter '{name}'; remove it or check its spelling");
        Err(ApiError::invalid(name, message).code("unknown_parameter"))
    }

    fn take(&mut self, wanted: impl Fn(&Field) -> bool) -> Vec<Field> {
        let (taken, left) = std::mem::take(&mut self.fields)
            .into_iter()
            .partition(wanted);
        self.fields = left;
        taken
    }
}

fn split_key(name: &str) -> (String, String) {
    let Some((base, key)) = name.strip_suffix(']').and_then(|name| name.split_once('[')) else {
        return (name.to_owned(), String::new());
    };
    let index = key.bytes().all(|byte| byte.is_ascii_digit());
    let key = if index { "" } else { key };
    (base.to_owned(), key.to_owned())
}

async fn read_part(
    mut part: multer::Field<'_>,
    name: &str,
    limit: usize,
    body_limit: usize,
    share: &mut Share,
) -> Result<Bytes, ApiError> {
    let mut bytes = BytesMut::new();
    let before = share.bytes();
    while let Some(chunk) = part.chunk().await.map_err(|e| fault(&e, body_limit))? {
        if bytes.len() + chunk.len() > limit {
            let message = format!("'{name}' has more than {limit} bytes; shorten it");
            return Err(ApiError::invalid(name, message));
        }
        share.set(before + bytes.len() + chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

fn invalid(message: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_multipart", message)
}

fn fault(error: &Error, limit: usize) -> ApiError {
    match error {
        Error::StreamSizeExceeded { .. } => too_large(limit),
        Error::StreamReadFailed(e) => {
            let message = format!("the request body broke off: {e}");
            ApiError::new(StatusCode::BAD_REQUEST, "incomplete_body", message)
        }
        Error::IncompleteStream
        | Error::IncompleteHeaders
        | Error::IncompleteFieldData { .. } => invalid(
            "the form ends before its closing boundary; send it whole, with the boundary that the Content-Type names",
        ),
        e => invalid(&format!("the form cannot be read: {e}")),
    }
}
