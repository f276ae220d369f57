//! Chat templates: Jinja as `transformers` runs it.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};

use super::{python, tojson};

/// A compiled chat template. Rendering a long conversation takes milliseconds: do it on the text pool.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and the like, as template variables.
    special_tokens: Vec<(String, String)>,
    source: Arc<str>,
}

const NAME: &str = "chat_template";

/// Why a conversation could not be rendered: the template's own complaint, or a fault while it ran.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(pub String);

/// The innermost reason, without the template's line numbers: a client can do nothing with those.
fn reason(error: &Error) -> String {
    let detail = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned);
    match std::error::Error::source(error) {
        Some(source) => format!("{detail}: {source}"),
        None => detail,
    }
}

impl ChatTemplate {
    /// Compiles `source` with `transformers`' settings: trimmed blocks, loop controls, Python's methods on strings,
    /// lists and maps, `raise_exception`, `strftime_now`, its own `tojson`, `{% generation %}` blocks.
    pub fn compile(
        source: String,
        special_tokens: Vec<(String, String)>,
    ) -> Result<Self, RenderError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|e| RenderError(e.to_string()))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, _state, value| {
            if value.is_undefined() {
                return Ok(());
            }
            out.write_str(&python::str(value)).map_err(Error::from)
        });
        environment.add_filter("tojson", tojson::tojson);
        environment.add_filter("string", |value: &Value| python::str(value).into_owned());
        environment.add_function(
            "raise_exception",
            |message: &Value| -> Result<Value, Error> {
                Err(Error::new(
                    ErrorKind::InvalidOperation,
                    python::str(message).into_owned(),
                ))
            },
        );
        environment.add_function("strftime_now", strftime_now);
        let source: Arc<str> = source.into();
        environment
            .add_template_owned(NAME, without_generation_tags(&source))
            .map_err(|e| RenderError(e.to_string()))?;
        Ok(Self {
            environment,
            special_tokens,
            source,
        })
    }

    /// Renders a conversation. `messages` are as in a request, contents flattened to strings; `variables` are the
    /// request's `chat_template_kwargs` and win over everything but the messages.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, RenderError> {
        let mut context: Vec<(String, Value)> = self
            .special_tokens
            .iter()
            .map(|(name, token)| (name.clone(), Value::from(token.as_str())))
            .collect();
        context.push(("tools".into(), Value::from(())));
        context.push(("documents".into(), Value::from(())));
        context.push((
            "add_generation_prompt".into(),
            Value::from(add_generation_prompt),
        ));
        context.extend(
            variables
                .iter()
                .map(|(name, value)| (name.clone(), Value::from(Serde(value)))),
        );
        context.push(("messages".into(), Value::from(Serde(messages))));
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|e| RenderError(reason(&e)))?;
        template
            .render(Value::from_pairs(context))
            .map_err(|e| RenderError(reason(&e)))
    }

    /// True if the template knows about thinking, so that the model's output may hold it.
    pub fn thinks(&self) -> bool {
        self.source.contains("<think>") && self.source.contains("</think>")
    }

    /// True if the template reads the variable.
    pub fn reads(&self, variable: &str) -> bool {
        self.source.contains(variable)
    }
}

/// `{% generation %}` marks the assistant's text for training and changes nothing in what is rendered. It becomes a
/// block of the same shape, so that whitespace control keeps its meaning.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let inner = &rest[start + 2..start + length];
        out.push_str(&rest[..start]);
        let name = inner
            .trim_start_matches(['-', '+'])
            .trim_end_matches(['-', '+'])
            .trim();
        let replaced = match name {
            "generation" => inner.replace(name, "if true"),
            "endgeneration" => inner.replace(name, "endif"),
            _ => inner.to_owned(),
        };
        out.push_str(&format!("{{%{replaced}%}}"));
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

/// The local time in a `strftime` format, as Python's `datetime.now().strftime`.
fn strftime_now(format: &str) -> Result<String, Error> {
    use std::fmt::Write;
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format)).map_err(|_| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now does not know the format '{format}'"),
        )
    })?;
    Ok(text)
}
