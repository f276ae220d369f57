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
    names = ["list of models", "1 token", "16 tokens", "16 tokens, streamed", "4 s of sound, refused"]
    assert list(trips) == [f"{name}, {side}" for name in names for side in ("http", "shm")]
    for name in names:
        web, shm = trips[f"{name}, http"], trips[f"{name}, shm"]
        for side in (web, shm):
            assert side["count"] == 6
            assert 0 < side["p50"] <= side["p99"]
        over, cpu = result["figures"]["http_over_shm"][name], result["figures"]["client_cpu_ms"]
        assert abs(over["p50"] - web["p50"] / shm["p50"]) < 1e-9
        assert abs(over["of_client_cpu"] - cpu[f"{name}, http"] / cpu[f"{name}, shm"]) < 1e-9
    ways = result["figures"]["audio"]
    assert list(ways) == ["in, http", "in, shm", "out, http", "out, shm"]
    assert all(way["mib_per_s"] > 0 for way in ways.values())
    said = capsys.readouterr().out
    assert "16 tokens, streamed, shm" in said
