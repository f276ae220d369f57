"""The HTML report: whole, by itself, and clear about what does not count."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from denizen.bench.report import page
from denizen.bench.report.plots import plots

from . import results

if TYPE_CHECKING:
    from pathlib import Path

    from denizen.bench.report.result import Result

_VOID = {"meta", "br", "link", "img", "input", "hr"}
#: What a browser would fetch.
_LOADS = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    """Checks that elements nest, and collects what the page says and loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in _LOADS]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def html_of(*found: Result, tmp_path: Path) -> str:
    page.write(found, plots(found), tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(results.ALL))
def test_the_page_is_well_formed_and_loads_nothing(name: str, tmp_path: Path) -> None:
    html = html_of(results.result(name), tmp_path=tmp_path)
    found = Page(html)
    assert all(load.startswith("#") for load in found.loads)
    assert not re.search(r"@import|url\((?!#)", html)
    assert not {"script", "link", "iframe", "img"} & set(found.tags)
    assert len(found.ids) == len(set(found.ids))
    assert found.tags.count("svg") == len(plots([results.result(name)]))


def test_the_page_of_several_results_is_well_formed_too(tmp_path: Path) -> None:
    found = Page(html_of(*(results.result(name) for name in results.ALL), tmp_path=tmp_path))
    assert found.tags.count("header") == len(results.ALL)
    assert len(found.ids) == len(set(found.ids))


def test_an_invalid_result_cannot_be_overlooked(tmp_path: Path) -> None:
    html = html_of(results.result("invalid"), tmp_path=tmp_path)
    found = Page(html)
    assert re.search(r"<title>INVALID", html)
    assert '<body class="invalid">' in html
    assert found.words.count("INVALID: do not use these numbers") == 2  # the ribbon that stays, and the verdict
    assert "2 requests failed" in found.words
    assert "✓" not in found.words
    # Every picture, every key figure and the tables carry the mark.
    assert html.count('class="mark"') >= html.count("<figure") + html.count("<dt>") + 1
    assert html.count(">INVALID</text>") == html.count("<figure")


def test_a_valid_result_has_no_such_mark(tmp_path: Path) -> None:
    html = html_of(results.result("valid"), tmp_path=tmp_path)
    assert "INVALID" not in html
    assert 'class="mark"' not in html
    assert "✓ Valid." in Page(html).words


def test_beside_an_invalid_result_a_valid_one_keeps_its_verdict(tmp_path: Path) -> None:
    html = html_of(results.result("valid"), results.result("invalid"), tmp_path=tmp_path)
    assert "do not use the numbers of invalid" in Page(html).words
    first, second = html.split("<header")[1:3]
    assert "✓ Valid." in first
    assert 'class="mark"' not in first
    assert "✗ INVALID" in second


def test_the_page_says_everything_about_a_result(tmp_path: Path) -> None:
    words = Page(html_of(results.result("valid"), tmp_path=tmp_path)).words
    for expected in (
        "denizen-bench text",
        "1 × NVIDIA H200",
        "commit 0123456789ab",
        "highest output tok/s",
        "TTFT p95",
        "of 600 measured requests, 3 load levels",
        "concurrency 64",
        "denizen-bench text --concurrency 1 8 --prompts 'a b.txt' --api-key '***'",
        "GPU 0: power.limit",
        "700.00 W",
        "package torch",
        "variable OMP_NUM_THREADS",
        "ab" * 32,
        "64.0 GiB",
    ):
        assert expected in words, expected
    assert "/opt/bin" not in words


def test_what_results_say_is_text_and_no_markup(tmp_path: Path) -> None:
    html = html_of(results.result("asr"), results.result("invalid"), tmp_path=tmp_path)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<b>out of order" not in html
    assert "Some CPU &lt;fast &amp; wide&gt;" in html


def test_key_figures_by_kind() -> None:
    def labels(name: str) -> list[str]:
        return [tile.label for tile in page.tiles(results.result(name))]

    assert labels("valid") == ["highest output tok/s", "TTFT p95", "ITL p99", "E2E p95", "failed"]
    assert labels("asr") == ["highest audio s/s", "E2E p95", "word error rate", "failed"]
    assert labels("phases") == ["iteration p50"] * 4
    assert labels("compare") == ["output tok/s, B / A", "TTFT p50, B / A", "E2E p50, B / A"]
    assert labels("nothing") == []
    assert labels("without_samples")[-1] == "failed"
    assert "idle cpu" in labels("other_figures")
    verdicts = [(tile.note.partition(" at ")[0], tile.bad) for tile in page.tiles(results.result("compare"))]
    assert verdicts == [("better", False), ("worse", True), ("cannot tell", False)]


def test_a_mix_has_key_figures_of_each_class() -> None:
    mix = results.result("valid")
    mix.levels = [mix.levels[0], *results.result("asr").levels]
    labels = [tile.label for tile in page.tiles(mix)]
    assert labels == ["highest output tok/s", "TTFT p95", "highest audio s/s", "E2E p95", "word error rate", "failed"]


def test_failed_requests_are_a_key_figure_of_their_own() -> None:
    [failed] = [tile for tile in page.tiles(results.result("invalid")) if tile.label == "failed"]
    assert (failed.value, failed.bad) == ("2", True)


def test_differing_environments_are_marked(tmp_path: Path) -> None:
    other = results.result("open_loop")
    other.raw["environment"]["packages"]["torch"] = "2.12.0"
    html = html_of(results.result("valid"), other, tmp_path=tmp_path)
    [row] = re.findall(r'<tr class="differs">(?:(?!</tr>).)*package torch.*?</tr>', html)
    assert "2.11.0" in row
    assert "2.12.0" in row
    assert not re.search(r'<tr class="differs">(?:(?!</tr>).)*package denizen', html)
