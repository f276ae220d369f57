"""Sampling seen from outside: `n`, seeds, greedy, penalties, bias."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .running import Running

ANIMAL = {"messages": [{"role": "user", "content": "Name a random animal."}], "temperature": 1.3, "max_tokens": 8}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in answer["choices"]]


# --- P03: several choices ---


def test_p03_n_choices_differ_are_numbered_and_counted(smol: Running) -> None:
    answer = smol.post(CHAT, {**ANIMAL, "n": 4, "seed": 7})
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["finish_reason"] in ("stop", "length") for choice in answer["choices"])
    assert len(set(texts(answer))) > 1
    alone = smol.post(CHAT, {**ANIMAL, "n": 1, "seed": 7})
    assert answer["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    singles = [smol.post(CHAT, {**ANIMAL, "seed": 7 + index}) for index in range(4)]
    assert answer["usage"]["completion_tokens"] == sum(single["usage"]["completion_tokens"] for single in singles)
    # Choice i is what seed + i alone gives.
    assert texts(answer) == [texts(single)[0] for single in singles]


def test_p03_n_choices_stream_like_they_come_whole(smol: Running) -> None:
    whole = smol.post(CHAT, {**ANIMAL, "n": 4, "seed": 7})
    streamed = smol.streamed(CHAT, {**ANIMAL, "n": 4, "seed": 7})
    assert [choice["text"] for choice in streamed] == texts(whole)
    assert [choice["finish_reason"] for choice in streamed] == [choice["finish_reason"] for choice in whole["choices"]]


def test_p03_unseeded_calls_differ(tiny_server: Running) -> None:
    body = {"prompt": "The server", "temperature": 1.3, "max_tokens": 16, "ignore_eos": True}
    drawn = {texts(tiny_server.post(COMPLETIONS, body))[0] for _ in range(4)}
    drawn |= set(texts(tiny_server.post(COMPLETIONS, {**body, "n": 4})))
    assert len(drawn) == 8


# --- Seeds, whoever else runs ---


@pytest.mark.parametrize("model", ["hybrid", "dense"])
def test_a_seeded_answer_is_the_same_alone_and_in_any_batch(tiny_server: Running, model: str) -> None:
    """Symptoms: the seed counts only in row 0; a seeded row changes if its neighbour has no seed."""

    def ask(seed: int | None, **extra: Any) -> str:
        body = {
            "model": model,
            "prompt": "Two words",
            "temperature": 0.9,
            "max_tokens": 24,
            "ignore_eos": True,
            **extra,
        }
        return texts(tiny_server.post(COMPLETIONS, {**body, **({} if seed is None else {"seed": seed})}))[0]

    alone = [ask(seed) for seed in range(8)]
    assert len(set(alone)) == 8
    with ThreadPoolExecutor(24) as pool:
        batched = list(pool.map(ask, range(8)))
        mixed = [pool.submit(ask, seed) for pair in zip(range(8), [None] * 8, strict=True) for seed in pair]
        greedy = [pool.submit(ask, None, temperature=0) for _ in range(8)]
        assert batched == alone
        assert [future.result() for future in mixed][::2] == alone
        assert len({future.result() for future in greedy}) == 1


def test_a_penalty_that_joins_a_running_batch_changes_only_its_own_row(tiny_server: Running) -> None:
    """Symptom: penalties ignored, or applied one step late, in a mixed batch."""

    def ask(**extra: Any) -> str:
        return texts(tiny_server.complete("The server reads", max_tokens=40, ignore_eos=True, **extra))[0]

    strong = {"repetition_penalty": 1.8, "frequency_penalty": 1.5, "presence_penalty": 1.0}
    plain, penalised = ask(), ask(**strong)
    assert plain != penalised
    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(ask, **(strong if index % 3 == 2 else {})) for index in range(12)]
        found = [future.result() for future in futures]
    assert found == [penalised if index % 3 == 2 else plain for index in range(12)]


# --- P13: explicit zeros ---


@pytest.mark.parametrize(
    "zero",
    [
        {"temperature": 0, "top_k": 50},
        {"temperature": 0, "top_p": 0.3, "seed": 5},
        {"temperature": 0.0, "min_p": 0.2, "seed": 6},
        {"temperature": 1, "top_p": 0},
        {"temperature": 2, "top_p": 0.0, "seed": 9},
        {"temperature": 1, "top_k": 1},
    ],
)
@pytest.mark.parametrize("model", ["hybrid", "dense"])
def test_p13_an_explicit_zero_means_greedy(tiny_server: Running, zero: dict[str, Any], model: str) -> None:
    body = {"model": model, "prompt": "Ein Wort", "max_tokens": 24, "ignore_eos": True}
    greedy = texts(tiny_server.post(COMPLETIONS, {**body, "temperature": 0}))
    for _ in range(3):
        assert texts(tiny_server.post(COMPLETIONS, {**body, **zero})) == greedy


def test_temperature_one_is_not_greedy(tiny_server: Running) -> None:
    body = {"prompt": "Ein Wort", "max_tokens": 24, "ignore_eos": True, "temperature": 1, "n": 8, "seed": 1}
    assert len(set(texts(tiny_server.post(COMPLETIONS, body)))) > 4


# --- Bias ---


def test_logit_bias_forces_and_forbids_a_token(tiny_server: Running) -> None:
    ids = tiny_server.post("/tokenize", {"prompt": "Ein Wort"})["tokens"]
    text = texts(tiny_server.complete("Ein", max_tokens=6, ignore_eos=True, logit_bias={str(ids[-1]): 100}))[0]
    piece = tiny_server.post("/detokenize", {"tokens": [ids[-1]]})["prompt"]
    assert text == piece * 6
    free = tiny_server.complete("Ein", max_tokens=12, ignore_eos=True, logprobs=0)["choices"][0]
    banned = tiny_server.post("/tokenize", {"prompt": free["text"]})["tokens"]
    bias = {str(token): -100 for token in set(banned)}
    again = tiny_server.complete("Ein", max_tokens=12, ignore_eos=True, logit_bias=bias)["choices"][0]
    assert again["text"] != free["text"]
