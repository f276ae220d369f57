"""What is spoken: files, and sentences drawn from a seed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from denizen.bench import sentences
from denizen.bench.errors import BenchError
from denizen.bench.quality import normalize
from denizen.bench.sentences import Sentence

if TYPE_CHECKING:
    from pathlib import Path


def test_a_seed_draws_the_same_sentences_and_another_seed_others() -> None:
    drawn = sentences.draw(3, 200)
    assert drawn == sentences.draw(3, 200)
    assert drawn[:5] == sentences.draw(3, 5)
    assert drawn != sentences.draw(4, 200)
    texts = {sentence.text for sentence in drawn}
    assert len(texts) > 190
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) >= 4
    assert max(lengths) > 2 * min(lengths)
    assert all(text[0].isupper() and text.endswith(".") for text in texts)


def test_normalising_leaves_their_words_alone() -> None:
    """Words that the normaliser rewrites, as numbers, would make errors of their own."""
    for sentence in sentences.draw(0, 500):
        plain = sentence.text.lower().replace(",", "").rstrip(".").split()
        kept = normalize(sentence.text, "en").split()
        assert [word for word in plain if word not in ("the", "seven", "three")] == [
            word for word in kept if word not in ("the", "7", "3")
        ]


def test_a_text_file_has_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Hello there.\n\n  Good bye. \n", encoding="utf-8")
    assert sentences.read(file, "--texts") == [Sentence("Hello there."), Sentence("Good bye.")]


def test_json_lines_may_say_how_it_is_spoken(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [
        "Hello.",
        {"text": "Guten Tag.", "language": "de", "voice": "anna"},
        {"text": "Psst.", "instructions": "low"},
    ]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert sentences.read(file, "--texts") == [
        Sentence("Hello."),
        Sentence("Guten Tag.", voice="anna", language="de"),
        Sentence("Psst.", instructions="low"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.txt", "\n\n", "no texts"),
        ("a.jsonl", '"a"\n{', "line 2: not JSON"),
        ("a.jsonl", '{"input": "a"}', "line 1: expected a string"),
        ("a.jsonl", '{"text": " "}', "line 1: expected a string"),
        ("a.jsonl", '{"text": "a", "voice": 3}', "`voice` is not a string"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str, content: str, why: str) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(BenchError, match=why) as caught:
        sentences.read(file, "--texts")
    assert str(caught.value).startswith(f"--texts {file}")


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="absent"):
        sentences.read(tmp_path / "absent.txt", "--texts")
