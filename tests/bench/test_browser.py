"""The HTML report in a real browser, where there is one."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.report import page
from denizen.bench.report.plots import plots

from . import results

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
_LOOK = """
<script>
  const look = frame => {
    const inside = frame.contentWindow, root = inside.document.documentElement;
    const texts = [...inside.document.querySelectorAll("svg text")].filter(text => text.textContent.trim());
    const heights = texts.map(text => {
      const place = text.getScreenCTM();
      return text.getBBox().height * Math.hypot(place.a, place.b);
    });
    const outside = texts.filter(text => {
      const place = text.getBoundingClientRect(), picture = text.ownerSVGElement.getBoundingClientRect();
      const across = Math.min(place.left - picture.left, picture.right - place.right);
      return Math.min(across, place.top - picture.top, picture.bottom - place.bottom) < -2;
    });
    const body = inside.getComputedStyle(inside.document.body);
    return {
      width: root.clientWidth,
      needed: root.scrollWidth,
      outside: outside.map(text => text.textContent),
      smallest: Math.min(...heights), pictures: inside.document.querySelectorAll("svg").length,
      loaded: inside.performance.getEntriesByType("resource").length,
      page: body.backgroundColor, text: body.color, ribbon: !!inside.document.querySelector(".ribbon"),
    };
  };
  addEventListener("load", () => {
    const found = [...document.querySelectorAll("iframe")].map(look);
    const said = Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify(found)});
    document.body.append(said);
  });
</script>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        message = f"no browser to look at the HTML report with: install one of {', '.join(_NAMES)}"
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)
    return found


def look(browser: str, pages: list[tuple[str, int]], scheme: str, tmp_path: Path) -> list[dict[str, Any]]:
    """Pages of results, each in a frame so many pixels wide, in a browser that prefers the colour scheme."""
    frames = []
    for names, width in pages:
        found = [results.result(name) for name in names.split("+")]
        page.write(found, plots(found), tmp_path / "report.html")
        inner = html.escape((tmp_path / "report.html").read_text(encoding="utf-8"))
        frames.append(f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{inner}"></iframe>')
    outer = tmp_path / "outer.html"
    body = "".join(frames) + _LOOK
    outer.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{body}</body>', encoding="utf-8")
    command = [
        browser,
        "--headless",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
        "--virtual-time-budget=10000",
        "--dump-dom",
    ]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # it refuses to run as root with one
    done = subprocess.run([*command, outer.as_uri()], capture_output=True, text=True, timeout=240, check=True)
    said = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said, done.stderr[-2000:]
    seen: list[dict[str, Any]] = json.loads(html.unescape(said[1]))
    return seen


def brightness(colour: str) -> float:
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / (3 * 255)


#: Height in pixels of the smallest text of a picture, its line included.
_SMALLEST = 9.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_legible(browser: str, scheme: str, tmp_path: Path) -> None:
    for width, seen in zip(
        (1280, 400), look(browser, [("valid", 1280), ("valid", 400)], scheme, tmp_path), strict=True
    ):
        assert seen["needed"] <= seen["width"] <= width  # nothing sticks out to the side
        assert seen["outside"] == []  # no label of a picture is cut off
        assert seen["pictures"] == 7
        assert seen["smallest"] >= _SMALLEST
        assert seen["loaded"] == 0
        assert not seen["ribbon"]
        assert (brightness(seen["page"]) > 0.5) is (scheme == "light")
        assert abs(brightness(seen["page"]) - brightness(seen["text"])) > 0.6


def test_no_kind_of_page_sticks_out_of_a_telephone(browser: str, tmp_path: Path) -> None:
    names = ["asr", "phases", "compare", "other_figures", "without_samples+invalid+open_loop"]
    for name, seen in zip(names, look(browser, [(name, 400) for name in names], "light", tmp_path), strict=True):
        assert seen["needed"] <= seen["width"], name
        assert seen["outside"] == [], name
        assert seen["smallest"] >= _SMALLEST, name
        assert seen["ribbon"] is ("invalid" in name)
