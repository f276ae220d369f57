"""`denizen-bench` against real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import soundfile
from denizen.bench.__main__ import main
from denizen.bench.gpu_asr import counted_tokens
from denizen.bench.report.result import RESULT

from .sounds import RATE, silence

if TYPE_CHECKING:
    from tests.models.real_whisper import Clip

    from .running import Running


def test_text_measures_a_real_server(tiny_server: Running, tmp_path: Path) -> None:
    out = tmp_path / "text.json"
    load = ["--concurrency", "1", "4", "--requests", "6", "--prompt-tokens", "8", "--output-len", "4:9"]
    flags = ["--url", tiny_server.url, "--model", "hybrid", "--json", str(out), "--max-client-lag", "60000"]
    assert main(["text", *flags, *load, "--ignore-eos"]) == 0
    result = json.loads(out.read_text(encoding="utf-8"))
    for level in result["results"]:
        summary = level["summary"]
        assert summary["failed"] == summary["unchecked"] == 0
        assert summary["requests"] == 6
        assert 6 * 4 <= summary["output_tokens"] <= 6 * 9
        assert summary["e2e"]["p50"] >= summary["ttft"]["min"]


def test_text_says_so_when_a_request_is_refused(tiny_server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--url", tiny_server.url, "--model", "hybrid", "--requests", "2", "--output-len", "999999"]
    assert main(["text", *flags]) == 1
    assert "INVALID" in (printed := capsys.readouterr().out)
    assert "maximum context length" in printed


def test_frontend_measures_what_the_front_end_adds(builtin: str, tmp_path: Path) -> None:
    out = tmp_path / "frontend.json"
    counts = ["--requests", "20", "--warm-up", "2", "--idle", "0.2"]
    assert main(["frontend", "--checkpoint", builtin, *counts, "--json", str(out)]) == 0
    figures = json.loads(out.read_text(encoding="utf-8"))["figures"]
    assert figures["latency_ms"]["echo"]["count"] == figures["added_ms"]["chat"]["count"] == 20
    # The front end does all that the echo does, and more.
    assert figures["added_ms"]["chat"]["p50"] > 0


def test_cpu_text_compares_with_transformers(dense_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "cpu-text.json"
    sizes = ["--rounds", "1", "--requests", "1", "--prompt-tokens", "8", "--output-tokens", "200"]
    assert main(["cpu-text", "--checkpoint", str(dense_model), *sizes, "--json", str(out)]) == 0
    figures = json.loads(out.read_text(encoding="utf-8"))["figures"]
    speeds = figures["speeds"]
    one, eight = speeds["denizen, 1 stream"], speeds["denizen, 8 streams"]
    assert figures["total_8_streams_over_1_stream"]["median"] > 0
    assert one["decode_tokens_per_s"] > 0
    assert eight["total_tokens_per_s"] > 0


def test_gpu_text_measures_every_part(hybrid_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--concurrency", "1", "4", "--wave-users", "4", "--scale", "0.1", "--output-len", "8:16"]
    stub = ["--device", "cpu", "--server-arg=--worker-module=denizen.worker.stub", "--processes", "2"]
    flags = ["--checkpoint", str(hybrid_model), "--out", str(tmp_path), "--max-client-lag", "60000"]
    quality = ["--quality-texts", "2", "--quality-tokens", "40", "--contexts", "10", "100"]
    assert main(["gpu-text", *flags, *stub, *sizes, *quality, "--prompt-tokens", "8"]) == 0
    result = json.loads((tmp_path / RESULT).read_text(encoding="utf-8"))
    names = [load["load"]["name"] for load in result["results"]]
    assert names[:3] == ["loop 1", "loop 4", "wave 4"]
    assert [name for name in names if name.startswith("resident 128")] == [f"resident 128, turn {n}" for n in (1, 4)]
    assert [name for name in names if name.startswith("host-planned 16")] == [
        f"host-planned 16, turn {n}" for n in (2, 3)
    ]
    assert result["figures"]["loop_over_wave"]["whole"] > 0
    assert result["figures"]["floor"]["rows"]["4"]["tokens_per_s"] > 0
    states = result["figures"]["state_quality"]["states"]
    assert states["float32"]["logit_max"] < 1e-3 < states["bfloat16"]["logit_max"] < 0.5
    assert len(result["data"]["weights_sha256"]) == 64
    printed = capsys.readouterr().out
    assert "loop 4" in printed
    assert "bfloat16" in printed


def test_gpu_text_compares_host_time_at_two_contexts(hybrid_model: Path, tmp_path: Path) -> None:
    """With a worker that has steps: the phase timers of each context's loads, which one server answers in turns."""
    flags = ["--checkpoint", str(hybrid_model), "--out", str(tmp_path), "--max-client-lag", "60000"]
    worker = [
        "--device",
        "cpu",
        "--server-arg=--threads=1",
        "--processes",
        "1",
        "--contexts",
        "10",
        "300",
        "--scale",
        "0.1",
    ]
    assert main(["gpu-text", *flags, *worker, "--parts", "context"]) == 0
    figures = json.loads((tmp_path / RESULT).read_text(encoding="utf-8"))["figures"]
    by_context = figures["host_time_by_context"]
    assert set(by_context["us"]) == {"10", "300"}
    assert by_context["ratio"]["sum"] > 0
    for tokens in (10, 300):
        phases = figures["phases"][f"context {tokens}"]
        assert phases["worker 0, decode, bucket 8, resident"]["steps"] > 200


