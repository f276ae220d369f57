"""Word errors, silence and loops, by hand."""

from __future__ import annotations

import random

import jiwer
import pytest
from denizen.bench.quality import assess, count, loops, normalize
from denizen.bench.schema import Transcript


def said(text: str, reference: str | None, language: str | None = None, clip: str = "a") -> Transcript:
    return Transcript(index=0, scheduled=0.0, clip=clip, seconds=1.0, reference=reference, language=language, text=text)


@pytest.mark.parametrize(
    ("text", "language", "normal"),
    [
        ("Mr. Dashwood paid $20 million; colour it grey!", None, "mister dashwood paid $20000000 color it gray"),
        ("I won't, [laughs] um, can't (cough) do twenty-one.", "en", "i will not can not do 21"),
        ("I won't.", "en-GB", "i will not"),
        ("Grüße, Straße: 20 €!", "de", "grüße straße 20"),
        ("今日は、良い天気。", "ja", "今 日 は 良 い 天 気"),
    ],
)
def test_text_is_normalised_as_whispers_figures_are(text: str, language: str | None, normal: str) -> None:
    assert normalize(text, language) == normal


@pytest.mark.parametrize(
    ("reference", "text", "errors"),
    [
        ("a b c d", "a b c d", (0, 0, 0)),
        ("a b c d", "a x c", (1, 1, 0)),
        ("a b c d", "a b new c d", (0, 0, 1)),
        ("a b c d", "", (0, 4, 0)),
        ("", "a b", (0, 0, 2)),
        ("", "", (0, 0, 0)),
        ("the cat sat on the mat", "the cat is on a mat mat", (2, 0, 1)),
    ],
)
def test_errors_by_hand(reference: str, text: str, errors: tuple[int, int, int]) -> None:
    found = count([(reference, text)])
    assert (found.substitutions, found.deletions, found.insertions) == errors
    assert found.words == len(reference.split())


def test_the_rate_is_of_all_words_and_not_a_mean_of_rates() -> None:
    found = count([("a", "b"), ("a b c d e f g h i", "a b c d e f g h i")])
    assert (found.references, found.words, found.rate) == (2, 10, 0.1)


def test_words_that_nobody_said_are_errors_though_there_is_nothing_to_divide_by() -> None:
    assert count([("", "thank you for watching")]).rate == 1.0
    assert count([("", "")]).rate == 0.0


def test_rates_equal_those_of_jiwer_over_random_texts() -> None:
    rng = random.Random(5)

    def text() -> str:
        return " ".join(rng.choices("abcdef", k=rng.randint(1, 30)))

    pairs = [(text(), text()) for _ in range(200)]
    assert count(pairs).rate == pytest.approx(jiwer.wer([pair[0] for pair in pairs], [pair[1] for pair in pairs]))


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("", 1),
        ("no no no", 1),  # people say that
        ("no no no no", 4),
        ("thank you thank you thank you thank you very much", 4),
        ("well " + "i do not know that " * 6 + "well", 6),
        ("one two three four five six seven eight " * 4, 4),
        ("a b a c a b a c a d", 1),
    ],
)
def test_loops(text: str, times: int) -> None:
    assert loops(text) == times


def test_what_transcripts_are_worth() -> None:
    records = [
        said("Ten of clubs.", "ten of clubs", clip="a"),
        said("Ten of lamps.", "ten of clubs", clip="b"),
        said("", "seven of hearts", clip="c"),
        said("...", "seven of hearts", clip="d"),
        said("Thanks for watching!", "", clip="silence"),
        said(" ", "[music]", clip="music"),
        said("no no no no no", "no no no no no", clip="loop that was said"),
        said("no " * 50, "no", clip="loop"),
        said("la la la la", None, clip="loop without a reference"),
        said("天気", "天空", "ja", clip="ja"),
    ]
    quality = assess(records)
    assert quality.wer is not None
    assert quality.wer.references == 8
    assert quality.wer.words == 3 + 3 + 3 + 3 + 5 + 1
    assert quality.wer.substitutions == 2  # the normaliser keeps one dot of "...", which is no word all the same
    assert quality.wer.deletions == 5
    assert quality.wer.insertions == 3 + 49
    assert quality.cer is not None
    assert (quality.cer.words, quality.cer.substitutions, quality.cer.rate) == (2, 1, 0.5)
    assert (quality.empty, quality.silent, quality.on_silence, quality.repeating) == (2, 2, 1, 2)
    assert [found["clip"] for found in quality.worst] == ["loop", "c", "d", "silence", "b"]
    assert quality.worst[0]["errors"] == 49


def test_without_references_there_is_no_rate() -> None:
    quality = assess([said("anything", None)])
    assert quality.wer is quality.cer is None
    assert quality.empty == quality.silent == 0
    assert not quality.worst
