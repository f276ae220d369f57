//! Values as Python prints them.

use std::borrow::Cow;

use minijinja::value::{Value, ValueKind};

/// Python's `str(value)`.
pub(super) fn str(value: &Value) -> Cow<'_, str> {
    match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None => Cow::Owned(repr(value)),
    }
}

/// Python's `repr(value)`.
fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            let pairs = keys.map(|key| {
                let item = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key), repr(&item))
            });
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<String> = value
                .try_iter()
                .into_iter()
                .flatten()
                .map(|item| repr(&item))
                .collect();
            format!("[{}]", items.join(", "))
        }
        _ => value.to_string(),
    }
}

/// A string literal: single quotes, unless there is one inside and no double quote.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || c == '\x7f' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Python's `repr` of a float: shortest digits that read back the same, an exponent outside 1e-4 to 1e16.
pub(super) fn float(x: f64) -> String {
    if !x.is_finite() {
        let name = if x.is_nan() { "nan" } else { "inf" };
        return if x < 0.0 {
            format!("-{name}")
        } else {
            name.into()
        };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific
        .split_once('e')
        .expect("the format writes an exponent");
    let exponent: i32 = exponent.parse().expect("the format writes an integer");
    if (-4..16).contains(&exponent) || x == 0.0 {
        let plain = format!("{x}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
