//! Bodies between msgpack and the JSON values that the endpoints read and write.

use axum::http::StatusCode;
use rmp::encode as put;
use serde_json::{Map, Number, Value};

use crate::http::ApiError;
use crate::route::envelope::wire::{Any, Reader};
use crate::route::envelope::DecodeError;

/// Values of one body. Each takes some 32 bytes of memory and perhaps a single byte on its way here.
const MAX_VALUES: usize = 1 << 20;
const MAX_DEPTH: usize = 64;

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", message)
}

fn malformed(error: DecodeError) -> ApiError {
    invalid(format!("the body is no msgpack map: {error}"))
}

/// The fields of a call. A `bin` value at the top is a list of u32.
pub fn fields(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let mut reading = Reading {
        reader: Reader::new(bytes),
        left: MAX_VALUES,
    };
    let Any::Map(length) = reading.next()? else {
        return Err(invalid("the body must be a map"));
    };
    let mut map = Map::new();
    for _ in 0..length {
        let name = reading.key()?;
        let value = match reading.next()? {
            Any::Bytes(bytes) => reading.ids(bytes),
            head => reading.value(head, MAX_DEPTH),
        };
        let value = value.map_err(|error| match error.param {
            None => error.param(name.clone()),
            Some(_) => error,
        })?;
        map.insert(name, value);
    }
    reading.reader.finish().map_err(malformed)?;
    Ok(map)
}

struct Reading<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl<'a> Reading<'a> {
    fn next(&mut self) -> Result<Any<'a>, ApiError> {
        self.spend(1)?;
        self.reader.any().map_err(malformed)
    }

    fn spend(&mut self, values: usize) -> Result<(), ApiError> {
        self.left = self
            .left
            .checked_sub(values)
            .ok_or_else(|| invalid(format!("the body holds more than {MAX_VALUES} values")))?;
        Ok(())
    }

    fn text(bytes: &[u8]) -> Result<String, ApiError> {
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| invalid("the body holds a string that is not UTF-8"))
    }

    fn key(&mut self) -> Result<String, ApiError> {
        match self.next()? {
            Any::Text(bytes) => Self::text(bytes),
            _ => Err(invalid("the body has a key that is no string")),
        }
    }

    fn ids(&mut self, bytes: &[u8]) -> Result<Value, ApiError> {
        let (ids, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            let message = format!("token ids are u32, but {} bytes came", bytes.len());
            return Err(invalid(message));
        }
        self.spend(ids.len())?;
        Ok(ids
            .iter()
            .map(|id| Value::from(u32::from_le_bytes(*id)))
            .collect())
    }

    fn value(&mut self, head: Any<'a>, depth: usize) -> Result<Value, ApiError> {
        let deeper = || {
            depth
                .checked_sub(1)
                .ok_or_else(|| invalid(format!("the body nests deeper than {MAX_DEPTH}")))
        };
        Ok(match head {
            Any::Nil => Value::Null,
            Any::Flag(value) => value.into(),
            Any::Uint(value) => value.into(),
            Any::Int(value) => value.into(),
            Any::Float(value) => Number::from_f64(value).map(Value::Number).ok_or_else(|| {
                invalid(format!(
                    "the body holds {value}, which is no number of JSON's"
                ))
            })?,
            Any::Text(bytes) => Self::text(bytes)?.into(),
            Any::Bytes(_) => return Err(invalid("the body holds bytes where none can be")),
            Any::Array(length) => {
                let depth = deeper()?;
                // Grown as values come: the length alone is only a claim.
                let mut list = Vec::new();
                for _ in 0..length {
                    let head = self.next()?;
                    list.push(self.value(head, depth)?);
                }
                list.into()
            }
            Any::Map(length) => {
                let depth = deeper()?;
                let mut map = Map::new();
                for _ in 0..length {
                    let key = self.key()?;
                    let head = self.next()?;
                    map.insert(key, self.value(head, depth)?);
                }
                map.into()
            }
        })
    }
}

