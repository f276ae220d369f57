"""What is spoken: a file of texts, or sentences that are drawn from a seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from pathlib import Path

# Everyday words that speech recognition knows, and whose spelling follows from their sound.
_WHO = (
    "the old baker",
    "a young doctor",
    "my brother",
    "the captain",
    "our neighbor",
    "the teacher",
    "a tall stranger",
    "the little girl",
    "his uncle",
    "the farmer",
    "a quiet student",
    "the mayor",
)
_DOES = (
    "carried",
    "painted",
    "found",
    "forgot",
    "opened",
    "repaired",
    "borrowed",
    "counted",
    "sold",
    "washed",
    "dropped",
    "described",
)
_WHAT = (
    "seven yellow boxes",
    "the broken window",
    "a bag of apples",
    "the kitchen table",
    "an old umbrella",
    "three silver coins",
    "the wooden bridge",
    "a letter from home",
    "the garden gate",
    "a basket of bread",
    "the last ticket",
    "a heavy suitcase",
)
_WHERE = (
    "near the river",
    "at the station",
    "behind the church",
    "in the village",
    "on the island",
    "under the stairs",
    "across the street",
    "beside the market",
    "at the edge of the forest",
    "in front of the school",
)
_WHEN = (
    "this morning",
    "before breakfast",
    "last summer",
    "after the storm",
    "on Sunday evening",
    "in the middle of the night",
    "just before dinner",
    "early in the spring",
)
_AND = ("and then", "while", "because", "but", "before", "and later")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text to be spoken; what is None is left to the options."""

    text: str
    voice: str | None = None
    language: str | None = None
    instructions: str | None = None


def draw(seed: int, count: int) -> list[Sentence]:
    """`count` English sentences, of one to three clauses; equal arguments draw equal ones."""
    rng = random.Random(f"sentences/{seed}")
    return [Sentence(_sentence(rng)) for _ in range(count)]


def read(path: Path, flag: str) -> list[Sentence]:
    """One text a line; of `.jsonl` a string, or an object with `text` and any of the other fields, a line.

    Raises BenchError naming `flag`, file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{flag} {path}: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            found.append(Sentence(line.strip()))
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BenchError(f"{flag} {path}, line {number}: not JSON ({error})") from error
        found.append(_from_row(f"{flag} {path}, line {number}", row))
    if not found:
        raise BenchError(f"{flag} {path}: no texts in it")
    return found


def _from_row(where: str, row: Any) -> Sentence:
    fields = ("text", "voice", "language", "instructions")
    values = {"text": row} if isinstance(row, str) else row
    if not isinstance(values, dict) or not isinstance(values.get("text"), str) or not values["text"].strip():
        raise BenchError(f"{where}: expected a string, or an object with `text`")
    for name in fields:
        if not isinstance(values.get(name), str | None):
            raise BenchError(f"{where}: `{name}` is not a string")
    return Sentence(values["text"].strip(), *(values.get(name) for name in fields[1:]))


def _sentence(rng: random.Random) -> str:
    clauses = [_clause(rng) for _ in range(rng.randint(1, 3))]
    text = clauses[0]
    for clause in clauses[1:]:
        text += f", {rng.choice(_AND)} {clause}"
    return text[0].upper() + text[1:] + "."


def _clause(rng: random.Random) -> str:
    parts = [rng.choice(_WHO), rng.choice(_DOES), rng.choice(_WHAT)]
    parts += [rng.choice(_WHERE)] * rng.randint(0, 1) + [rng.choice(_WHEN)] * rng.randint(0, 1)
    return " ".join(parts)
