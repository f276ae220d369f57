"""Tables: what a run prints, and the numbers in them."""

from __future__ import annotations

import re

import pytest
from denizen.bench.report import output
from denizen.bench.report.quantities import number, quantity
from denizen.bench.report.sections import sections
from denizen.bench.report.tables import Section, Table, table

from . import results


def printed(name: str, width: int | None = None) -> str:
    return "\n\n".join(section.text(width) for section in sections([results.result(name)]))


def test_columns_line_up() -> None:
    assert table(["a", "bb"], [["x", "1"], ["yyy", "22"]]) == "a    bb\n───  ──\nx     1\nyyy  22"


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_a_table_fits_and_loses_nothing(width: int) -> None:
    header = ["load", *(f"some number {index}" for index in range(8))]
    rows = [[f"c={row}", *(f"{row}{column}.25" for column in range(8))] for row in range(3)]
    text = Table(header, rows).text(width)
    assert max(map(len, text.splitlines())) <= width
    for row in rows:
        for value in row[1:]:
            assert text.split().count(value) == 1
    parts = text.split("\n\n")
    for part in parts:  # each part can be read by itself
        assert all(f"c={row}" in part for row in range(3))
    assert (len(parts) > 1) is (width < 80)


def test_a_column_that_is_too_wide_for_any_terminal_is_still_printed() -> None:
    assert "x" * 50 in Table(["", "value"], [["a", "x" * 50]]).text(20)


def test_a_name_that_rows_have_in_common_is_said_once() -> None:
    text = Table(["", "load", "p50"], [["TTFT", "1", "5"], ["TTFT", "2", "6"], ["ITL", "1", "7"]], stub=2).text()
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["TTFT", "2", "ITL"]


def test_markdown_escapes_what_ends_a_cell() -> None:
    assert Table(["a", "b"], [["x|y", "1\n2"]]).markdown() == "| a | b |\n| :-- | --: |\n| x\\|y | 1 2 |"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0, "0"), (1234567, "1,234,567"), (1234.5, "1,234"), (12.345, "12.35"), (0.25, "0.250"),
     (0.000123456, "0.000123"), (4.24e12, "4,240,000,000,000"), (4.2400001e12 + 0.5, "4.24e+12"), (-0.0685, "-0.0685"),
     (123.456, "123.5"), (100.0, "100.0")],
)  # fmt: skip
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("name", "sampled", "heading", "shown"),
    [
        ("ttft", True, "TTFT ms", "1,500"),
        ("first_playable", True, "first playable ms", "1,500"),
        ("rtf", True, "RTF", "1.50"),
        ("idle_cpu_percent", False, "idle cpu %", "1.50"),
        ("round_trip_us", False, "round trip µs", "1.50"),
        ("wer.rate", False, "WER %", "150.0"),
        ("client_cpu", False, "client CPU %", "150.0"),
        ("something_new", False, "something new", "1.50"),
    ],
)
def test_a_name_says_unit_and_scale(name: str, sampled: bool, heading: str, shown: str) -> None:
    found = quantity(name, sampled=sampled)
    assert (found.heading, found.show(1.5)) == (heading, shown)


@pytest.mark.parametrize("width", [60, 80, None])
@pytest.mark.parametrize("name", list(results.ALL))
def test_every_kind_prints(name: str, width: int | None) -> None:
    text = printed(name, width)
    assert "Distribution(" not in text
    assert "{" not in text
    if width is not None:
        tables = [line for line in text.splitlines() if "──" in line]
        assert all(len(line) <= width for line in tables)


def test_levels_have_rates_latencies_and_the_clients_share() -> None:
    text = printed("valid")
    assert text.index("concurrency 1") < text.index("concurrency 8") < text.index("concurrency 64")
    assert "TTFT ms" in text
    assert "all busy tok/s" in text
    assert "client CPU %" in text
    assert "25" in text.splitlines()[-3]
    assert text.index("TTFT ms") < text.index("ITL ms") < text.index("E2E ms")


def test_missing_samples_are_shown_as_such_and_failures_are_named() -> None:
    text = printed("without_samples")
    [dead] = re.findall(r"^ +concurrency 2 .*", text, re.MULTILINE)
    assert dead.split()[2:] == ["–"] * 6
    assert "concurrency 2: failed: 5 × timed out" in text


def test_word_errors_are_percent_and_empty_columns_are_left_out() -> None:
    text = printed("asr")
    assert "WER %" in text
    assert "2.00" in text
    assert "CER" not in text
    assert "a|b.flac" in text


def test_an_objective_says_what_broke_it() -> None:
    text = printed("open_loop")
    assert "TTFT p99 ms ≤ 300" in text
    lines = text[text.index("Service level objective") :].splitlines()[3:6]
    assert [line.rpartition("  ")[2].strip() for line in lines] == ["kept", "kept", "broken: ttft_p99"]


def test_a_comparison_gives_ratio_interval_and_verdict() -> None:
    lines = printed("compare").partition("B against A")[2].splitlines()
    [rate] = [line for line in lines if "output tok/s" in line]
    assert rate.split()[-7:] == ["1.050", "…", "1.110", "higher", "better", "2.5", "%"]
    [slower] = [line for line in lines if "TTFT p50 ms" in line]
    assert slower.split()[3:6] == ["100.0", "120.0", "1.200"]
    [unknown] = [line for line in lines if "E2E p50 ms" in line]
    assert unknown.split()[-5:] == ["–", "lower", "cannot", "tell", "–"]
    assert "note: not all runs had the same --seed" in lines


def test_many_groups_of_steps_share_a_table_of_means_medians_and_p95() -> None:
    lines = printed("phases").splitlines()
    [first] = [number for number, line in enumerate(lines) if line.startswith("worker 0, decode, bucket 16, resident")]
    us = results.result("phases").figures["worker 0, decode, bucket 16, resident"]["us"]["iteration"]
    for line, column in zip(lines[first : first + 3], ("mean", "p50", "p95"), strict=True):
        assert column in line.split()
        assert line.split()[-1] == f"{us[column]:,.0f}"


def test_figures_that_nobody_described_get_tables_by_their_shape() -> None:
    found = {section.title: section for section in sections([results.result("other_figures")])}
    assert [row[0] for row in found["Round trip"].tables[0].rows] == ["arena", "socketpair"]
    assert found["Round trip"].tables[0].header[0] == "µs"
    assert ["idle cpu %", "0.250"] in found["Figures"].tables[0].rows
    assert ["two", "20.50"] in found["Speeds"].tables[0].rows
    assert ["2", "2.00", "no"] in found["Levels"].tables[0].rows
    assert found["A over b"].tables[0].rows[0] == ["median", "1.50"]


def test_several_results_share_tables_and_keep_their_names() -> None:
    both = [results.result("valid"), results.result("invalid")]
    [load] = sections(both)[0].tables
    assert load.header[:2] == ["result", "load"]
    assert [row[0] for row in load.rows] == ["valid"] * 3 + ["invalid (INVALID)"]


def test_a_report_ends_with_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert output.text(results.result("valid")).splitlines()[-1] == "valid"
    last = output.text(results.result("invalid")).splitlines()[-2:]
    assert last[0] == "INVALID: do not use these numbers"
    assert "2 requests failed" in last[1]
    assert "nothing was measured" in output.text(results.result("nothing"))
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\033[" in output.text(results.result("invalid"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[" not in output.text(results.result("invalid"))


def test_notes_wrap_at_the_terminals_width() -> None:
    text = Section("", [], ["word " * 40]).text(50)
    assert max(map(len, text.splitlines())) <= 50