/// Writes a value as msgpack.
pub fn write(out: &mut Vec<u8>, value: &Value) {
    // Writing to a vector cannot fail; the results exist for other writers.
    let written = match value {
        Value::Null => put::write_nil(out).map_err(drop),
        Value::Bool(value) => put::write_bool(out, *value).map_err(drop),
        Value::Number(number) => number_to(out, number),
        Value::String(text) => put::write_str(out, text).map_err(drop),
        Value::Array(list) => {
            let written = put::write_array_len(out, list.len() as u32);
            list.iter().for_each(|value| write(out, value));
            written.map(drop).map_err(drop)
        }
        Value::Object(map) => {
            let written = put::write_map_len(out, map.len() as u32);
            for (key, value) in map {
                let _ = put::write_str(out, key);
                write(out, value);
            }
            written.map(drop).map_err(drop)
        }
    };
    debug_assert!(written.is_ok());
}

fn number_to(out: &mut Vec<u8>, number: &Number) -> Result<(), ()> {
    match (number.as_u64(), number.as_i64()) {
        (Some(value), _) => put::write_uint(out, value).map(drop).map_err(drop),
        (None, Some(value)) => put::write_sint(out, value).map(drop).map_err(drop),
        (None, None) => put::write_f64(out, number.as_f64().unwrap_or_default()).map_err(drop),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn packed(value: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, value);
        bytes
    }

    fn refused(bytes: &[u8]) -> ApiError {
        fields(bytes).unwrap_err()
    }

    #[test]
    fn what_is_written_is_read() {
        let body = json!({
            "a": [1, -1, 255, 256, 65536, u64::MAX, i64::MIN, 0.5, true, null, "ü"],
            "b": {"c": {"d": []}},
            "e": "x".repeat(70_000),
        });
        assert_eq!(Value::Object(fields(&packed(&body)).unwrap()), body);
    }

    #[test]
    fn bytes_at_the_top_are_token_ids() {
        let mut bytes = vec![0x81, 0xa1, b'p', 0xc4, 8];
        bytes.extend([1, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(fields(&bytes).unwrap()["p"], json!([1, 65536]));
        // Three bytes are no id; neither are bytes inside a list.
        assert_eq!(
            refused(&[0x81, 0xa1, b'p', 0xc4, 3, 0, 0, 0])
                .param
                .as_deref(),
            Some("p")
        );
        let error = refused(&[0x81, 0xa1, b'p', 0x91, 0xc4, 0]);
        assert!(error.message.contains("bytes where none can be"));
    }

    #[test]
    fn what_json_does_not_have_is_refused() {
        let nan = [&[0x81, 0xa1, b't', 0xcb][..], &f64::NAN.to_be_bytes()].concat();
        let error = refused(&nan);
        assert_eq!(
            (error.param.as_deref(), error.status.as_u16()),
            (Some("t"), 400)
        );
        assert!(error.message.contains("NaN"));
        assert!(refused(&[0x81, 0x01, 0x01]).message.contains("no string"));
        assert!(refused(&[0x81, 0xa1, 0xff, 0x01]).message.contains("UTF-8"));
        assert!(refused(&[0x81, 0xa1, b'x', 0xd4, 1, 1])
            .message
            .contains("JSON"));
        assert!(refused(&[0x90]).message.contains("must be a map"));
        assert!(refused(&[0x80, 0x80]).message.contains("follow"));
    }

    /// Few bytes that would be many values, or a deep stack.
    #[test]
    fn bombs_are_refused() {
        let deep = [&[0x81, 0xa1, b'x'][..], &[0x91; 100_000], &[0xc0]].concat();
        assert!(refused(&deep).message.contains("deeper than 64"));
        let mut wide = vec![0x81, 0xa1, b'x', 0xdd];
        wide.extend(2_000_000u32.to_be_bytes());
        wide.extend(vec![0xc0; 2_000_000]);
        assert!(refused(&wide).message.contains("more than 1048576 values"));
        // A claim without the bytes.
        let claim = [0x81, 0xa1, b'x', 0xdd, 0xff, 0xff, 0xff, 0xff];
        assert!(refused(&claim).message.contains("ends before"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(map) = fields(&bytes) {
                let again = fields(&packed(&Value::Object(map.clone())));
                prop_assert_eq!(again.unwrap(), map);
            }
        }
    }
}
