"""What a newcomer does first: the official client against the built-in model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

if TYPE_CHECKING:
    from .running import Running

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_chat_says_paris(smol: Running) -> None:
    answer = smol.client.chat.completions.create(model=smol.model, messages=QUESTION, temperature=0, max_tokens=40)
    choice = answer.choices[0]
    assert "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    assert answer.usage.prompt_tokens > 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_chat_says_the_same(smol: Running) -> None:
    whole = smol.client.chat.completions.create(model=smol.model, messages=QUESTION, temperature=0, max_tokens=40)
    stream = smol.client.chat.completions.create(
        model=smol.model, messages=QUESTION, temperature=0, max_tokens=40, stream=True
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(map(bool, pieces)) > 3, "it comes in pieces"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]


@pytest.mark.parametrize("stream", [False, True])
def test_completion_continues_a_text(smol: Running, stream: bool) -> None:
    answer = smol.client.completions.create(
        model=smol.model, prompt="The capital of France is", temperature=0, max_tokens=8, stream=stream
    )
    text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
    assert "Paris" in text


def test_models_are_listed(smol: Running) -> None:
    assert [model.id for model in smol.client.models.list()] == [smol.model]
    assert smol.client.models.retrieve(smol.model).id == smol.model


def test_an_unknown_model_is_a_404_that_names_what_there_is(smol: Running) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        smol.client.chat.completions.create(model="absent", messages=QUESTION)
    assert caught.value.param == "model"
    assert smol.model in caught.value.message


def test_an_answer_ends_at_its_end_id_and_does_not_show_it(smol: Running) -> None:
    answer = smol.chat("Say hi.", max_tokens=200)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "<|im_end|>" not in answer["choices"][0]["message"]["content"]


def test_ignore_eos_and_min_tokens_go_on(smol: Running) -> None:
    for extra in ({"ignore_eos": True}, {"min_tokens": 60}):
        answer = smol.chat("Say hi.", max_tokens=60, **extra)
        assert answer["usage"]["completion_tokens"] == 60
        assert answer["choices"][0]["finish_reason"] == "length"


def test_chat_is_the_completion_of_its_template(smol: Running) -> None:
    """The chat endpoint adds nothing that `/tokenize` does not show."""
    ids = smol.post("/tokenize", {"messages": QUESTION})["tokens"]
    by_ids = smol.complete(ids, max_tokens=12)
    by_chat = smol.chat(QUESTION[0]["content"], max_tokens=12)
    assert by_ids["choices"][0]["text"] == by_chat["choices"][0]["message"]["content"]
    assert by_ids["usage"]["prompt_tokens"] == by_chat["usage"]["prompt_tokens"] == len(ids)


def test_tokenize_and_detokenize_undo_each_other(smol: Running) -> None:
    text = "Hello, wörld! 龘 👩‍👩‍👧‍👦"
    ids = smol.post("/tokenize", {"prompt": text})["tokens"]
    assert smol.post("/detokenize", {"tokens": ids})["prompt"] == text
