"""The figures of one level of load that two results can be compared by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What a kind of load is for; the first that a summary has counts.
_RATES = ("output_tokens_per_s", "audio_seconds_per_s", "requests_per_s")
#: The client's own; the gaps between tokens, whose median is that of TPOT or zero where tokens come in bursts; and how
#: long speech is, which is no merit.
_LEFT_OUT = frozenset({"lag", "loop_lag", "itl", "audio_s"})


@dataclass(frozen=True)
class Figure:
    """A number, and in which direction it is good."""

    name: str
    value: float
    higher_is_better: bool


def figures_of(entry: Mapping[str, Any], chosen: Sequence[str] | None = None) -> dict[str, Figure]:
    """Figures by name, of an entry of `results`: those `chosen` that it has, or throughput and the median latencies.

    The throughput of an open loop is left out, since it is what was sent. Names are keys of `summary`, with the
    statistic of a distribution after a dot. Rates are better when they are higher, everything else when it is lower.
    """
    summary = entry["summary"]
    names = list(chosen or ())
    if not chosen:
        if entry["load"].get("mode") != "open":
            names.extend([name for name in _RATES if name in summary][:1])
        names.extend(f"{name}.p50" for name, value in summary.items() if _is_latency(name, value))
    found = {}
    for name in names:
        key, _, statistic = name.partition(".")
        value = summary.get(key)
        if statistic:
            value = value.get(statistic) if isinstance(value, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = Figure(name, float(value), key.endswith("_per_s"))
    return found


def _is_latency(name: str, value: Any) -> bool:
    return name not in _LEFT_OUT and isinstance(value, dict) and "p50" in value
