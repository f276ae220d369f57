//! What a checkpoint folder must hold, and what is said where it does not.

use denizen_frontend::text::{SamplingDefaults, TextModel};
use serde_json::{json, Value};

use crate::support::models::{tiny_folder, tiny_tokenizer, Folder};
use crate::support::{qwen, smol, tiny, tiny_id};

fn message(folder: &Folder) -> String {
    TextModel::load(&folder.0)
        .err()
        .map_or("loaded".into(), |e| e.to_string())
}

#[test]
fn every_end_id_of_a_checkpoint_is_known() {
    // Config names 248044 alone; the chat format ends turns with 248046.
    assert_eq!(qwen().text.stop_ids, [248044, 248046]);
    assert_eq!(smol().text.stop_ids, [0, 2]);
    let folder = tiny_folder();
    folder.write_json("generation_config.json", &json!({"eos_token_id": [7, 8]}));
    folder.write_json(
        "config.json",
        &json!({"eos_token_id": 9, "text_config": {"vocab_size": 300, "max_position_embeddings": 64, "eos_token_id": 10}}),
    );
    let text = TextModel::load(&folder.0).unwrap();
    assert_eq!(
        text.stop_ids,
        [7, 8, 9, 10, tiny_id("<|endoftext|>"), tiny_id("<|im_end|>")]
    );
    assert_eq!((text.context, text.vocab), (64, 300));
}

#[test]
fn sampling_defaults_come_from_the_generation_config() {
    assert_eq!(tiny().text.defaults, SamplingDefaults::default());
    let folder = tiny_folder();
    let mut config =
        json!({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1});
    folder.write_json("generation_config.json", &config);
    let expected = SamplingDefaults {
        temperature: 0.6,
        top_k: 20,
        top_p: 0.95,
        min_p: 0.0,
        repetition_penalty: 1.1,
    };
    assert_eq!(TextModel::load(&folder.0).unwrap().defaults, expected);
    for (do_sample, temperature) in [(json!(true), 0.6), (json!(null), 0.6), (json!(false), 0.0)] {
        config["do_sample"] = do_sample;
        folder.write_json("generation_config.json", &config);
        assert_eq!(
            TextModel::load(&folder.0).unwrap().defaults,
            SamplingDefaults {
                temperature,
                ..expected
            }
        );
    }
    folder.write_json("generation_config.json", &json!({"top_p": 7}));
    assert!(message(&folder).contains("generation_config.json: 'top_p' is 7"));
}

#[test]
fn a_template_is_found_in_each_of_its_places() {
    let folder = tiny_folder();
    let render = |folder: &Folder| {
        let text = TextModel::load(&folder.0).unwrap();
        text.chat_template()
            .map(|t| t.render(&json!([]), false, &Default::default()).unwrap())
    };
    folder.write_json(
        "tokenizer_config.json",
        &json!({"chat_template": "from the string"}),
    );
    folder.write("chat_template.jinja", "from the file");
    assert_eq!(render(&folder).as_deref(), Some("from the file"));
    std::fs::remove_file(folder.0.join("chat_template.jinja")).unwrap();
    assert_eq!(render(&folder).as_deref(), Some("from the string"));
    let list = json!([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "from the list {{ eos_token }}"}]);
    let eos = json!({"content": "<|im_end|>", "lstrip": false});
    folder.write_json(
        "tokenizer_config.json",
        &json!({"chat_template": list, "eos_token": eos}),
    );
    assert_eq!(render(&folder).as_deref(), Some("from the list <|im_end|>"));
    folder.write_json("tokenizer_config.json", &json!({}));
    assert_eq!(render(&folder), None);
    folder.write_json(
        "tokenizer_config.json",
        &json!({"chat_template": [{"name": "a", "template": ""}, {"name": "b", "template": ""}]}),
    );
    assert!(message(&folder).contains("'default'"));
}

#[test]
fn a_missing_or_damaged_file_is_named_with_the_remedy() {
    let folder = tiny_folder();
    let missing = TextModel::load(&folder.0.join("nowhere"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        missing.contains("nowhere: no such folder; give the path of"),
        "{missing}"
    );

    for (file, content, expected) in [
        (
            "config.json",
            None,
            "config.json: not found; a checkpoint folder needs",
        ),
        (
            "config.json",
            Some("{\"vocab_size\": 300}"),
            "config.json: no usable 'max_position_embeddings'; set it",
        ),
        ("config.json", Some("{"), "config.json: EOF while parsing"),
        ("config.json", Some("[]"), "config.json: not a JSON object"),
        (
            "tokenizer.json",
            None,
            "tokenizer.json: not found; a checkpoint folder needs the fast tokenizer's",
        ),
        (
            "tokenizer.json",
            Some("{}"),
            "the file is damaged or newer than this server; download it again",
        ),
        (
            "chat_template.jinja",
            Some("{% if %}"),
            "chat_template.jinja: the chat template does not compile",
        ),
        (
            "generation_config.json",
            Some("{\"eos_token_id\": -1}"),
            "'eos_token_id' holds -1",
        ),
        (
            "generation_config.json",
            Some("{\"eos_token_id\": 300}"),
            "end id 300 is outside the vocabulary of 300",
        ),
        (
            "tokenizer_config.json",
            Some("{\"chat_template\": 7}"),
            "'chat_template' is neither a string nor",
        ),
    ] {
        let folder = tiny_folder();
        if file == "tokenizer_config.json" {
            // The template's own file would win.
            std::fs::remove_file(folder.0.join("chat_template.jinja")).unwrap();
        }
        match content {
            None => std::fs::remove_file(folder.0.join(file)).unwrap(),
            Some(content) => folder.write(file, content),
        }
        let message = message(&folder);
        assert!(message.contains(expected), "{file}: {message}");
        assert!(
            message.starts_with(&folder.0.display().to_string()),
            "{message}"
        );
        assert!(!message.contains('\n'), "one line: {message}");
    }
}

#[test]
fn a_tokenizer_that_does_not_fit_is_refused() {
    let folder = tiny_folder();
    folder.write_json(
        "config.json",
        &json!({"vocab_size": 200, "max_position_embeddings": 64}),
    );
    assert!(
        message(&folder).contains("has token ids up to 261 but config.json's vocab_size is 200")
    );

    for decoder in [
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        Value::Null,
    ] {
        let folder = tiny_folder();
        let mut tokenizer = tiny_tokenizer();
        tokenizer["decoder"] = decoder;
        folder.write_json("tokenizer.json", &tokenizer);
        assert!(message(&folder).contains("is not supported; only ByteLevel"));
    }
}

#[test]
fn truncation_and_padding_left_in_a_tokenizer_file_do_not_apply() {
    let folder = tiny_folder();
    let mut tokenizer = tiny_tokenizer();
    tokenizer["truncation"] =
        json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    tokenizer["padding"] = json!({
        "strategy": {"Fixed": 512}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "!",
    });
    folder.write_json("tokenizer.json", &tokenizer);
    assert_eq!(
        TextModel::load(&folder.0)
            .unwrap()
            .encode("abcdefgh", false)
            .unwrap()
            .len(),
        8
    );
}
