"""What the numbers of a result are called and how they are shown: by their names, so that new ones need no code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
"""Of a distribution, in tables."""
MISSING = "–"


@dataclass(frozen=True, slots=True)
class Quantity:
    """`scale` turns what is stored into what is shown, in `unit`."""

    label: str
    unit: str = ""
    scale: float = 1.0

    @property
    def heading(self) -> str:
        return f"{self.label} {self.unit}".strip()

    def show(self, value: Any) -> str:
        """A cell: numbers scaled, everything else as text."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return cell(value)
        return number(value * self.scale if self.scale != 1 else value)


_KNOWN = {
    "ttft": Quantity("TTFT", "ms", 1000),
    "tpot": Quantity("TPOT", "ms", 1000),
    "itl": Quantity("ITL", "ms", 1000),
    "e2e": Quantity("E2E", "ms", 1000),
    "ttfb": Quantity("TTFB", "ms", 1000),
    "lag": Quantity("send lag", "ms", 1000),
    "loop_lag": Quantity("client lag", "ms", 1000),
    "rtf": Quantity("RTF"),
    "wer": Quantity("WER"),
    "cer": Quantity("CER"),
    "wall": Quantity("wall", "s"),
    "requests_per_s": Quantity("req/s"),
    "output_tokens_per_s": Quantity("output tok/s"),
    "tokens_per_s": Quantity("tok/s"),
    "audio_seconds_per_s": Quantity("audio s/s"),
    "full_load.output_tokens_per_s": Quantity("all busy tok/s"),
    "audio_seconds": Quantity("audio", "s"),
    "prompt_tokens": Quantity("prompt tok"),
    "output_tokens": Quantity("output tok"),
    "client_cpu": Quantity("client CPU", "%", 100),
    "substitutions": Quantity("wrong"),
    "deletions": Quantity("missing"),
    "insertions": Quantity("added"),
    "on_silence": Quantity("on silence"),
    "on_silence_rate": Quantity("on silence", "%", 100),
    "wer_rate": Quantity("WER", "%", 100),
    "cer_rate": Quantity("CER", "%", 100),
    "kl_mean": Quantity("KL mean", "nats"),
    "kl_p99": Quantity("KL p99", "nats"),
}
_SUFFIXES = (
    ("_tokens_per_s", "tok/s"),
    ("_bytes_per_s", "B/s"),
    ("_mib_per_s", "MiB/s"),
    ("_flops_per_s", "FLOP/s"),
    ("_per_s", "/s"),
    ("_percent", "%"),
    ("_bytes", "bytes"),
    ("_ms", "ms"),
    ("_us", "µs"),
    ("_s", "s"),
)
_UNITS = {"us": "µs", "ms": "ms", "seconds": "s"}
#: Names of samples that are no times.
_NO_TIME = ("rtf", "ratio", "share", "count", "tokens", "gaps", "underruns", "speed")


def quantity(name: str, *, sampled: bool = False) -> Quantity:
    """Of a number's name, dotted if it is nested. `sampled` distributions of a summary are seconds, shown as ms."""
    last = name.rpartition(".")[2]
    if found := _KNOWN.get(name) or _KNOWN.get(last):
        return found
    if last == "rate" and "." in name:  # of errors: `wer.rate`
        return Quantity(f"{quantity(name.rpartition('.')[0]).label}", "%", 100)
    if last in _UNITS:
        return Quantity("", _UNITS[last])
    for suffix, unit in _SUFFIXES:
        if last.endswith(suffix) and last != suffix:
            return Quantity(words(last.removesuffix(suffix)), unit)
    if sampled and not any(part in last for part in _NO_TIME):
        return Quantity(words(last), "ms", 1000)
    return Quantity(words(last))


def words(name: str) -> str:
    return name.replace("_", " ")


def number(value: float) -> str:
    """Three significant digits or more, whole numbers in full, thousands apart."""
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1e9:
        return f"{value:.4g}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    if size >= 0.1:
        return f"{value:.3f}"
    return f"{value:.3g}" if value else "0"


def cell(value: Any) -> str:
    """Any JSON value in a table."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    return str(value)


def is_distribution(value: Any) -> bool:
    """Whether a JSON value is a :class:`denizen.bench.stats.Distribution`."""
    return isinstance(value, dict) and {"count", "mean", "p50", "p95"} <= value.keys()


def is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def level_name(load: dict[str, Any]) -> str:
    """What a load level is called: its own name if it has one."""
    if "name" in load:
        return str(load["name"])
    if load.get("mode") == "closed" and "concurrency" in load:
        return f"concurrency {load['concurrency']}"
    if "rate" in load:
        return f"rate {load['rate']:g} req/s"
    return ", ".join(f"{name} {cell(value)}" for name, value in load.items())
