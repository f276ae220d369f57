"""Long runs, and the memory of the server over them."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from denizen.bench.__main__ import main
from denizen.bench.memory import Watch, growth

from . import commands
from .peer import serving

if TYPE_CHECKING:
    from pathlib import Path

_SMALL = ["--requests", "2", "--output-len", "2", "--max-client-lag", "60000"]


def test_growth_is_the_slope_of_the_second_half() -> None:
    times = [float(second) for second in range(0, 101, 10)]
    sizes = [1000 + (5000 if second < 50 else 5000 + int(second - 50) * 10) for second in times]
    sizes[0] = 0
    found = growth(times, sizes)
    assert found is not None
    assert found.per_hour == pytest.approx(10 * 3600)
    assert (found.start, found.end, found.peak, found.samples) == (0, 6500, 6500, 11)
    assert found.seconds == 100


@pytest.mark.parametrize("times", [[], [1.0]])
def test_too_few_samples_have_no_slope(times: list[float]) -> None:
    assert growth(times, [5] * len(times)) is None


def test_a_watch_sees_this_process_grow() -> None:
    kept = []
    with Watch(os.getpid(), period=0.01) as watch:
        deadline = time.monotonic() + 30
        while len(watch._times) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        kept.append(b"x" * (64 << 20))
    found = watch.figures()
    assert found is not None
    assert found["end"] - found["start"] > 48 << 20
    assert found["peak"] >= found["end"]


def test_a_soak_repeats_passes_until_its_time_is_over(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    with serving() as peer:
        assert main(["text", "--url", peer.url, *_SMALL, "--soak", "1", "--json", str(out)]) == 0
    [level] = json.loads(out.read_text(encoding="utf-8"))["results"]
    assert len(level["passes"]) > 3
    assert level["summary"]["requests"] == 2 * len(level["passes"]) == len(peer.requests) - 2
    prompts = [body["messages"][0]["content"] for body in peer.requests]
    assert len(set(prompts)) == len(prompts)


def test_a_server_that_grows_makes_the_result_invalid(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {os.path.dirname(commands.__file__)!r})
import peer
class Leaking(peer.Peer):
    async def _answer(self, request, index, body):
        self.leak = getattr(self, "leak", []) + [b"x" * 1_000_000]
        return await super()._answer(request, index, body)
peer.web.run_app(Leaking(peer.Behaviour(token_s=0.05)).app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
    out = tmp_path / "result.json"
    words = ["text", "--launch", commands.python(code, "{port}"), *_SMALL, "--soak", "5", "--json", str(out)]
    assert main([*words, "--max-growth", "1"]) == 1
    result = json.loads(out.read_text(encoding="utf-8"))
    assert "growth of the server's memory an hour" in result["problems"][0]
    assert result["figures"]["memory"]["end"] > result["figures"]["memory"]["start"]


def test_growth_needs_a_server_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "--soak", "5", "--max-growth", "1"]) == 2
    assert "--max-growth needs --soak and --launch" in capsys.readouterr().err
