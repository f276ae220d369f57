"""Transcripts against their references: words as Whisper's own evaluation normalises them, silence, loops.

Text is normalised by `whisper-normalizer`, a maintained copy of the code behind Whisper's published figures, and
aligned by `jiwer`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from denizen.bench.schema import Quality, WordErrors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from denizen.bench.schema import Transcript

#: Written without spaces between words: characters are compared instead of words.
UNSPACED = frozenset({"zh", "yue", "ja", "th", "lo", "km", "my", "bo"})
_PHRASE = 8
"""Words of the longest phrase that is looked for in loops."""
_TIMES = 4
"""So often in a row it is a loop."""
_WORST = 5


def normalize(text: str, language: str | None) -> str:
    """`text` as it is compared: words, or in languages without spaces characters, separated by single spaces."""
    return " ".join(_normalizer(_code(language))(text).split())


def assess(records: Iterable[Transcript]) -> Quality:
    """Of transcripts that came without an error. Those without a reference are looked through for loops only."""
    spaced: list[tuple[str, str]] = []
    unspaced: list[tuple[str, str]] = []
    empty = on_silence = silent = repeating = 0
    clips: dict[tuple[str, str], dict[str, Any]] = {}
    for record in records:
        text = normalize(record.text, record.language)
        reference = None if record.reference is None else normalize(record.reference, record.language)
        repeating += loops(text) > (loops(reference) if reference else 1)
        if reference is None:
            continue
        speech, heard = has_words(reference), has_words(text)
        silent += not speech
        empty += speech and not heard
        on_silence += heard and not speech
        (unspaced if _code(record.language) in UNSPACED else spaced).append((reference, text))
        clips.setdefault((record.clip, text), {"clip": record.clip, "reference": reference, "text": text})
    for found in clips.values():
        errors = count([(found["reference"], found["text"])])
        found["errors"] = errors.substitutions + errors.deletions + errors.insertions
    ranked = sorted(clips.values(), key=lambda found: (-found["errors"], found["clip"]))
    return Quality(
        wer=_count_words(spaced),
        cer=_count_words(unspaced),
        empty=empty,
        on_silence=on_silence,
        silent=silent,
        on_silence_rate=on_silence / silent if silent else None,
        repeating=repeating,
        worst=[found for found in ranked[:_WORST] if found["errors"]],
    )


def _count_words(pairs: Sequence[tuple[str, str]]) -> WordErrors | None:
    """None where no reference has a word: what is invented on silence alone is no share of anything."""
    return count(pairs) if any(has_words(reference) for reference, _ in pairs) else None


def count(pairs: Sequence[tuple[str, str]]) -> WordErrors:
    """Errors of hypotheses, the second of each pair, all words of all pairs in one rate.

    Where no reference has a word, the rate is 0 without insertions and 1 with some.
    """
    import jiwer

    found = jiwer.process_words([reference for reference, _ in pairs], [text for _, text in pairs])
    words = found.hits + found.substitutions + found.deletions
    errors = found.substitutions + found.deletions + found.insertions
    return WordErrors(
        references=len(pairs),
        words=words,
        substitutions=found.substitutions,
        deletions=found.deletions,
        insertions=found.insertions,
        rate=errors / words if words else float(errors > 0),
    )


def loops(text: str) -> int:
    """How often in a row `text` says one phrase, at most; up to 3 times counts as once, for people do that, too."""
    words = text.split()
    most = 1
    for size in range(1, _PHRASE + 1):
        run = 0  # words that equal the one `size` before, in a row
        for at in range(size, len(words)):
            run = run + 1 if words[at] == words[at - size] else 0
            most = max(most, run // size + 1)
    return most if most >= _TIMES else 1


def has_words(text: str) -> bool:
    return any(map(str.isalnum, text))


def _code(language: str | None) -> str:
    """`en-GB` is `en`; what is not said is taken for English."""
    return (language or "en").partition("-")[0].lower()


@cache
def _normalizer(language: str) -> Callable[[str], str]:
    from whisper_normalizer.basic import BasicTextNormalizer  # type: ignore[import-untyped]
    from whisper_normalizer.english import EnglishTextNormalizer  # type: ignore[import-untyped]

    if language == "en":
        english: Callable[[str], str] = EnglishTextNormalizer()
        return english
    basic: Callable[[str], str] = BasicTextNormalizer(split_letters=language in UNSPACED)
    return basic
