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
  addEventListener("load", () => {
    const inside = document.querySelector("iframe").contentWindow;
    const root = inside.document.documentElement;
    const texts = [...inside.document.querySelectorAll("svg text")].filter(text => text.textContent.trim());
    const heights = texts.map(text => {
      const place = text.getScreenCTM();
      return text.getBBox().height * Math.hypot(place.a, place.b);
    });
    const shown = element => inside.getComputedStyle(element);
    document.body.append(Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify({
      width: root.clientWidth, needed: root.scrollWidth,
      smallest: Math.min(...heights), pictures: inside.document.querySelectorAll("svg").length,
      loaded: inside.performance.getEntriesByType("resource").length,
      page: shown(inside.document.body).backgroundColor, text: shown(inside.document.body).color,
      ribbon: !!inside.document.querySelector(".ribbon"), title: inside.document.title,
      line: shown(inside.document.querySelector("svg .line2d_grid, svg path")).stroke,
    })}));
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


def look(browser: str, name: str, width: int, scheme: str, tmp_path: Path) -> dict[str, Any]:
    """The page in a frame of `width` pixels, in a browser that prefers the colour scheme."""
    found = [results.result(part) for part in name.split("+")]
    page.write(found, plots(found), tmp_path / "report.html")
    inner = html.escape((tmp_path / "report.html").read_text(encoding="utf-8"))
    outer = tmp_path / "outer.html"
    frame = f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{inner}"></iframe>'
    outer.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{frame}{_LOOK}</body>', encoding="utf-8")
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
    done = subprocess.run([*command, outer.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    said = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(html.unescape(said[1]))
    return seen


def brightness(colour: str) -> float:
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / (3 * 255)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_legible(browser: str, width: int, scheme: str, tmp_path: Path) -> None:
    seen = look(browser, "valid", width, scheme, tmp_path)
    assert seen["needed"] <= seen["width"] <= width  # nothing sticks out to the side
    assert seen["pictures"] == 7
    assert seen["smallest"] >= 8  # pixels, the smallest text of a picture
    assert seen["loaded"] == 0
    assert not seen["ribbon"]
    assert (brightness(seen["page"]) > 0.5) is (scheme == "light")
    assert abs(brightness(seen["page"]) - brightness(seen["text"])) > 0.6


@pytest.mark.parametrize("name", ["asr", "phases", "compare", "without_samples+invalid+open_loop"])
def test_no_kind_of_page_sticks_out_of_a_telephone(browser: str, name: str, tmp_path: Path) -> None:
    seen = look(browser, name, 400, "light", tmp_path)
    assert seen["needed"] <= seen["width"]
    assert seen["smallest"] >= 8
    assert seen["ribbon"] is ("invalid" in name)
