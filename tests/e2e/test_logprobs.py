"""Log-probabilities: their shape, and that they are those of a distribution."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest

from tests.models import tiny

if TYPE_CHECKING:
    from .running import Running

PROMPT = "The server reads a request"


@pytest.mark.parametrize("model", ["hybrid", "dense"])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_chat_logprobs_rank_and_sum_like_probabilities(tiny_server: Running, model: str, temperature: float) -> None:
    answer = tiny_server.chat(
        PROMPT,
        model=model,
        max_tokens=12,
        ignore_eos=True,
        temperature=temperature,
        seed=3,
        logprobs=True,
        top_logprobs=5,
    )
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"] == 12
    for entry in content:
        top = [alternative["logprob"] for alternative in entry["top_logprobs"]]
        assert len(top) == 5
        assert top == sorted(top, reverse=True)
        assert all(logprob <= 0 for logprob in [entry["logprob"], *top])
        assert sum(map(math.exp, top)) <= 1 + 1e-4
        assert len({alternative["token"] for alternative in entry["top_logprobs"]}) == 5
        if temperature == 0:
            assert entry["logprob"] == pytest.approx(top[0], abs=1e-5)
        assert entry["logprob"] <= top[0] + 1e-5
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"] or "\\x" in entry["token"]


def test_streamed_logprobs_are_the_same(tiny_server: Running) -> None:
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 12,
        "ignore_eos": True,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = tiny_server.post("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for event in tiny_server.stream("/v1/chat/completions", body)
        for choice in event["choices"]
        for entry in (choice.get("logprobs") or {}).get("content", [])
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in whole]
    assert [entry["logprob"] for entry in streamed] == pytest.approx([entry["logprob"] for entry in whole], abs=1e-4)


def token_ids() -> dict[bytes, int]:
    """Ids of the tiny models' tokens by their bytes (byte-level BPE writes a byte as a printable character)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [byte for byte in range(256) if byte not in plain]
    byte_of = {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(shifted)}
    vocabulary = tiny.tokenizer().get_vocab(with_added_tokens=False)
    return {bytes(byte_of[c] for c in word): id for word, id in vocabulary.items() if set(word) <= byte_of.keys()}


@pytest.mark.parametrize("model", ["hybrid", "dense"])
def test_echo_scores_a_text_as_decoding_did(tiny_server: Running, model: str) -> None:
    """Prefill and decode are two walks: the log-probabilities that they give to one sequence must agree."""
    messages = [{"role": "user", "content": PROMPT}]
    prompt = tiny_server.post("/tokenize", {"model": model, "messages": messages})["tokens"]
    body = {"model": model, "temperature": 0, "logprobs": True}
    decoded = tiny_server.post("/v1/chat/completions", {**body, "messages": messages, "max_tokens": 24})
    content = decoded["choices"][0]["logprobs"]["content"]
    by_bytes = token_ids()
    # Up to the first id that stands for no bytes: a special token, or one beyond the tokenizer's vocabulary.
    content = list(itertools.takewhile(lambda entry: entry["bytes"], content))
    ids = [by_bytes[bytes(entry["bytes"])] for entry in content]
    assert len(set(ids)) > 3, "the answer wanders"
    again = {"model": model, "prompt": prompt + ids, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0}
    echoed = tiny_server.post("/v1/completions", again)["choices"][0]["logprobs"]
    assert echoed["token_logprobs"][0] is None
    assert echoed["top_logprobs"][0] is None
    assert {len(column) for column in echoed.values()} == {len(prompt + ids) + 1}
    scores = echoed["token_logprobs"][len(prompt) : -1]
    assert scores == pytest.approx([entry["logprob"] for entry in content], abs=2e-4)


def test_echo_without_logprobs_repeats_the_prompt(tiny_server: Running) -> None:
    plain = tiny_server.complete(PROMPT, max_tokens=5, ignore_eos=True)["choices"][0]["text"]
    echoed = tiny_server.complete(PROMPT, max_tokens=5, ignore_eos=True, echo=True)["choices"][0]["text"]
    [streamed] = tiny_server.streamed(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "ignore_eos": True, "echo": True, "temperature": 0}
    )
    assert echoed == streamed["text"] == PROMPT + plain
