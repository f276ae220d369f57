//! Chat templates render as `transformers` renders them (mistral.rs#2363: key order, HTML escapes; minijinja#815: bools).

use denizen_frontend::chat::ChatTemplate;
use serde_json::Value;

use crate::support::models;

#[test]
fn templates_render_as_transformers_renders_them() {
    let goldens: Value =
        serde_json::from_slice(&std::fs::read(models::golden().join("goldens.json")).unwrap())
            .unwrap();
    let tokens: Vec<(String, String)> = goldens["special_tokens"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, token)| (name.clone(), token.as_str().unwrap().to_owned()))
        .collect();
    let cases = goldens["goldens"].as_array().unwrap();
    assert!(cases.len() > 30);
    let mut wrong = Vec::new();
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let source = String::from_utf8(models::template(name)).unwrap();
        let template = ChatTemplate::compile(source, tokens.clone()).unwrap();
        let rendered = template.render(
            &case["messages"],
            case["add_generation_prompt"].as_bool().unwrap(),
            case["variables"].as_object().unwrap(),
        );
        let expected = &case["expected"];
        let equal = match &rendered {
            Ok(text) => expected["text"] == *text,
            Err(error) => expected["error"] == error.to_string(),
        };
        if !equal {
            wrong.push(format!(
                "{name}, {}:\n got {rendered:?}\nwant {expected}",
                case["case"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn generation_blocks_keep_their_whitespace_control() {
    let source = "a\n{%- generation -%}\n b \n{%- endgeneration +%}\nc{% if true %}{% generation %}d{% endgeneration %}{% endif %}";
    let template = ChatTemplate::compile(source.into(), Vec::new()).unwrap();
    let rendered = template
        .render(&Value::Array(vec![]), false, &Default::default())
        .unwrap();
    assert_eq!(rendered, "ab\ncd");
}

#[test]
fn a_template_can_ask_for_the_date() {
    let source = "{{ strftime_now('%Y') }}";
    let template = ChatTemplate::compile(source.into(), Vec::new()).unwrap();
    let year = template
        .render(&Value::Null, false, &Default::default())
        .unwrap();
    assert!(
        year.len() == 4 && year.parse::<u32>().unwrap() >= 2026,
        "{year}"
    );

    let template = ChatTemplate::compile("{{ strftime_now('%Q') }}".into(), Vec::new()).unwrap();
    let error = template
        .render(&Value::Null, false, &Default::default())
        .unwrap_err();
    assert!(error.to_string().contains("%Q"), "{error}");
}

#[test]
fn a_template_that_does_not_compile_says_where() {
    let error = ChatTemplate::compile("line\n{% if %}".into(), Vec::new())
        .err()
        .unwrap();
    assert!(error.to_string().contains("chat_template:2"), "{error}");
}
