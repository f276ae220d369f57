"""`denizen-bench arena` runs over a real arena and gives figures that fit together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from denizen.bench.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path


def test_arena_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("denizen._native", reason="the extension is not built")
    out = tmp_path / "arena.json"
    command = ["arena", "--rounds", "2", "--messages", "50", "--blobs", "8", "--idle", "0.2", "--json", str(out)]
    assert main(command) == 0
    figures = json.loads(out.read_text(encoding="utf-8"))["figures"]
    for name in ("arena", "socketpair"):
        found = figures["round_trip_us"][name]
        assert found["count"] == 100
        assert 0 < found["min"] <= found["p50"] <= found["p99"] <= found["max"]
    # A blob is copied in and out, so it cannot beat one copy.
    assert 0 < figures["blob_mib_per_s"] < figures["memcpy_mib_per_s"]
    assert figures["idle_cpu_percent"] >= 0
    assert "socketpair" in capsys.readouterr().out
