//! The `messages` of a chat request.

use serde_json::{json, Map, Value};

use super::error::ApiError;
use super::fields::{expected, Fields};

/// Takes and validates `messages`; what comes out is what chat templates expect: contents are strings, and a tool call's
/// arguments an object.
pub fn take(fields: &mut Fields, model: &str) -> Result<Value, ApiError> {
    let messages = match fields.take("messages") {
        None => {
            return Err(ApiError::invalid(
                "messages",
                "'messages' is missing; give a list of messages",
            ))
        }
        Some(Value::Array(messages)) => messages,
        Some(other) => return Err(expected("messages", "a list of messages", &other)),
    };
    if messages.is_empty() {
        return Err(ApiError::invalid(
            "messages",
            "'messages' is empty; give at least one message",
        ));
    }
    let messages = messages.into_iter().enumerate();
    messages
        .map(|(i, value)| message(value, &format!("messages[{i}]"), model))
        .collect()
}

fn message(value: Value, path: &str, model: &str) -> Result<Value, ApiError> {
    let Value::Object(mut fields) = value else {
        return Err(expected(path, "an object", &value));
    };
    let mut take = |name: &str| fields.remove(name).filter(|value| !value.is_null());
    let role = match take("role") {
        Some(Value::String(role)) => role,
        Some(other) => return Err(expected(format!("{path}.role"), "a string", &other)),
        None => {
            return Err(ApiError::invalid(
                format!("{path}.role"),
                format!("'{path}.role' is missing"),
            ))
        }
    };
    let role = match role.as_str() {
        "system" | "user" | "assistant" | "tool" => role.as_str(),
        // OpenAI's newer name; open models' templates know only the older.
        "developer" => "system",
        _ => {
            let message = format!(
                "'{path}.role' is {role:?}; it must be one of 'system', 'developer', 'user', 'assistant', 'tool'"
            );
            return Err(ApiError::invalid(format!("{path}.role"), message));
        }
    };
    let mut out = Map::new();
    out.insert("role".into(), json!(role));
    let content = match take("content") {
        Some(content) => content_text(content, &format!("{path}.content"), model)?,
        // A model may have answered with tool calls or reasoning only.
        None if role == "assistant" => String::new(),
        None => {
            let param = format!("{path}.content");
            let message = format!("'{param}' is missing; give a string or a list of text parts");
            return Err(ApiError::invalid(param, message));
        }
    };
    out.insert("content".into(), json!(content));
    for name in ["name", "tool_call_id", "reasoning_content"] {
        match take(name) {
            None => {}
            Some(Value::String(text)) => {
                out.insert(name.into(), json!(text));
            }
            Some(other) => return Err(expected(format!("{path}.{name}"), "a string", &other)),
        }
    }
    match take("tool_calls") {
        None => {}
        Some(Value::Array(calls)) => {
            let calls = calls.into_iter().enumerate();
            let calls = calls.map(|(i, call)| tool_call(call, &format!("{path}.tool_calls[{i}]")));
            out.insert("tool_calls".into(), calls.collect::<Result<_, _>>()?);
        }
        Some(other) => return Err(expected(format!("{path}.tool_calls"), "a list", &other)),
    }
    // Whatever else a message has came back from a response (`refusal`, `annotations`, …) and says nothing to a model.
    Ok(Value::Object(out))
}

/// A content's text; the texts of several parts are joined by a line end.
fn content_text(content: Value, path: &str, model: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(expected(path, "a string or a list of text parts", &other)),
    };
    if parts.is_empty() {
        return Err(ApiError::invalid(
            path,
            format!("'{path}' is an empty list; give at least one text part"),
        ));
    }
    let text = |(i, part): (usize, Value)| {
        let path = format!("{path}[{i}]");
        let Value::Object(mut part) = part else {
            return Err(expected(path, "an object", &part));
        };
        let kind = match part.remove("type") {
            Some(Value::String(kind)) => kind,
            Some(other) => return Err(expected(format!("{path}.type"), "a string", &other)),
            None => {
                return Err(ApiError::invalid(
                    format!("{path}.type"),
                    format!("'{path}.type' is missing"),
                ))
            }
        };
        let field = match kind.as_str() {
            "text" => "text",
            "refusal" => "refusal",
            _ => {
                let message =
                    format!("model '{model}' accepts text only, but '{path}' is of type {kind:?}");
                return Err(ApiError::invalid(path, message).code("unsupported_content"));
            }
        };
        match part.remove(field) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(expected(format!("{path}.{field}"), "a string", &other)),
            None => Err(ApiError::invalid(
                format!("{path}.{field}"),
                format!("'{path}.{field}' is missing"),
            )),
        }
    };
    let texts: Vec<String> = parts
        .into_iter()
        .enumerate()
        .map(text)
        .collect::<Result<_, _>>()?;
    Ok(texts.join("\n"))
}

/// OpenAI writes a call's arguments as a JSON string; templates go through them as an object.
fn tool_call(mut call: Value, path: &str) -> Result<Value, ApiError> {
    let name_path = format!("{path}.function.name");
    let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
        return Err(ApiError::invalid(
            path,
            format!("'{path}.function' must be an object with 'name' and 'arguments'"),
        ));
    };
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(ApiError::invalid(
            &name_path,
            format!("'{name_path}' must be a string"),
        ));
    }
    let parsed = function
        .get("arguments")
        .and_then(Value::as_str)
        .and_then(|text| serde_json::from_str(text).ok());
    if let Some(arguments @ Value::Object(_)) = parsed {
        function.insert("arguments".into(), arguments);
    }
    Ok(call)
}
