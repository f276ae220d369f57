"""P01 and its kind: a stop string ends an answer at its first character, however tokens and events cut it.

Symptoms: part of a stop string leaks; the hold-back is too long; the token-only path ignores `stop`.
The stub repeats its prompt, so the text without a stop string is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .running import Running

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PATH = "/v1/completions"

# Prompt, stop strings, `max_tokens`.
CASES: list[tuple[str, list[str], int]] = [
    (ALPHABET, ["MNOPQ"], 64),
    (ALPHABET, ["Z"], 64),
    (ALPHABET, ["A"], 64),
    (ALPHABET, [ALPHABET], 64),
    (ALPHABET, ["ZA"], 64),  # across the seam of two repetitions
    (ALPHABET, ["QRS", "MNO", "XYZ"], 64),  # the first in the text wins, not the first in the list
    (ALPHABET, ["MNOPQRX", "OPQ"], 64),  # a longer candidate that fails must not hide a shorter one inside it
    (ALPHABET, ["MNOPQ", "OP"], 64),  # complete one letter earlier
    (ALPHABET, ["OPQ", "MNOPQ"], 64),  # complete at the same letter
    (ALPHABET, ["ZZ"], 20),  # never comes: what was held back is given out at the end
    (ALPHABET, ["Z!"], 40),
    ("aaaaab", ["aab"], 32),  # overlaps itself
    ("abababac", ["ababac"], 32),
    ("one two three four", [" three"], 32),
    ("one two three four", ["two three", "e t"], 32),
    ("line one\nline two\n\nline three", ["\n\n"], 64),
    ("größe 龘𠮷 café 👩‍👩‍👧‍👦 end", ["👩‍👩‍👧‍👦"], 64),
    ("größe 龘𠮷 café 👩‍👩‍👧‍👦 end", ["𠮷"], 64),
    ("größe 龘𠮷 café 👩‍👩‍👧‍👦 end", ["é"], 64),
]


def first_match(text: str, stops: list[str]) -> int | None:
    """Where the text ends: generation stops with the match that is complete first; of two, the longer counts."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def unstopped(server: Running, prompt: str | list[int], max_tokens: int) -> str:
    answer = server.complete(prompt, max_tokens=max_tokens, ignore_eos=True)
    text: str = answer["choices"][0]["text"]
    return text


def check(server: Running, prompt: str | list[int], stops: list[str], max_tokens: int, path: str = PATH) -> None:
    """Both ways give the text up to the first match, and say so."""
    full = unstopped(server, prompt, max_tokens)
    at = first_match(full, stops)
    body: dict[str, Any] = {"prompt": prompt, "stop": stops, "max_tokens": max_tokens, "ignore_eos": True}
    body["temperature"] = 0
    whole = server.post(path, body)
    [streamed] = server.streamed(path, body)
    assert whole["choices"][0]["text"] == streamed["text"] == full[:at]
    assert whole["choices"][0]["finish_reason"] == streamed["finish_reason"] == ("length" if at is None else "stop")


@pytest.mark.parametrize(("prompt", "stops", "max_tokens"), CASES)
def test_p01_nothing_at_or_after_a_stop_string_is_sent(
    stub: Running, prompt: str, stops: list[str], max_tokens: int
) -> None:
    check(stub, prompt, stops, max_tokens)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
def test_part_of_a_stop_string_never_leaks_wherever_it_begins(stub: Running, length: int) -> None:
    doubled = ALPHABET + ALPHABET
    for begin in range(0, len(ALPHABET), 3):
        check(stub, ALPHABET, [doubled[begin : begin + length]], 40)


def test_a_prompt_of_token_ids_obeys_stop_too(stub: Running) -> None:
    """Symptom: the token-only path silently ignores `stop`."""
    ids = stub.post("/tokenize", {"prompt": ALPHABET})["tokens"]
    check(stub, ids, ["MNOPQ"], 64)


@pytest.mark.parametrize("stop", ["MNOPQ", ["MNOPQ"]])
def test_p01_chat_obeys_stop_in_both_forms(smol: Running, stop: str | list[str]) -> None:
    question = "Print the capital alphabet A-Z without spaces."
    text = smol.chat(question, max_tokens=48)["choices"][0]["message"]["content"]
    # The model decides what it prints; stop at something that it does print.
    stop_text = "MNOPQ" if "MNOPQ" in text else text[5:9]
    given = stop_text if isinstance(stop, str) else [stop_text]
    whole = smol.chat(question, max_tokens=48, stop=given)["choices"][0]
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 48, "stop": given, "temperature": 0}
    [streamed] = smol.streamed("/v1/chat/completions", body)
    assert whole["message"]["content"] == streamed["text"] == text[: text.index(stop_text)]
    assert whole["finish_reason"] == streamed["finish_reason"] == "stop"


def test_text_is_held_back_only_while_it_may_become_a_stop_string(stub: Running) -> None:
    """Symptom: over-long hold-back. A stop string whose first letter never comes must not delay a single event."""
    body = {"prompt": ALPHABET, "max_tokens": 26, "ignore_eos": True, "temperature": 0}
    [free] = stub.streamed(PATH, body)
    [held] = stub.streamed(PATH, {**body, "stop": ["#" * 100]})
    assert held["text"] == free["text"]
    assert held["events"] == free["events"]
