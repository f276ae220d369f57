"""P02 and its kind: a character that several tokens make is never cut.

Symptoms: U+FFFD in a stream, a stream that freezes for ever, a flush in the middle of a character.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .running import Running

TEXTS = [
    "👩‍👩‍👧‍👦 🇯🇵 龘𠮷",
    "日本語のテキスト、漢字とかな",
    "שלום עולם، مرحبا بالعالم",
    "naïve café — “quotes” … ½ ﷽",
    "é́́ combining ã̃̃ marks",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿🧑🏽‍🚀👍🏿",
    "mixed ascii 中 and 😀 emoji",
]


@pytest.mark.parametrize("text", TEXTS)
def test_p02_no_character_is_cut_wherever_max_tokens_falls(stub: Running, text: str) -> None:
    ids = stub.post("/tokenize", {"prompt": text})["tokens"]
    longest = ""
    for count in range(1, len(ids) + 1):
        body = {"prompt": ids, "max_tokens": count, "ignore_eos": True, "temperature": 0}
        whole = stub.post("/v1/completions", body)["choices"][0]["text"]
        [streamed] = stub.streamed("/v1/completions", body)
        assert streamed["text"] == whole
        assert "�" not in whole
        # One more token never takes text back, and the text is always a beginning of the prompt's.
        assert text.startswith(whole)
        assert whole.startswith(longest)
        longest = whole
    assert longest == text


def test_a_stream_does_not_freeze_behind_a_character_that_never_completes(stub: Running) -> None:
    """The first half of a character, then plain text: what follows must come through."""
    half = stub.post("/tokenize", {"prompt": "𠮷"})["tokens"][:1]
    tail = stub.post("/tokenize", {"prompt": "after all"})["tokens"]
    [streamed] = stub.streamed(
        "/v1/completions", {"prompt": half + tail, "max_tokens": len(half + tail), "ignore_eos": True}
    )
    assert streamed["text"].endswith("after all")
    assert streamed["events"] >= len(tail) - 1


def test_p02_the_real_model_repeats_emoji_without_replacement_characters(smol: Running) -> None:
    message = [{"role": "user", "content": "Repeat exactly: 👩‍👩‍👧‍👦 🇯🇵 龘𠮷"}]
    for count in range(1, 13):
        body = {"messages": message, "max_tokens": count, "temperature": 0}
        [streamed] = smol.streamed("/v1/chat/completions", body)
        whole = smol.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        assert streamed["text"] == whole
        assert "�" not in whole
