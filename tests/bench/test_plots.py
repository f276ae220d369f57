"""Plots: which there are, what they show, and the command that draws them from files."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from denizen.bench.__main__ import main
from denizen.bench.report.plots import plots
from denizen.bench.report.plots.canvas import DARK, LIGHT, LINES, style
from matplotlib.figure import Figure

from . import results

if TYPE_CHECKING:
    from pathlib import Path

    from denizen.bench.report.plots import Plot
    from denizen.bench.report.plots.canvas import Theme
    from matplotlib.axes import Axes

EXPECTED = {
    "valid": ["rate-ttft-p95-closed", "rate-itl-p95-closed", "rate-e2e-p95-closed", "pareto-output-tokens",
              "cdf-ttft", "cdf-itl", "cdf-e2e"],
    "invalid": ["cdf-ttft", "cdf-itl", "cdf-e2e"],
    "open_loop": ["rate-ttft-p99", "rate-itl-p95", "rate-e2e-p95", "pareto-output-tokens",
                  "cdf-ttft", "cdf-itl", "cdf-e2e"],
    "asr": ["cdf-e2e"],
    "phases": ["phases"],
    "compare": ["compare", "rate-ttft-p95-closed", "rate-itl-p95-closed", "rate-e2e-p95-closed",
                "pareto-output-tokens", "cdf-ttft", "cdf-itl", "cdf-e2e"],
    "nothing": [],
    "without_samples": ["cdf-e2e"],
    "other_figures": ["spread-round-trip-us"],
}  # fmt: skip


def drawn(name: str, *, records: bool = False) -> dict[str, Plot]:
    return {plot.name: plot for plot in plots([results.result(name, records)])}


def axes_of(plot: Plot) -> Axes:
    axes = Figure().subplots()
    plot.draw(axes, LIGHT)
    return axes


@pytest.mark.parametrize("name", list(results.ALL))
def test_what_there_are_numbers_for_is_drawn(name: str) -> None:
    assert list(drawn(name)) == EXPECTED[name]


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected])
def test_every_plot_draws_in_both_forms_and_names_its_axes(name: str, tmp_path: Path) -> None:
    for plot in drawn(name).values():
        plot.png(tmp_path / "plot.png")
        pixels = matplotlib.image.imread(tmp_path / "plot.png")
        assert pixels.shape[1] >= 900
        assert pixels[..., :3].std() > 0.01
        ElementTree.fromstring(plot.svg())
        axes = axes_of(plot)
        assert axes.get_xlabel()
        assert axes.get_ylabel() or axes.get_yticklabels()


def test_axes_have_units() -> None:
    found = drawn("valid")
    assert axes_of(found["cdf-ttft"]).get_xlabel() == "TTFT, ms"
    assert axes_of(found["rate-ttft-p95-closed"]).get_ylabel() == "TTFT p95, ms"
    assert "requests/s" in axes_of(found["rate-ttft-p95-closed"]).get_xlabel()
    assert "tokens/s" in axes_of(found["pareto-output-tokens"]).get_xlabel()
    assert "µs" in axes_of(drawn("phases")["phases"]).get_xlabel()


def test_a_wide_range_gets_a_log_axis_and_a_narrow_one_starts_at_zero() -> None:
    wide = axes_of(drawn("open_loop")["rate-e2e-p95"])
    assert (wide.get_xscale(), wide.get_yscale()) == ("log", "linear")
    assert wide.get_ylim()[0] == 0


def test_no_point_lies_outside_its_axes() -> None:
    for name in ("rate-ttft-p99", "rate-e2e-p95", "pareto-output-tokens"):
        axes = axes_of(drawn("open_loop")[name])
        for line in axes.lines:
            if str(line.get_label()).startswith("SLO"):
                continue  # from side to side
            for x, y in zip(*line.get_data(), strict=True):
                inside = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
                assert np.all(inside >= -1e-9)
                assert np.all(inside <= 1 + 1e-9)


def test_the_distribution_is_that_of_the_records() -> None:
    axes = axes_of(drawn("valid", records=True)["cdf-e2e"])
    times = sorted(
        (record.end - record.scheduled) * 1000
        for record in results.text_records()
        if record.level == "c=1" and record.measured_pass
    )
    x, y = (np.asarray(values) for values in axes.lines[0].get_data())
    assert (x[0], x[-1]) == pytest.approx((times[0], times[-1]))
    assert np.interp(50, y, x) == pytest.approx(np.median(times))
    assert np.all(np.diff(x) >= 0)
    assert "Every measured sample" in drawn("valid", records=True)["cdf-e2e"].caption
    assert "percentile" in drawn("valid")["cdf-e2e"].caption or "p50" in drawn("valid")["cdf-e2e"].caption


def test_the_objective_is_drawn_with_its_own_percentile() -> None:
    axes = axes_of(drawn("open_loop")["rate-ttft-p99"])
    labels = [line.get_label() for line in axes.lines]
    assert "SLO: 300" in labels
    bound = axes.lines[labels.index("SLO: 300")]
    assert set(np.asarray(bound.get_ydata())) == {300.0}


def test_throughput_stands_over_the_speed_of_a_user() -> None:
    found = results.result("valid")
    x, y = axes_of(drawn("valid")["pareto-output-tokens"]).lines[0].get_data()
    assert list(y) == [level.summary["output_tokens_per_s"] for level in found.levels]
    assert list(x) == pytest.approx([1 / level.summary["tpot"]["p50"] for level in found.levels])


def test_phases_are_stacked_to_their_sum() -> None:
    axes = axes_of(drawn("phases")["phases"])
    us = results.result("phases").figures["worker 0, decode, bucket 1, resident"]["us"]
    bars = [patch for patch in axes.patches if abs(patch.get_y() + patch.get_height() / 2 + 0.27) < 0.01]  # type: ignore[attr-defined]
    assert [bar.get_width() for bar in bars] == pytest.approx(  # type: ignore[attr-defined]
        [us[name]["mean"] for name in ("plan_kv", "plan_attention", "plan_rest")]
    )
    labels = axes.get_legend_handles_labels()[1]
    assert len(labels) == len(set(labels)) == 6


def test_a_comparison_shows_change_interval_and_verdict() -> None:
    axes = axes_of(drawn("compare")["compare"])
    bars = [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]
    assert bars == pytest.approx([8.0, 20.0, -1.0])
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert ["better" in ticks[0], "worse" in ticks[1], "cannot tell" in ticks[2]] == [True] * 3
    assert "lower is better" in ticks[1]


def test_restarts_of_a_side_share_a_line_and_are_joined_by_none() -> None:
    distribution = axes_of(drawn("compare")["cdf-e2e"])
    assert [line.get_label() for line in distribution.lines] == ["A, c=4", "A, c=8", "B, c=4", "B, c=8"]
    result = results.result("compare")
    for level in result.levels:
        for number in range(3):
            record = {"level": level.name, "measured_pass": 1, "e2e": number + (10.0 if "A1" in level.name else 0.0)}
            result.records.append(record)
    [pooled] = [plot for plot in plots([result]) if plot.name == "cdf-e2e"]
    first = axes_of(pooled).lines[0]
    assert len(first.get_xdata()) == 6  # two restarts of three requests each
    assert np.max(first.get_xdata()) == 12_000
    assert pooled.caption == "Every measured sample of all restarts of a side."
    points = axes_of(drawn("compare")["rate-e2e-p95-closed"]).lines
    assert [(line.get_label(), len(line.get_xdata()), line.get_linestyle()) for line in points] == [
        ("A", 4, "None"),
        ("B", 4, "None"),
    ]
    assert all(line.get_marker() != "" for line in points)
    assert all(line.get_linestyle() != "None" for line in axes_of(drawn("valid")["rate-e2e-p95-closed"]).lines)


def test_several_results_share_a_plot_with_their_labels() -> None:
    found = {plot.name: plot for plot in plots([results.result("valid"), results.result("open_loop")])}
    labels = axes_of(found["cdf-e2e"]).get_legend_handles_labels()[1]
    assert labels[0] == "valid, concurrency 1"
    assert labels[-1] == "open_loop, rate 100 req/s"
    assert not found["cdf-e2e"].invalid
    both = {plot.name: plot for plot in plots([results.result("valid"), results.result("invalid")])}
    assert both["cdf-e2e"].invalid
    assert "invalid (INVALID), concurrency 8" in axes_of(both["cdf-e2e"]).get_legend_handles_labels()[1]


def test_invalid_plots_are_marked_in_both_forms(tmp_path: Path) -> None:
    bad, good = drawn("invalid")["cdf-e2e"], drawn("valid")["cdf-e2e"]
    assert "INVALID" in bad.svg()
    assert "INVALID" not in good.svg()
    bad.png(tmp_path / "bad.png")
    pixels = matplotlib.image.imread(tmp_path / "bad.png")[..., :3]
    middle = pixels[pixels.shape[0] // 4 : -pixels.shape[0] // 4, pixels.shape[1] // 4 : -pixels.shape[1] // 4]
    reddish = (middle[..., 0] > middle[..., 1] + 0.1) & (middle[..., 0] > middle[..., 2] + 0.1)
    assert reddish.mean() > 0.03


def test_more_levels_than_can_be_told_apart_are_left_out_and_said() -> None:
    found = results.result("valid")
    found.levels = found.levels[:1] * 30
    [plot] = [plot for plot in plots([found]) if plot.name == "cdf-e2e"]
    assert "6 more levels are left out" in plot.caption
    assert len(axes_of(plot).lines) == 24


# Colours.


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance of `#rrggbb`."""
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


