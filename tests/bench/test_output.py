"""The files of `--out`: each form gives back what was measured."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from denizen.bench.__main__ import main
from denizen.bench.errors import BenchError
from denizen.bench.report import output
from denizen.bench.report.flat import to_csv
from denizen.bench.report.markdown import to_markdown
from denizen.bench.report.result import Result, live, read, read_records

from . import results
from .peer import Behaviour, serving

FILES = {"result.json", "records.jsonl", "levels.csv", "row.md", "report.html", "plots"}


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_a_row_a_level_that_reads_back_to_the_same_numbers() -> None:
    found = results.result("valid")
    read_back = rows(to_csv([found]))
    assert [row["level"] for row in read_back] == ["concurrency 1", "concurrency 8", "concurrency 64"]
    for row, level in zip(read_back, found.levels, strict=True):
        assert float(row["ttft.p95"]) == level.summary["ttft"]["p95"]
        assert float(row["full_load.output_tokens_per_s"]) == level.summary["full_load"]["output_tokens_per_s"]
        assert int(row["concurrency"]) == level.load["concurrency"]
        assert (row["valid"], row["model"], row["mode"]) == ("True", "tiny", "closed")


@pytest.mark.parametrize("pair", [("valid", "without_samples"), ("valid", "invalid")])
def test_csv_columns_do_not_depend_on_what_was_measured(pair: tuple[str, str]) -> None:
    one, other = (to_csv([results.result(name)]).splitlines()[0] for name in pair)
    assert one == other


def test_csv_of_different_kinds_keeps_all_columns_and_leaves_out_lists() -> None:
    text = to_csv([results.result("valid"), results.result("asr")])
    text_row, *_, asr_row = rows(text)
    assert float(asr_row["quality.wer.rate"]) == 0.02
    assert asr_row["ttft.p50"] == text_row["quality.wer.rate"] == ""
    assert asr_row["quality.cer.rate"] == ""
    assert not any("worst" in name for name in asr_row)


@pytest.mark.parametrize("name", ["phases", "nothing"])
def test_csv_without_levels_is_its_header(name: str) -> None:
    assert to_csv([results.result(name)]).splitlines() == [
        "result,kind,valid,started,commit,model,level,mode,concurrency,rate"
    ]


def test_markdown_has_a_row_a_level_and_says_where_it_comes_from() -> None:
    header, rule, *body = to_markdown(results.result("valid")).splitlines()
    assert header.count("|") == rule.count("|")
    levels = [line for line in body if line.startswith("|")]
    assert len(levels) == 3
    assert all(line.count("|") == header.count("|") for line in levels)
    assert "TTFT ms p50 / p95 / p99" in header
    assert body[-1] == (
        "text; 1 × NVIDIA H200, 16 CPUs (Some CPU <fast & wide>), 64 GiB; commit 0123456789ab; 2026-01-02"
    )


def test_markdown_of_an_invalid_result_cannot_be_taken_for_a_valid_one() -> None:
    text = to_markdown(results.result("invalid"))
    [level] = [line for line in text.splitlines() if "concurrency 8" in line and line.startswith("|")]
    assert "**INVALID**" in level
    assert "**INVALID, do not use these numbers:**" in text
    assert "2 requests failed" in text


@pytest.mark.parametrize("name", list(results.ALL))
def test_markdown_is_made_of_every_kind(name: str) -> None:
    lines = to_markdown(results.result(name)).splitlines()
    assert lines
    for above, line in itertools.pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            assert above.replace("\\|", "").count("|") == line.replace("\\|", "").count("|")


@pytest.mark.parametrize("name", list(results.ALL))
def test_a_folder_gets_everything_and_reads_back(name: str, tmp_path: Path) -> None:
    made = results.ALL[name]()
    records = results.text_records() if name == "valid" else []
    assert output.write_folder(tmp_path / "out", made, records) == [f"written to {tmp_path / 'out'}"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == (FILES if records else FILES - {"records.jsonl"})
    back = read(tmp_path / "out")
    assert back.raw == json.loads(json.dumps(made.to_json()))
    assert back.records == [json.loads(json.dumps(line.to_json())) for line in records]
    assert back.label == "out"


def test_a_second_run_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    output.write_folder(tmp_path, results.valid(), results.text_records())
    (tmp_path / "mine.txt").write_text("keep me")
    output.write_folder(tmp_path, results.phases(), [])
    assert not (tmp_path / "records.jsonl").exists()
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"phases.png"}
    assert (tmp_path / "mine.txt").read_text() == "keep me"


def test_a_machine_without_matplotlib_still_writes_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("denizen.bench.report.p", "matplotlib"))]:
        monkeypatch.delitem(sys.modules, name)
    # The package keeps what it has imported as attributes too.
    monkeypatch.delattr("denizen.bench.report.plots", raising=False)
    monkeypatch.delattr("denizen.bench.report.page", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    _, note = output.write_folder(tmp_path, results.valid(), [])
    assert "matplotlib" in note
    assert "denizen-bench plot" in note
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "levels.csv", "row.md"}


def test_a_run_that_has_just_ended_is_shown_like_its_file(tmp_path: Path) -> None:
    """In memory keys may be numbers, and lists tuples."""
    made = results.other_figures()
    made.figures["rows"] = {1: {"us": 2.5, "range": (1, 2)}, 16: {"us": 3.5, "range": (3, 4)}}
    made.figures["over"] = {16: 1.25}
    output.write_folder(tmp_path, made, [])
    shown = output.text(live(made, "arena"))
    assert shown == output.text(read(tmp_path))
    assert "3, 4" in shown


def bench(arguments: list[str], behaviour: Behaviour | None = None) -> int:
    with serving(behaviour) as peer:
        words = ["text", "--url", peer.url, "--requests", "4", "--output-len", "3:6", "--max-client-lag", "60000"]
        return main([*words, *arguments])


def test_a_run_writes_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["--concurrency", "1", "2", "--out", str(tmp_path / "new" / "out"), "--markdown"]) == 0
    out = tmp_path / "new" / "out"
    assert {path.name for path in out.iterdir()} == FILES
    printed = capsys.readouterr().out
    assert (out / "row.md").read_text(encoding="utf-8").strip() in printed
    assert f"written to {out}" in printed
    result = read(out)
    assert result.environment["finished"] >= result.environment["started"]
    assert [len(result.samples(level, "itl")) for level in result.levels] == [
        level.summary["itl"]["count"] for level in result.levels
    ]
    [one, _] = result.levels
    assert sorted(result.samples(one, "e2e"))[-1] == pytest.approx(one.summary["e2e"]["max"])


def test_an_invalid_run_writes_all_of_it_too(tmp_path: Path) -> None:
    assert bench(["--out", str(tmp_path)], Behaviour(refuse={5})) == 1
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert "INVALID" in (tmp_path / "row.md").read_text(encoding="utf-8")
    assert "out of order" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_file_for_a_folder_is_refused_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("x")
    with pytest.raises(SystemExit) as caught:
        main(["text", "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "taken")])
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert "--out" in message
    assert "name a folder" in message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("flag", ["--json", "--records"])
def test_a_disk_that_is_full_is_said_and_the_numbers_are_printed(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench([flag, "/dev/full"]) == 2
    said = capsys.readouterr()
    assert f"{flag} /dev/full: No space left on device; choose a place to write to" in said.err
    assert "TTFT ms" in said.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("[1]", "is no result of denizen-bench"),
        ("{}", "no schema in it"),
        ('{"schema": "other/1"}', "no schema in it"),
        ('{"schema": "denizen.bench/2"}', "has the schema denizen.bench/2, this version reads denizen.bench/1"),
        ('{"schema": "denizen.bench/1"}', "valid is missing"),
    ],
)
def test_a_file_that_is_no_result_is_named_with_a_remedy(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BenchError, match=r"some\.json") as caught:
        read(path)
    assert message in str(caught.value)
    assert any(remedy in str(caught.value) for remedy in ("measure again", "use the version that wrote it"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"results": [{"load": {}}]}, "results[0] has no summary"),
        ({"results": [7]}, "results[0] has no load"),
        ({"results": {}}, "results is missing or not a list"),
        ({"figures": None}, "figures is missing or not an object"),
        ({"problems": "none"}, "problems is missing or not a list"),
        ({"valid": 1}, "valid is missing or not true or false"),
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, damage: dict[str, Any], message: str) -> None:
    path = results.write("valid", tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | damage), encoding="utf-8")
    with pytest.raises(BenchError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_minor_version_is_read(tmp_path: Path) -> None:
    path = results.write("valid", tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("denizen.bench/1", "denizen.bench/1.3"), encoding="utf-8")
    assert read(path).valid


def test_a_result_with_problems_is_invalid_whatever_it_says() -> None:
    raw = json.loads(json.dumps(results.invalid().to_json()))
    assert not Result({**raw, "valid": True}, "x").valid


@pytest.mark.parametrize(("line", "message"), [("{", "line 2: not JSON"), ("[]", "line 2: no record")])
def test_a_bad_records_file_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("{}\n" + line + "\n", encoding="utf-8")
    with pytest.raises(BenchError) as caught:
        read_records(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    with pytest.raises(BenchError, match=r"absent\.jsonl"):
        read_records(tmp_path / "absent.jsonl")


def test_records_of_the_warm_up_and_of_failures_are_in_no_sample() -> None:
    found = results.result("valid", records=True)
    [level, *_] = found.levels
    assert len(found.samples(level, "ttft")) == 20
    assert len(found.samples(level, "itl")) == 180
    found.records[1]["error"] = "broken"
    found.records[3]["cancelled"] = found.records[5]["slow"] = True
    assert len(found.samples(level, "ttft")) == 17


def test_records_of_two_levels_with_one_name_are_not_mixed() -> None:
    found = results.result("valid", records=True)
    found.levels[1] = found.levels[0]
    assert found.samples(found.levels[0], "ttft") == []
