"""Results for tests of the report: one of each kind, made by the schema itself."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from denizen.bench.report.result import Result
from denizen.bench.schema import (
    FullLoad,
    Goodput,
    LoadResult,
    LoadSummary,
    Quality,
    Record,
    Report,
    TranscriptSummary,
    WordErrors,
    write_records,
)
from denizen.bench.stats import Distribution, distribution

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT: dict[str, Any] = {
    "started": "2026-01-02T03:04:05+00:00",
    "command": [
        "/opt/bin/denizen-bench",
        "text",
        "--concurrency",
        "1",
        "8",
        "--prompts",
        "a b.txt",
        "--api-key",
        "***",
    ],
    "cpu": "Some CPU <fast & wide>",
    "cpus": 16,
    "cpu_limit": None,
    "memory_bytes": 64 * 2**30,
    "load_average": 0.5,
    "gpus": [{"name": "NVIDIA H200", "uuid": "GPU-1", "clocks.sm": "1980 MHz", "power.limit": "700.00 W"}],
    "platform": "Linux",
    "python": "3.12.3",
    "packages": {"denizen": "0.1.0", "torch": "2.11.0"},
    "variables": {"OMP_NUM_THREADS": "1"},
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "dirty": False,
}


def samples(middle: float, count: int = 200) -> Distribution:
    rng = random.Random(f"{middle}/{count}")
    found = distribution([middle * rng.lognormvariate(0, 0.4) for _ in range(count)])
    assert found is not None
    return found


def text_summary(users: int = 8, **changes: Any) -> LoadSummary:
    values: dict[str, Any] = {
        "requests": 200,
        "failed": 0,
        "wall": 10.0,
        "requests_per_s": 20.0 * users**0.5,
        "e2e": samples(0.5 * users**0.3),
        "lag": samples(0.0001),
        "loop_lag": samples(0.0002),
        "client_cpu": 0.25,
        "prompt_tokens": 1000,
        "output_tokens": 12800,
        "output_tokens_per_s": 1280.0 * users**0.5,
        "ttft": samples(0.02 * users**0.5),
        "tpot": samples(0.002 * users**0.5),
        "itl": samples(0.002 * users**0.5, 1000),
        "unchecked": 0,
        "full_load": FullLoad(9.0, 12000.0, 1333.0 * users**0.5),
    }
    return LoadSummary(**{**values, **changes})


def report(kind: str, **changes: Any) -> Report:
    values: dict[str, Any] = {
        "kind": kind,
        "environment": ENVIRONMENT,
        "options": {"model": "tiny", "seed": 0, "concurrency": [1, 8]},
        "data": {"seed": 0, "sha256": "ab" * 32},
    }
    return Report(**{**values, **changes})


def closed(users: int, summary: Any, failures: list[str] | None = None, **load: Any) -> LoadResult[Any]:
    return LoadResult({"mode": "closed", "concurrency": users, **load}, summary, [summary], failures or [])


def valid() -> Report:
    return report("text", results=[closed(users, text_summary(users)) for users in (1, 8, 64)])


def invalid() -> Report:
    failures = ["2 × HTTP 500: <b>out of order</b>"]
    results = [closed(8, text_summary(8, failed=2), failures)]
    problems = ["concurrency 8: 2 requests failed, warm-up included: 2 × HTTP 500: <b>out of order</b>"]
    return report("text", results=results, problems=problems)


def open_loop() -> Report:
    results = []
    for rate in (1.0, 10.0, 100.0):
        ttft = samples(0.02 * rate**0.5)
        limits, values = {"ttft_p99": 0.3}, {"ttft_p99": ttft.p99}
        misses = [name for name, value in values.items() if value > limits[name]]
        goodput = Goodput(bounds=limits, values=values, misses=misses, good=190, share=0.95, requests_per_s=0.95 * rate)
        summary = text_summary(8, ttft=ttft, requests_per_s=rate, full_load=None, goodput=goodput)
        results.append(LoadResult({"mode": "open", "rate": rate}, summary, [summary]))
    return report("text", results=results)


def asr() -> Report:
    errors = WordErrors(references=50, words=600, substitutions=9, deletions=2, insertions=1, rate=0.02)
    worst = [{"clip": "a|b.flac", "errors": 4, "reference": "ten lamps", "text": "<script>alert(1)</script>"}]
    quality = Quality(wer=errors, cer=None, empty=1, on_silence=0, silent=3, repeating=0, worst=worst)
    summary = TranscriptSummary(
        requests=53,
        failed=0,
        wall=5.0,
        requests_per_s=10.6,
        e2e=samples(0.4),
        lag=samples(0.0001),
        audio_seconds=380.0,
        audio_seconds_per_s=76.0,
        output_tokens=1400,
        unchecked=0,
        quality=quality,
    )
    return report("asr", results=[closed(4, summary)])


def phases() -> Report:
    us = ("plan thread", "plan_kv", "plan_attention", "plan_rest", "device_work", "device_wait", "iteration")
    figures = {
        f"worker 0, decode, bucket {bucket}, resident": {
            "steps": 500,
            "us": {name: samples(10.0 * (index + 1) * bucket**0.2) for index, name in enumerate(us)},
        }
        for bucket in (1, 8, 16, 32)
    }
    return report("phases", figures=figures)


TURNS = ("A1", "B1", "B2", "A2")


def compare() -> Report:
    def row(figure: str, ratio: float, low: float | None, high: float | None, verdict: str) -> dict[str, Any]:
        a = [0.1, 0.1, 0.11]
        return {
            "load": "c=8", "figure": figure, "a": a, "b": [ratio * value for value in a], "ratio": ratio, "low": low,
            "high": high, "freedom": 3, "verdict": verdict, "higher_is_better": figure.endswith("_per_s"),
            "least": None if low is None else 0.025, "least_with_twice": None if low is None else 0.012,
        }  # fmt: skip

    rows = [
        row("output_tokens_per_s", 1.08, 1.05, 1.11, "better"),
        row("ttft.p50", 1.2, 1.1, 1.3, "worse"),
        row("e2e.p50", 0.99, None, None, "cannot tell"),
    ]
    figures = {"compare": rows, "order": "ABBA", "notes": ["not all runs had the same --seed"]}
    turns = [closed(users, text_summary(users), name=f"{turn}, c={users}") for turn in TURNS for users in (4, 8)]
    return report("compare text", options={"a": "serve --x", "b": "serve --y"}, figures=figures, results=turns)


def nothing() -> Report:
    return report("text", problems=["floor: BenchError: no GPU"])


def without_samples() -> Report:
    """Whole answers, one level without a success."""
    none = {"ttft": None, "tpot": None, "itl": None, "full_load": None}
    dead = text_summary(1, **none, e2e=None, lag=None, loop_lag=None, requests=5, failed=5, output_tokens_per_s=0.0)
    results = [closed(1, text_summary(1, **none)), closed(2, dead, ["5 × timed out"])]
    return report("text", results=results, problems=["concurrency 2: 5 requests failed"])


def other_figures() -> Report:
    """Numbers of a sub-command that the report knows nothing of."""
    return report(
        "arena",
        figures={
            "round_trip_us": {"arena": samples(2.0), "socketpair": samples(10.0)},
            "idle_cpu_percent": 0.25,
            "speeds": {"one": {"total_tokens_per_s": 10.0}, "two": {"total_tokens_per_s": 20.5}},
            "a_over_b": {"median": 1.5, "min": 1.0, "max": 2.0},
            "seconds_to_ready": [1.5, 2.5],
            "levels": [{"rate": 1.0, "kept": True}, {"rate": 2.0, "kept": False}],
            "empty": {},
        },
    )


ALL = {
    function.__name__: function
    for function in (
        valid, invalid, open_loop, asr, phases, compare, nothing, without_samples, other_figures,
    )
}  # fmt: skip


def result(name: str, records: bool = False) -> Result:
    made = Result(json.loads(json.dumps(ALL[name]().to_json())), name)
    if records:
        made.records = [json.loads(json.dumps(line.to_json())) for line in text_records()]
    return made


def text_records(levels: tuple[str, ...] = ("c=1", "c=8", "c=64"), count: int = 40) -> list[Record]:
    rng = random.Random(1)
    lines = []
    for level in levels:
        for index in range(count):
            first = 1.0 + rng.random()
            gaps = [rng.random() / 100 for _ in range(9)]
            end = first + sum(gaps)
            lines.append(
                Record(
                    index=index, scheduled=1.0, sent=1.0, end=end, first=first, last=end, gaps=gaps, events=10,
                    max_tokens=10, completion_tokens=10, finish_reason="length", level=level, measured_pass=index % 2,
                )
            )  # fmt: skip
    return lines


def write(name: str, folder: Path, records: bool = False) -> Path:
    """Writes a result file into a new folder."""
    path = folder / name / "result.json"
    ALL[name]().write(path)
    if records:
        write_records(path.with_name("records.jsonl"), text_records())
    return path
