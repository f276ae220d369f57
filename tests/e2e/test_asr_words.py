"""Word times beside those of OpenAI's implementation: its program's, and its rules on transformers' attention."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.models import real_whisper

from .hearing import Reference, verbose
from .sounds import RATE, join

if TYPE_CHECKING:
    from tests.models.real_whisper import Clip

    from .running import Running

WORD_TIME = 0.2
"""Seconds that a word's start or end may be away from the reference's."""
ORIGINAL: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden/words/openai-whisper.json").read_text())
"""What openai-whisper 20250625 wrote with the same weights (`tests/golden/words/README.md`)."""
Spoken = list[tuple[str, float, float]]


def sound(clips: list[Clip], name: str) -> np.ndarray:
    """A clip by its number, or a join of all by its seconds."""
    if name.startswith("join"):
        samples, _ = join([clip.pcm for clip in clips], int(name.removeprefix("join")))
        return samples.astype(np.float32)
    return clips[int(name)].pcm


def texts(spoken: Spoken) -> list[str]:
    return [word.strip() for word, *_ in spoken]


def far(ours: Spoken, theirs: Spoken, what: str) -> np.ndarray:
    """How far starts and ends are from theirs: ``[words, 2]``, seconds.

    NaN where the word, or its neighbour on that side, was heard another way: the text then has other tokens there.
    """
    pairs = {
        (block.a + at, block.b + at)
        for block in SequenceMatcher(None, texts(ours), texts(theirs), autojunk=False).get_matching_blocks()
        for at in range(block.size)
    } | {(-1, -1), (len(ours), len(theirs))}
    away = np.full((len(ours), 2), np.nan)
    for mine, other in pairs:
        if 0 <= mine < len(ours):
            for side, step in ((0, -1), (1, 1)):
                if (mine + step, other + step) in pairs:
                    away[mine, side] = ours[mine][1 + side] - theirs[other][1 + side]
    worst = np.nanmax(abs(away), axis=0)
    compared = np.isfinite(away).mean()
    print(f"{what}: {len(ours)} words, {compared:.0%} of times; starts within {worst[0]:.3f} s, ends {worst[1]:.3f} s")
    late = [(ours[index], theirs) for index in np.flatnonzero((abs(away) > WORD_TIME).any(1))]
    assert not late, late
    assert compared >= 0.7
    return away


def words(answer: dict[str, Any]) -> Spoken:
    return [(word["word"], word["start"], word["end"]) for word in answer["words"]]


@pytest.fixture(scope="module")
def hear(ears: Running, base_ears: Running, clips: list[Clip]) -> Any:
    """``hear(model, sound)``: what Denizen makes of it; each is heard once."""
    made: dict[tuple[str, str], dict[str, Any]] = {}

    def get(model: str, name: str) -> dict[str, Any]:
        if (model, name) not in made:
            server, language = {"tiny.en": (ears, {}), "base": (base_ears, {"language": "en"})}[model]
            made[model, name] = verbose(server, sound(clips, name), "word", "segment", **language)
        return made[model, name]

    return get


@pytest.mark.parametrize("case", sorted(ORIGINAL))
def test_words_are_those_of_the_original_program(hear: Any, case: str) -> None:
    """It pads a window's features and not its samples: a word or a comma may be heard another way."""
    away = far(words(hear(*case.split("/"))), [(word, start, end) for word, start, end in ORIGINAL[case]], case)
    # A step of attention is 0.02 s long.
    assert (abs(away[np.isfinite(away)]) <= 0.041).mean() >= 0.95


@pytest.mark.parametrize("model", ["tiny.en", "base"])
def test_words_follow_the_originals_rules_on_transformers_attention(
    hear: Any, clips: list[Clip], model: str, request: pytest.FixtureRequest
) -> None:
    import torch

    from tests.models import word_times

    folder = request.getfixturevalue({"tiny.en": "tiny_ears_model", "base": "base_ears_model"}[model])
    reference = Reference(folder)
    generation = reference.model.generation_config
    head = [
        generation.decoder_start_token_id,
        *real_whisper.LANGUAGE_AND_TASK[model],
        generation.no_timestamps_token_id,
    ]
    total = np.empty((0, 2))
    for name in ("0", "1", "2", "3", "4", "join25"):
        answer, pcm = hear(model, name), sound(clips, name)
        assert {segment["seek"] for segment in answer["segments"]} == {0}, "one window"
        tokens = [[token for token in s["tokens"] if token < generation.eos_token_id] for s in answer["segments"]]
        with torch.inference_mode():
            encoded = reference.model.model.encoder(reference.features(pcm)).last_hidden_state
        flat = [token for text in tokens for token in text]
        times = word_times.token_times(reference.model, encoded, len(pcm), head, flat)
        merged, median = word_times.spoken(reference.tokenizer, flat, times)
        last_end, mine = 0.0, words(answer)
        for segment, text in zip(answer["segments"], tokens, strict=True):
            theirs, left = [], len(text)
            while left > 0:
                theirs.append(merged.pop(0))
                left -= theirs[-1].tokens
            stamps = [token for token in segment["tokens"] if token > generation.no_timestamps_token_id]
            start, end = ((stamp - generation.no_timestamps_token_id - 1) * 0.02 for stamp in (stamps[0], stamps[-1]))
            word_times.settled(theirs, median, (start, end), last_end)
            last_end = theirs[-1].end
            spoken = [(word.text, word.start, word.end) for word in theirs]
            assert texts(mine[: len(spoken)]) == texts(spoken)
            total = np.vstack([total, far(mine[: len(spoken)], spoken, f"{model}/{name}")])
            del mine[: len(spoken)]
        assert not mine
    assert len(total) > 120
    # Steps of attention are 0.02 s long; all but a few fall on the same one.
    assert (abs(total).max(1) <= 0.021).mean() > 0.95


def test_words_end_before_their_punctuation(hear: Any, clips: list[Clip], tiny_ears_model: Path) -> None:
    """What differs from transformers: there a word lasts as long as the mark behind it."""
    theirs = Reference(tiny_ears_model).words(clips[0].pcm)
    ours = words(hear("tiny.en", "0"))
    assert texts(ours) == texts(theirs)
    for (word, start, end), (_, other_start, other_end) in zip(ours, theirs, strict=True):
        assert abs(start - other_start) <= WORD_TIME
        if word[-1] in ",.;:?!":
            assert end <= other_end + 0.021
        else:
            assert abs(end - other_end) <= WORD_TIME, word
    assert len(clips[0].pcm) / RATE >= ours[-1][2]


def test_both_granularities_agree(hear: Any) -> None:
    answer = hear("tiny.en", "0")
    for word in answer["words"]:
        middle = (word["start"] + word["end"]) / 2
        assert any(part["start"] - WORD_TIME <= middle <= part["end"] + WORD_TIME for part in answer["segments"])
