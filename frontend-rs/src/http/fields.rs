//! Typed access to the fields of a request, with errors that name them.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// A JSON object that is taken apart field by field. `null` equals absent, everywhere. What is left at the end is
/// unknown.
pub struct Fields {
    map: Map<String, Value>,
    /// In front of every name in an error; empty or ending in a dot.
    path: String,
}

/// What a value is, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

pub fn expected(param: impl Into<String>, what: &str, value: &Value) -> ApiError {
    let param = param.into();
    let message = format!("'{param}' must be {what}, not {}", kind(value));
    ApiError::invalid(param, message)
}

impl Fields {
    pub fn of(map: Map<String, Value>) -> Self {
        Self {
            map,
            path: String::new(),
        }
    }

    /// The request's body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body).map_err(|e| {
            let status = axum::http::StatusCode::BAD_REQUEST;
            ApiError::new(
                status,
                "invalid_json",
                format!("the request body is not valid JSON: {e}"),
            )
        })?;
        match value {
            Value::Object(map) => Ok(Self::of(map)),
            other => {
                let message = format!(
                    "the request body must be a JSON object, not {}",
                    kind(&other)
                );
                Err(ApiError::new(
                    axum::http::StatusCode::BAD_REQUEST,
                    "invalid_json",
                    message,
                ))
            }
        }
    }

    /// The object in the field `name`.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields {
                map,
                path: format!("{}.", self.param(name)),
            })),
            Some(other) => Err(expected(self.param(name), "an object", &other)),
        }
    }

    /// The name of a field in errors.
    pub fn param(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// Whether a field is there and not null.
    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub fn bool(&mut self, name: &str, default: bool) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(expected(self.param(name), "a boolean", &other)),
        }
    }

    pub fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(expected(self.param(name), "a string", &other)),
        }
    }

    pub fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f32>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let param = self.param(name);
        let number = value
            .as_f64()
            .ok_or_else(|| expected(&param, "a number", &value))? as f32;
        if !range.contains(&number) {
            let message = format!(
                "'{param}' must be between {} and {}, not {value}",
                range.start(),
                range.end()
            );
            return Err(ApiError::invalid(param, message));
        }
        Ok(Some(number))
    }

    /// An integer within `range`; one above `i64` counts as the largest.
    pub fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let param = self.param(name);
        let integer = match value.as_i64() {
            Some(integer) => integer,
            None if value.is_u64() => i64::MAX,
            None if value.is_number() => {
                return Err(ApiError::invalid(
                    &param,
                    format!("'{param}' must be an integer, not {value}"),
                ))
            }
            None => return Err(expected(&param, "an integer", &value)),
        };
        if !range.contains(&integer) {
            let message = match (*range.start(), *range.end()) {
                (low, i64::MAX) => format!("'{param}' must be at least {low}, not {value}"),
                (low, high) => format!("'{param}' must be between {low} and {high}, not {value}"),
            };
            return Err(ApiError::invalid(param, message));
        }
        Ok(Some(integer))
    }

    /// Accepts the field only with a value that changes nothing.
    pub fn refuse(&mut self, name: &str, neutral: &[Value], why: &str) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !neutral.contains(&value) => {
                let param = self.param(name);
                let message = format!("'{param}' is not supported: {why}");
                Err(ApiError::unsupported(param, message))
            }
            _ => Ok(()),
        }
    }

    /// Everything that nobody has taken is a mistake of the client's, and silently ignoring it would hide that.
    pub fn finish(self) -> Result<(), ApiError> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let param = self.param(name);
                let message =
                    format!("unknown parameter '{param}'; remove it or check its spelling");
                Err(ApiError::invalid(param, message).code("unknown_parameter"))
            }
        }
    }
}
