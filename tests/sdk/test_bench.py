"""`denizen-bench sdk` in small."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from denizen.bench.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_calls_are_measured_beside_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sdk.json"
    sizes = ["--rounds", "6", "--warm-up", "2", "--tokens", "16", "--audio-rounds", "2", "--audio-seconds", "4"]
    assert main(["sdk", *sizes, "--quiet", "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert (result["schema"], result["kind"], result["valid"]) == ("denizen.bench/1", "sdk", True)
    trips = result["figures"]["round_trip_ms"]
    assert list(trips) == ["1 token", "16 tokens", "16 tokens, streamed"]
    for name, sides in trips.items():
        for side in ("http", "shm"):
            assert sides[side]["count"] == 6
            assert 0 < sides[side]["p50"] <= sides[side]["p99"]
        ratio = result["figures"]["http_over_shm"][name]["p50"]
        assert abs(ratio - sides["http"]["p50"] / sides["shm"]["p50"]) < 1e-9
    for way in ("in", "out"):
        for side in ("http", "shm"):
            assert result["figures"]["audio"][way][side]["mib_per_s"] > 0
    said = capsys.readouterr().out
    assert "16 tokens, streamed, shm" in said
