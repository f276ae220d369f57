//! The `tojson` filter of `transformers`: Python's `json.dumps(x, ensure_ascii=False)`, not Jinja's own, which escapes
//! `<`, `>`, `&` and `'` for HTML.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::python;

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    /// One item a line, each level set in by this.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let separators: Option<Value> = kwargs.get("separators")?;
    let indent = match indent {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => match indent.as_str() {
            Some(text) => Some(text.to_owned()),
            None => Some(" ".repeat(u16::try_from(indent)? as usize)),
        },
    };
    let (item_separator, key_separator) = match separators {
        Some(pair) if !pair.is_none() => {
            let parts: Vec<String> = pair
                .try_iter()?
                .map(|part| python::str(&part).into_owned())
                .collect();
            match <[String; 2]>::try_from(parts) {
                Ok([item, key]) => (item, key),
                Err(_) => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        "tojson: separators must be a pair",
                    ))
                }
            }
        }
        _ if indent.is_some() => (",".into(), ": ".into()),
        _ => (", ".into(), ": ".into()),
    };
    let style = Style {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write(&mut out, value, &style, 0)?;
    Ok(out)
}

fn write(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => {
            let text = python::float(f64::try_from(value.clone())?);
            out.push_str(match text.as_str() {
                "nan" => "NaN",
                "inf" => "Infinity",
                "-inf" => "-Infinity",
                finite => finite,
            });
        }
        ValueKind::String => {
            write_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            container(out, ['[', ']'], items.len(), style, depth, |out, i| {
                write(out, &items[i], style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort_by_key(|key| python::str(key).into_owned());
            }
            container(out, ['{', '}'], keys.len(), style, depth, |out, i| {
                write_string(out, &python::str(&keys[i]), style.ensure_ascii);
                out.push_str(&style.key_separator);
                write(out, &value.get_item(&keys[i])?, style, depth + 1)
            })?;
        }
        kind => {
            let message = format!("tojson: a value of type {kind} cannot be written as JSON");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

fn container(
    out: &mut String,
    [open, close]: [char; 2],
    length: usize,
    style: &Style,
    depth: usize,
    mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    for i in 0..length {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        item(out, i)?;
    }
    if length > 0 {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ensure_ascii && c == '\x7f') => {
                out.push_str(&format!("\\u{:04x}", c as u32))
            }
            c if ensure_ascii && !c.is_ascii() => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
