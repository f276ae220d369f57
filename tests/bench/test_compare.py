"""`denizen-bench compare`: servers in turns, and result files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.__main__ import main
from denizen.bench.compare import Run, rows_of, turns_of
from denizen.bench.contrast import interleaved
from denizen.bench.errors import BenchError
from denizen.bench.figures import figures_of
from denizen.bench.schema import LoadResult, Record, Report
from denizen.bench.summary import summarize

from . import commands

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOAD = ["text", "--requests", "4", "--output-len", "6", "--concurrency", "2", "--max-client-lag", "60000"]


def compare(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "compare.json"
    status = main(["compare", *arguments, "--json", str(out)])
    return status, json.loads(out.read_text(encoding="utf-8"))


def test_servers_that_take_turns_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = tmp_path / "records.jsonl"
    # So far apart that a busy machine cannot bring them together.
    slow, fast = commands.peer(token_s=0.08), commands.peer(token_s=0.002)
    status, result = compare(tmp_path, "--a", slow, "--b", fast, *_LOAD, "--records", str(records))
    assert status == 0
    assert result["kind"] == "compare text"
    assert result["figures"]["order"] == "ABBAABBA"
    names = [level["load"]["name"] for level in result["results"]]
    assert names == [f"{turn}, c=2" for turn in ("A1", "B1", "B2", "A2", "A3", "B3", "B4", "A4")]
    rows = {row["figure"]: row for row in result["figures"]["compare"]}
    assert set(rows) == {"output_tokens_per_s", "ttft.p50", "tpot.p50", "e2e.p50"}
    assert rows["tpot.p50"]["verdict"] == "better"
    for name in ("output_tokens_per_s", "tpot.p50", "e2e.p50"):
        assert len(rows[name]["a"]) == len(rows[name]["b"]) == 4
        assert rows[name]["low"] < rows[name]["ratio"] < rows[name]["high"]
        assert rows[name]["freedom"] == 5
    assert rows["tpot.p50"]["ratio"] < 0.8
    assert rows["output_tokens_per_s"]["ratio"] > 1.25
    # Every restart has a server of its own.
    levels = [json.loads(line)["level"] for line in records.read_text(encoding="utf-8").splitlines()]
    assert levels == [name for name in names for _ in range(8)]
    assert "better" in capsys.readouterr().out


def test_a_turn_that_fails_makes_the_comparison_invalid(tmp_path: Path) -> None:
    status, result = compare(
        tmp_path, "--a", commands.peer(), "--b", commands.peer(refuse=[6]), "--restarts", "2", *_LOAD
    )
    assert status == 1
    assert [problem.partition(":")[0] for problem in result["problems"]] == ["B1", "B2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--a", "x", "--b", "y", "speech"], "KIND is one of text, asr"),
        (["--a", "x", "--b", "y"], "KIND is one of text, asr"),
        (["--a", "x", "text"], "--a CMD --b CMD"),
        (["--a", "x", "--b", "'", "text"], "No closing quotation"),
        (
            ["--a", "x", "--b", "y", "--restarts", "3", "text"],
            "--restarts 3: with --order ABBA it must be",
        ),
        (["--a", "x", "--b", "y", "text", "--launch"], "with --a and --b"),
        (["--a", "no-such-program", "--b", "y", "text"], "A1: `no-such-program` cannot be started"),
        (["absent.json", "--with", "other.json"], "absent.json"),
    ],
)
def test_a_comparison_that_cannot_be_made_says_why(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_options_of_a_kind_are_shown_without_servers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["compare", "text", "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "--prompt-tokens" in shown
    assert "--smallest" in shown


def test_turns_repeat_their_order() -> None:
    assert turns_of("ABBA", 4) == "ABBAABBA"
    assert turns_of("AB", 3) == "ABABAB"
    with pytest.raises(BenchError, match="multiple of 2"):
        turns_of("ABBA", 5)


def write(path: Path, speeds: Sequence[float], *, users: int = 8, valid: bool = True, **options: Any) -> list[str]:
    """Result files with one restart each, whose requests take `1 / speed` s a token."""
    names = []
    for number, speed in enumerate(speeds):
        records = [
            Record(
                index=index,
                max_tokens=11,
                scheduled=0.0,
                first=2 / speed,
                last=12 / speed,
                end=12 / speed,
                gaps=[1 / speed] * 10,
                events=11,
                completion_tokens=11,
            )
            for index in range(5)
        ]
        load = {"mode": "closed", "concurrency": users}
        report = Report("text", {"cpu": "one"}, {"ignore_eos": True, **options}, {"sha256": "x"})
        total = summarize(records, 12 / speed)
        report.results.append(LoadResult(load, total, [total]))
        if not valid:
            report.problems.append("3 requests failed")
        file = path / f"{path.name}-{speed}-{number}.json"
        report.write(file)
        names.append(str(file))
    return names


def test_result_files_are_compared_without_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = write(tmp_path / "a", [100.0, 101.0, 99.0, 100.0]), write(tmp_path / "b", [110.0, 111.0, 109.0, 110.0])
    status, result = compare(tmp_path, *slow, "--with", *fast)
    assert status == 0
    rows = {row["figure"]: row for row in result["figures"]["compare"]}
    assert {row["verdict"] for row in rows.values()} == {"better"}
    assert rows["tpot.p50"]["ratio"] == pytest.approx(100 / 110, rel=1e-4)
    assert rows["output_tokens_per_s"]["ratio"] == pytest.approx(1.1, rel=1e-4)
    assert rows["tpot.p50"]["low"] < 100 / 110 < rows["tpot.p50"]["high"]
    assert result["figures"]["notes"] == []
    status, result = compare(tmp_path, *fast, "--with", *slow, "--figures", "e2e.p99")
    assert [row["verdict"] for row in result["figures"]["compare"]] == ["worse"]
    assert "E2E p99 ms" in capsys.readouterr().out


def test_equal_files_cannot_be_told_apart_and_one_a_side_tells_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write(tmp_path / "a", [100.0, 101.0, 99.0])
    _, result = compare(tmp_path, *files, "--with", *files)
    rows = result["figures"]["compare"]
    assert {row["verdict"] for row in rows} == {"cannot tell"}
    assert all(0.01 < row["least_with_twice"] < row["least"] < 0.2 for row in rows)
    said = capsys.readouterr().out
    assert "could tell" in said
    assert f"6 restarts a side could tell about {100 * rows[0]['least_with_twice']:.1f} %" in said
    _, result = compare(tmp_path, files[0], "--with", *write(tmp_path / "b", [200.0]))
    assert {row["verdict"] for row in result["figures"]["compare"]} == {"cannot tell"}
    assert "too few restarts" in capsys.readouterr().out


def test_the_ratio_is_that_of_its_interval_whatever_the_machine_drifts(tmp_path: Path) -> None:
    """In the order ABAB B comes later each time: a machine that slows down is no slower B."""
    runs = []
    for turn, side in enumerate("ABABABAB"):
        [file] = write(tmp_path / str(turn), [100 * 0.95**turn * (1.001 if turn % 3 else 1.0)])
        runs.append(Run(side, json.loads(Path(file).read_text(encoding="utf-8"))))
    for row in rows_of(runs, None, 0.01, partial(interleaved, "ABABABAB")):
        assert row.low is not None
        assert row.high is not None
        assert row.low < row.ratio < row.high
        assert row.ratio == pytest.approx(1.0, abs=0.01)
        assert row.verdict == "cannot tell"


def test_folders_of_results_are_compared_too(tmp_path: Path) -> None:
    names = []
    for number, speed in enumerate([100.0, 101.0, 110.0, 111.0]):
        [file] = write(tmp_path / str(number), [speed])
        Path(file).rename(tmp_path / str(number) / "result.json")
        names.append(str(tmp_path / str(number)))
    status, result = compare(tmp_path, *names[:2], "--with", *names[2:])
    assert status == 0
    assert result["figures"]["compare"][0]["ratio"] == pytest.approx(1.1, rel=1e-3)


def test_turns_before_one_that_cannot_be_made_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Side B's second server does not start."""
    flag = tmp_path / "started"
    code = (
        "import os, runpy, sys; from pathlib import Path; flag = Path(sys.argv.pop());"
        "flag.exists() and sys.exit('no memory left'); flag.touch();"
        f"sys.argv[0] = {str(Path(commands.__file__).with_name('peer.py'))!r};"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    broken = commands.python(code, "{port}", "{}", str(flag))
    status, result = compare(tmp_path, "--a", commands.peer(), "--b", broken, *_LOAD)
    assert status == 1
    assert [level["load"]["name"] for level in result["results"]] == ["A1, c=2", "B1, c=2"]
    assert len(result["problems"]) == 1
    assert result["problems"][0].startswith("B2: ")
    assert "no memory left" in result["problems"][0]
    assert {row["verdict"] for row in result["figures"]["compare"]} == {"cannot tell"}
    assert "too few restarts" in capsys.readouterr().out


def test_what_else_differs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write(tmp_path / "a", [100.0, 101.0]), write(tmp_path / "b", [100.0, 102.0], ignore_eos=False)
    _, result = compare(tmp_path, *one, "--with", *two)
    assert result["figures"]["notes"] == ["not all runs had the same --ignore-eos"]
    assert "note: not all runs" in capsys.readouterr().out


def test_an_invalid_result_makes_the_comparison_invalid(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a", [100.0, 101.0]), write(tmp_path / "b", [100.0, 102.0], valid=False)
    status, result = compare(tmp_path, *one, "--with", *two)
    assert status == 1
    assert "3 requests failed" in result["problems"][0]


def test_files_with_nothing_in_common_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write(tmp_path / "a", [100.0]), write(tmp_path / "b", [100.0], users=16)
    assert main(["compare", *one, "--with", *two]) == 2
    assert "no such figure at the same load" in capsys.readouterr().err
    assert main(["compare", *one, "--with", *one, "--figures", "nonsense"]) == 2
    assert "--figures nonsense" in capsys.readouterr().err
    other = tmp_path / "other.json"
    other.write_text('{"schema": "denizen.bench/2"}', encoding="utf-8")
    assert main(["compare", *one, "--with", str(other)]) == 2
    assert "reads denizen.bench/1" in capsys.readouterr().err


def test_figures_of_an_open_loop_leave_out_what_was_sent() -> None:
    latency = {"p50": 1.0, "p99": 2.0}
    summary = {"requests_per_s": 5.0, "e2e": latency, "lag": latency, "itl": latency, "ttft": None, "failed": 0}
    closed = figures_of({"load": {"mode": "closed"}, "summary": summary})
    assert {name: figure.higher_is_better for name, figure in closed.items()} == {
        "requests_per_s": True,
        "e2e.p50": False,
    }
    assert set(figures_of({"load": {"mode": "open"}, "summary": summary})) == {"e2e.p50"}
    assert set(figures_of({"load": {"mode": "open"}, "summary": summary}, ["itl.p99", "requests_per_s"])) == {
        "itl.p99",
        "requests_per_s",
    }


def test_a_mix_is_compared_class_by_class(tmp_path: Path) -> None:
    slow, fast = commands.peer(token_s=0.08), commands.peer(token_s=0.002)
    user = ["text", "--concurrency", "1", "--output-len", "6"]
    load = ["mixed", "--seconds", "0.6", "--max-client-lag", "60000", *user, "+", *user]
    out = tmp_path / "compare.json"
    assert main(["compare", "--a", slow, "--b", fast, "--json", str(out), *load]) == 0
    rows = json.loads(out.read_text(encoding="utf-8"))["figures"]["compare"]
    assert {row["verdict"] for row in rows if row["figure"] == "tpot.p50"} == {"better"}
    assert len({row["load"] for row in rows}) == 2
