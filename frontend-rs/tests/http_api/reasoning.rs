//! Thinking and content are told apart, however the text is cut (Rapid-MLX#575, vllm#37414).

use denizen_frontend::chat::{Part, Reasoning};
use denizen_frontend::route::FinishReason;
use proptest::prelude::*;
use serde_json::{json, Value};

use crate::support::client::{chunks, joined};
use crate::support::{bytes, done, tiny, Scripted, Server};

fn read(prompt: &str, pieces: &[String]) -> Part {
    let mut reader = Reasoning::after_prompt(prompt);
    let mut whole = Part::default();
    for piece in pieces {
        let part = reader.push(piece);
        whole.reasoning.push_str(&part.reasoning);
        whole.content.push_str(&part.content);
    }
    let rest = reader.finish();
    whole.reasoning.push_str(&rest.reasoning);
    whole.content.push_str(&rest.content);
    whole
}

#[test]
fn every_cut_of_a_thinking_output_splits_the_same() {
    let cases = [
        (
            "assistant\n<think>\n",
            "I think\n\n</think>\n\nIt is 391.\n",
            "I think",
            "It is 391.\n",
        ),
        ("assistant\n<think>\n", "cut here", "cut here", ""),
        (
            "assistant\n<think>\n",
            "\na </thin k> b",
            "a </thin k> b",
            "",
        ),
        (
            "assistant\n<think>\n",
            "half a tag </thi",
            "half a tag </thi",
            "",
        ),
        (
            "assistant\n<think>\n",
            "</think>only content",
            "",
            "only content",
        ),
        (
            "<think>\n\n</think>\n\n",
            "<think>off</think> all the same",
            "",
            "<think>off</think> all the same",
        ),
        (
            "assistant\n<think>\n\n</think>\n\n",
            "the <think> answer </think>",
            "",
            "the <think> answer </think>",
        ),
        (
            "assistant\n",
            "<think>\nown idea\n</think>\nanswer",
            "own idea",
            "answer",
        ),
        ("assistant\n", "\n <think>a</think>b", "a", "b"),
        (
            "assistant\n",
            "no tags <think> at all",
            "",
            "no tags <think> at all",
        ),
        ("assistant\n", "<thin air", "", "<thin air"),
        ("assistant\n", "<thi", "", "<thi"),
    ];
    for (prompt, text, reasoning, content) in cases {
        let expected = Part {
            reasoning: reasoning.into(),
            content: content.into(),
        };
        let letters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(
            read(prompt, &letters),
            expected,
            "{text:?} letter by letter"
        );
        for cut in 0..=text.len() {
            let pieces = [text[..cut].to_owned(), text[cut..].to_owned()];
            assert_eq!(read(prompt, &pieces), expected, "{text:?} cut at {cut}");
        }
    }
}

proptest! {
    #[test]
    fn no_cut_changes_what_is_reasoning(
        parts in prop::collection::vec(prop::sample::select(vec!["<think>", "</think>", "<", "/", "think>", "\n", "a", "é"]), 0..12),
        prompt in prop::sample::select(vec!["", "<think>\n", "</think>\n\n"]),
        cuts in prop::collection::vec(0usize..40, 0..8),
    ) {
        let text: String = parts.concat();
        let mut pieces = vec![String::new()];
        for (i, c) in text.chars().enumerate() {
            if cuts.contains(&i) { pieces.push(String::new()); }
            pieces.last_mut().unwrap().push(c);
        }
        prop_assert_eq!(read(prompt, &pieces), read(prompt, &[text]));
    }
}

async fn both_ways(body: Value, text: &'static str, reason: FinishReason) -> (Value, Vec<Value>) {
    let backend = Scripted::new(vec![tiny()], move |_| {
        [bytes(text), vec![done(reason)]].concat()
    });
    let server = Server::start(backend).await;
    let whole = server.post("/v1/chat/completions", &body).await.ok();
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let streamed = chunks(&server.events("/v1/chat/completions", &streamed).await);
    (whole["choices"][0].clone(), streamed)
}

fn request(thinking: Option<bool>) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "17*23?"}]});
    if let Some(thinking) = thinking {
        body["chat_template_kwargs"] = json!({"enable_thinking": thinking});
    }
    body
}

#[tokio::test]
async fn p09_thinking_cut_by_max_tokens_is_reasoning_only() {
    let (whole, streamed) =
        both_ways(request(Some(true)), "First, 17 times", FinishReason::Length).await;
    assert_eq!(whole["message"]["content"], Value::Null);
    assert_eq!(whole["message"]["reasoning_content"], "First, 17 times");
    assert_eq!(whole["finish_reason"], "length");
    assert_eq!(joined(&streamed, 0, "reasoning_content"), "First, 17 times");
    assert_eq!(joined(&streamed, 0, "content"), "");
}

#[tokio::test]
async fn p09_without_thinking_all_is_content() {
    for thinking in [Some(false), None] {
        let (whole, streamed) =
            both_ways(request(thinking), "It is 391.", FinishReason::Stop).await;
        assert_eq!(whole["message"]["content"], "It is 391.");
        assert_eq!(whole["message"].get("reasoning_content"), None);
        assert_eq!(joined(&streamed, 0, "content"), "It is 391.");
        assert_eq!(joined(&streamed, 0, "reasoning_content"), "");
    }
}

#[tokio::test]
async fn thinking_and_answer_come_apart_and_are_counted() {
    let text = "Sum.\n</think>\n\nIt is 391.";
    let (whole, streamed) = both_ways(request(Some(true)), text, FinishReason::Stop).await;
    assert_eq!(whole["message"]["content"], "It is 391.");
    assert_eq!(whole["message"]["reasoning_content"], "Sum.");
    assert_eq!(joined(&streamed, 0, "content"), "It is 391.");
    assert_eq!(joined(&streamed, 0, "reasoning_content"), "Sum.");
    for chunk in &streamed {
        assert!(!chunk.to_string().contains("think>"), "{chunk}");
    }
}

/// vllm#57551: state of one request shows up in the next.
#[tokio::test]
async fn each_choice_has_its_own_reader() {
    let backend = Scripted::new(vec![tiny()], |request| {
        let text = if request.sampling.seed == 7 {
            "a</think>b"
        } else {
            "only thoughts"
        };
        [bytes(text), vec![done(FinishReason::Stop)]].concat()
    });
    let server = Server::start(backend).await;
    let mut body = request(Some(true));
    body["n"] = json!(2);
    body["seed"] = json!(7);
    let choices = server.post("/v1/chat/completions", &body).await.ok()["choices"].clone();
    assert_eq!(choices[0]["message"]["content"], "b");
    assert_eq!(choices[1]["message"]["reasoning_content"], "only thoughts");
}