#: Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of linear RGB."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(("theme", "page"), [(LIGHT, "#f5f6f8"), (LIGHT, "#ffffff"), (DARK, "#1f2329")])
def test_lines_stand_out_from_the_page_and_text_is_readable(theme: Theme, page: str) -> None:
    def contrast(colour: str) -> float:
        low, high = sorted([luminance(colour), luminance(page)])
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(colour) >= 3 for colour in theme.series)
    assert all(contrast(colour) >= 4.5 for colour in (theme.text, theme.muted, theme.bad))


@pytest.mark.parametrize("blindness", list(BLINDNESS))
@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colours_differ_whatever_the_eye(theme: Theme, blindness: str) -> None:
    seen = [lab(np.array(BLINDNESS[blindness]) @ linear(colour)) for colour in theme.series]
    for index, one in enumerate(seen):
        assert all(np.linalg.norm(one - other) > 20 for other in seen[:index])


def test_no_two_series_look_alike() -> None:
    looks = [style(index, LIGHT) for index in range(24)]
    assert len({(colour, line) for colour, line, _ in looks}) == len(LIGHT.series) * len(LINES) == 24


# The command.


def test_the_command_draws_files_and_folders_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = results.write("valid", tmp_path, records=True)
    other = results.write("open_loop", tmp_path)
    out = tmp_path / "out"
    assert main(["plot", str(one), str(other.parent), "--label", "base", "new", "--out", str(out)]) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "base, concurrency 1" in page
    assert "new, rate 10 req/s" in page
    assert (out / "plots" / "cdf-e2e.png").stat().st_size > 10_000
    assert len((out / "levels.csv").read_text(encoding="utf-8").splitlines()) == 7
    assert "base: valid" in capsys.readouterr().out


