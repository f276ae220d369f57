"""`denizen-bench` with speech against the front end and the stub, which says a tone."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.__main__ import main
from denizen.bench.stub_models import write_ears

from tests.e2e.running import Running

from .conftest import STUB, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANY_LAG = ["--max-client-lag", "60000"]
SECONDS_A_BYTE = 0.08
"""The stub says a frame for each token, and a byte of text is a token."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three models side by side: `voice` speaks, `text` continues text, `ears` hears."""
    folder = tmp_path_factory.mktemp("bench")
    models = {"voice": write_checkpoint, "text": write_checkpoint, "ears": write_ears}
    named = [word for name, write in models.items() for word in ("--model", f"{name}={write(folder / name)}")]
    options = {"DENIZEN_STUB": json.dumps({"speech": {"models": ["voice"]}, "step_ms": 2})}
    with Running([*STUB, *named], model="voice", env=options) as running:
        yield running
        running.settles()


def bench(server: Running, tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "result.json"
    status = main([words[0], "--url", server.url, "--json", str(out), *words[1:]])
    return status, json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("stream", "kind"),
    [*itertools.product(["audio", "sse", "none"], ["pcm", "wav"]), ("none", "flac")],
)
def test_tts_measures_a_real_server(server: Running, tmp_path: Path, stream: str, kind: str) -> None:
    texts, records = tmp_path / "texts.txt", tmp_path / "records.jsonl"
    texts.write_text("Good morning.\nThe rain has stopped.\n", encoding="utf-8")
    load = ["--concurrency", "1", "3", "--requests", "4", "--texts", str(texts), "--voice", "low", "high"]
    flags = ["--model", "voice", "--records", str(records), "--stream", stream, "--format", kind]
    status, result = bench(server, tmp_path, "tts", *ANY_LAG, *flags, *load)
    assert status == 0
    for row in map(json.loads, records.read_text(encoding="utf-8").splitlines()):
        assert row["rate"] == 24_000
        assert row["seconds"] == pytest.approx(SECONDS_A_BYTE * len(row["text"]))
        assert row["leading_silence"] == 0
        if stream == "none":
            assert row["first_sample"] is None
        else:
            assert row["scheduled"] <= row["first_byte"] <= row["first_sample"] <= row["end"]
    for level in result["results"]:
        assert (level["summary"]["failed"], level["summary"]["requests"]) == (0, 4)


def test_tts_says_so_when_a_voice_is_unknown(server: Running, tmp_path: Path) -> None:
    status, result = bench(
        server, tmp_path, "tts", *ANY_LAG, "--model", "voice", "--requests", "1", "--voice", "nobody"
    )
    assert status == 1
    assert "nobody" in result["problems"][0]


def test_tts_wer_speaks_and_hears(server: Running, tmp_path: Path) -> None:
    """The stub's ears hear letters, not words: what counts is that both sides of the run work."""
    kept = tmp_path / "kept"
    flags = ["--model", "voice", "--asr-model", "ears", "--requests", "2", "--language", "en", "--wav-dir", str(kept)]
    _, result = bench(server, tmp_path, "tts-wer", *flags)
    assert [level["summary"]["failed"] for level in result["results"]] == [0, 0]
    assert result["results"][1]["summary"]["quality"]["wer"]["words"] > 0
    assert len(list(kept.glob("*.wav"))) == 2


def test_mixed_puts_all_three_on_a_real_server(server: Running, tmp_path: Path) -> None:
    text = ["text", "--model", "text", "--endpoint", "completions", "--output-len", "4", "--concurrency", "2"]
    tts = ["tts", "--model", "voice", "--rate", "10", "--slo", "first_playable_p95=60"]
    asr = ["asr", "--model", "ears", "--synthetic", "--clips", "2", "--seconds", "1:2", "--language", "en"]
    status, result = bench(server, tmp_path, "mixed", *ANY_LAG, "--seconds", "1", *text, "+", *tts, "+", *asr)
    assert result["problems"] == []
    assert status == 0
    assert [level["load"]["name"].split(",")[0] for level in result["results"]] == ["text", "tts", "asr"]
    assert all(level["summary"]["requests"] > level["summary"]["failed"] == 0 for level in result["results"])
    assert result["results"][1]["summary"]["goodput"]["misses"] == []
