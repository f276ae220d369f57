"""The requests of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from denizen.bench.errors import BenchError
from denizen.bench.workload import Workload, read_prompts

if TYPE_CHECKING:
    from pathlib import Path


def make(seed: int = 1, **changes: object) -> Workload:
    arguments = {"seed": seed, "requests": 50, "output_len": (3, 9), "prompt_tokens": 12, **changes}
    return Workload(**arguments)  # type: ignore[arg-type]


def test_equal_seeds_make_equal_requests_and_hashes() -> None:
    one, two, other = make(), make(), make(seed=2)
    assert one.jobs(0, 1) == two.jobs(0, 1)
    assert one.sha256() == two.sha256()
    assert other.jobs(0, 1) != one.jobs(0, 1)
    assert other.sha256() != two.sha256()


def test_every_pass_and_level_has_prompts_of_its_own() -> None:
    workload = make()
    prompts = [job.prompt for level in range(2) for number in range(3) for job in workload.jobs(level, number)]
    assert len(set(prompts)) == len(prompts)


def test_output_lengths_cover_their_range_and_nothing_else() -> None:
    drawn = {job.max_tokens for number in range(10) for job in make().jobs(0, number)}
    assert drawn == set(range(3, 10))


def test_prompts_have_the_words_asked_for() -> None:
    assert {len(job.prompt.split()) for job in make(prompt_tokens=33).jobs(0, 0)} == {33}


def test_prompts_from_a_file_are_all_used_before_any_repeats() -> None:
    workload = make(prompts=["a", "b", "c"], requests=7)
    texts = [job.prompt for job in workload.jobs(0, 0)]
    assert sorted(texts[:3]) == sorted(texts[3:6]) == ["a", "b", "c"]


def test_prompt_files(tmp_path: Path) -> None:
    plain = tmp_path / "prompts.txt"
    plain.write_text("one\n\ntwo\n", encoding="utf-8")
    assert read_prompts(plain) == ["one", "two"]
    chat = [{"role": "user", "content": "hi"}]
    rows = tmp_path / "prompts.jsonl"
    rows.write_text("\n".join(map(json.dumps, ["one", {"prompt": "two"}, {"messages": chat}])), encoding="utf-8")
    assert read_prompts(rows) == ["one", "two", chat]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no prompts"),
        ("{oops", "line 1: not JSON"),
        ('"ok"\n{"text": 3}', "line 2: expected"),
        ('{"messages": []}', "line 1: expected"),
        ("17", "line 1: expected"),
    ],
)
def test_a_bad_prompt_file_is_named_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BenchError, match=message) as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)


def test_a_missing_prompt_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"absent\.txt"):
        read_prompts(tmp_path / "absent.txt")