def test_gpu_text_goes_on_after_a_part_that_fails(hybrid_model: Path, tmp_path: Path) -> None:
    flags = ["--checkpoint", str(hybrid_model), "--out", str(tmp_path), "--max-client-lag", "60000"]
    broken = ["--device", "cpu", "--server-arg=--no-such-flag", "--parts", "floor", "loops", "abba"]
    assert main(["gpu-text", *flags, *broken]) == 1
    result = json.loads((tmp_path / RESULT).read_text(encoding="utf-8"))
    assert result["figures"]["floor"]["copy_bytes_per_s"] > 0
    assert len(result["problems"]) == 5  # the loops and the four turns, each with the server's own words
    assert all("--no-such-flag" in problem for problem in result["problems"])
    assert "--no-such-flag" in (tmp_path / "server.log").read_text(encoding="utf-8")


def test_asr_measures_a_real_server(ears: Running, clips: list[Clip], tmp_path: Path) -> None:
    """Real weights, real words, one silent clip."""
    soundfile.write(str(tmp_path / "silence.flac"), silence(2), RATE)
    rows = [{"path": str(clip.file), "text": clip.text} for clip in clips[1::2]]
    rows.append({"path": "silence.flac", "text": ""})
    manifest, out = tmp_path / "list.jsonl", tmp_path / "asr.json"
    manifest.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    load = ["--concurrency", "2", "--passes", "2", "--max-client-lag", "60000"]
    assert main(["asr", "--url", ears.url, "--data", str(manifest), *load, "--json", str(out)]) == 0
    result = json.loads(out.read_text(encoding="utf-8"))
    summary = result["results"][0]["summary"]
    seconds = sum(len(clip.pcm) / RATE for clip in clips[1::2]) + 2
    assert summary["audio_seconds"] == pytest.approx(seconds, abs=0.01)
    quality = summary["quality"]
    assert quality["wer"]["words"] == sum(len(clip.text.split()) for clip in clips[1::2])
    assert quality["wer"]["rate"] < 0.2
    assert (quality["empty"], quality["silent"], quality["on_silence"], quality["repeating"]) == (0, 1, 0, 0)


def test_asr_forces_lengths(ears: Running, tmp_path: Path) -> None:
    """Denizen's own extension: every window gives as many tokens as were asked for, by the server's own count."""
    out = tmp_path / "asr.json"
    before = counted_tokens(ears.url)
    load = ["--clips", "3", "--seconds", "1:3", "--output-tokens", "5:9", "--max-client-lag", "60000"]
    assert main(["asr", "--url", ears.url, "--synthetic", *load, "--json", str(out), "--records", str(out) + "l"]) == 0
    rows = [json.loads(line) for line in Path(str(out) + "l").read_text(encoding="utf-8").splitlines()]
    assert counted_tokens(ears.url) - before == sum(row["max_tokens"] for row in rows)


@pytest.mark.parametrize("worker", ["denizen.worker.stub", "denizen.worker"])
def test_gpu_asr_measures_every_part(
    tiny_ears_model: Path, tmp_path: Path, worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--checkpoint", str(tiny_ears_model), "--out", str(tmp_path), "--max-client-lag", "60000"]
    sizes = ["--clips", "4", "--seconds", "1:4:2", "--output-tokens", "5:9", "--concurrency", "1", "2", "--passes", "2"]
    server = ["--device", "cpu", f"--server-arg=--worker-module={worker}", "--processes", "1", "--timeout", "120"]
    parts = ["--parts", "loops", *(["ceiling"] if worker.endswith("stub") else [])]
    assert main(["gpu-asr", *flags, *sizes, *server, *parts]) == 0
    result = json.loads((tmp_path / RESULT).read_text(encoding="utf-8"))
    assert [load["load"]["name"] for load in result["results"]] == ["loop 1", "loop 2"]
    for load in result["results"]:
        assert load["summary"]["requests"] == 4
        tokens = result["figures"]["output_tokens"][load["load"]["name"]]
        assert tokens["made"] == tokens["asked"] > 0
    assert result["figures"]["beside"]["loop 1"]["published"] > 0
    if "ceiling" in parts:
        assert result["figures"]["beside"]["loop 1"]["encoder_share_at_ceiling"] > 0
        assert "flops per window" in capsys.readouterr().out
