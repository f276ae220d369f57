"""`denizen-bench phases` on timings as a worker writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.__main__ import main
from denizen.bench.errors import BenchError
from denizen.bench.phases import Group, read

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = ["plan_kv", "plan_attention", "plan_rest", "device_work", "device_wait", "iteration"]


def block(rows: list[list[float | None]], **more: Any) -> dict[str, Any]:
    return {"worker": 0, "walk": "decode", "bucket": 16, "resident": True, "phases": _NAMES, "us": rows, **more}


def write(folder: Path, name: str, *blocks: dict[str, Any]) -> None:
    lines = [json.dumps(value) for value in blocks]
    (folder / f"phases-{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_steps_are_grouped_and_the_plan_thread_is_summed(tmp_path: Path) -> None:
    write(tmp_path, "1", block([[1, 2, 3, 10, 20, 30]]), block([[2, 2, 2, 11, 21, 31]], bucket=32))
    write(tmp_path, "2", block([[None, 2, 5, 12, None, 32]]), block([[1, 1, 1, 1, 1, 1]], worker=1, resident=False))
    groups = read(tmp_path)
    assert set(groups) == {
        Group(0, "decode", 16, True),
        Group(0, "decode", 32, True),
        Group(1, "decode", 16, False),
    }
    assert groups[Group(0, "decode", 16, True)] == {
        "plan thread": [6, 7],
        "plan_kv": [1],
        "plan_attention": [2, 2],
        "plan_rest": [3, 5],
        "device_work": [10, 12],
        "device_wait": [20],
        "iteration": [30, 32],
    }


def test_the_first_steps_of_each_file_are_dropped_over_its_blocks(tmp_path: Path) -> None:
    for name in ("1", "2"):
        rows: list[list[float | None]] = [[float(step)] * 6 for step in range(5)]
        write(tmp_path, name, block(rows[:2]), block(rows[:1], bucket=32), block(rows[2:]))
    groups = read(tmp_path, skip=3)
    assert groups[Group(0, "decode", 16, True)]["iteration"] == [3, 4, 3, 4]
    assert groups[Group(0, "decode", 32, True)]["iteration"] == []


def test_the_report_has_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "1", block([[1, 2, 3, 10, 20, step] for step in range(101)]), block([[9] * 6], bucket=32))
    out = tmp_path / "out.json"
    assert main(["phases", str(tmp_path), "--skip", "0", "--min-steps", "2", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "worker 0, decode, bucket 16, resident: 101 steps" in printed
    assert "bucket 32" not in printed  # too few steps
    result = json.loads(out.read_text(encoding="utf-8"))
    assert (result["kind"], result["valid"]) == ("phases", True)
    (found,) = result["figures"].values()
    assert found["steps"] == 101
    assert found["us"]["plan thread"]["mean"] == 6
    assert (found["us"]["iteration"]["p50"], found["us"]["iteration"]["p95"]) == (50, 95)


@pytest.mark.parametrize(
    "wrong",
    [{"us": [[1, 2]]}, {"worker": None}, {"bucket": "many"}, {"phases": None}, {"us": [["x"] * 6]}],
)
def test_a_line_that_is_no_block_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write(tmp_path, "1", block([[1] * 6]), {**block([[1] * 6]), **wrong})
    with pytest.raises(BenchError, match=r"phases-1\.jsonl, line 2"):
        read(tmp_path)


def test_no_timings_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["phases", str(tmp_path)]) == 2
    assert "DENIZEN_PHASES" in capsys.readouterr().err
    write(tmp_path, "1", block([[1] * 6] * 5))
    assert main(["phases", str(tmp_path), "--skip", "4"]) == 2
    assert "no bucket has 20 steps" in capsys.readouterr().err