def test_the_command_takes_records_from_elsewhere(tmp_path: Path) -> None:
    one = results.write("valid", tmp_path, records=True)
    moved = one.with_name("elsewhere.jsonl")
    one.with_name("records.jsonl").rename(moved)
    out = tmp_path / "out"
    assert main(["plot", str(one), "--out", str(out)]) == 0
    assert "Every measured sample" not in (out / "report.html").read_text(encoding="utf-8")
    assert main(["plot", str(one), "--records", str(moved), "--out", str(out)]) == 0
    assert "Every measured sample" in (out / "report.html").read_text(encoding="utf-8")


def test_an_invalid_result_gives_the_exit_status_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(results.write(name, tmp_path)) for name in ("valid", "invalid")]
    assert main(["plot", *paths, "--out", str(tmp_path / "out")]) == 1
    assert "invalid: INVALID: do not use these numbers" in capsys.readouterr().out


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    path = str(results.write("valid", tmp_path))
    assert main(["plot", path, path, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "valid 2, concurrency 1" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{valid}", "{valid}", "--label", "one"], "--label has 1 values for 2 results"),
        (["{valid}", "--records", "a", "b"], "--records has 2 values for 1 results"),
        (["{valid}", "--records", "/nonexistent/r.jsonl"], "/nonexistent/r.jsonl"),
        (["/nonexistent/result.json"], "/nonexistent/result.json"),
        (["{folder}"], "result.json"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = results.write("valid", tmp_path)
    words = [word.format(valid=path, folder=tmp_path) for word in arguments]
    assert main(["plot", *words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_display_is_needed(tmp_path: Path) -> None:
    path = results.write("valid", tmp_path)
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "denizen.bench", "plot", str(path), "--out", str(tmp_path / "out")]
    subprocess.run(command, env=environment, check=True, timeout=120, capture_output=True)
    assert len(list((tmp_path / "out" / "plots").glob("*.png"))) == len(EXPECTED["valid"])


def test_pictures_of_one_page_share_no_ids() -> None:
    ids: list[str] = []
    for plot in drawn("valid").values():
        own = re.findall(r'\bid="([^"]+)"', plot.svg())
        assert all(name.startswith(plot.name) for name in own)
        links = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', plot.svg())
        assert {one or other for one, other in links} <= set(own)
        ids += own
    assert len(ids) == len(set(ids))
