"""The result file: what is written to JSON, and what the report is drawn from. Documented in `docs/benchmarks.md`.

All times are seconds. Times inside a record count from the start of its pass, on the client's monotonic clock.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from denizen.bench.stats import Distribution

SCHEMA = "denizen.bench/1"


@dataclass(slots=True)
class Record:
    """One request as its client saw it."""

    index: int
    max_tokens: int
    # When the load generator wanted it sent; every latency counts from here, so that a stalled server cannot hide
    # the requests that it kept from being sent.
    scheduled: float
    sent: float = 0.0
    first: float | None = None
    """The first event that carried text; None without streaming."""
    last: float | None = None
    """The last event that carried text."""
    end: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between each two events that carried text."""
    events: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """As the server's usage says; None if it sent none."""
    finish_reason: str | None = None
    error: str | None = None
    level: str = ""
    measured_pass: int = 0
    """0 is the warm-up."""

    @property
    def e2e(self) -> float:
        return self.end - self.scheduled

    @property
    def lag(self) -> float:
        """How late the client sent it."""
        return self.sent - self.scheduled

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.scheduled

    @property
    def tokens(self) -> int:
        """Output tokens: the server's count, or else the events that carried text."""
        return self.events if self.completion_tokens is None else self.completion_tokens

    @property
    def tpot(self) -> float | None:
        """Seconds an output token after the first. None for one token, or without streaming."""
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    def to_json(self) -> dict[str, Any]:
        """The record's line in the JSONL file, derived times included."""
        return {**dataclasses.asdict(self), "ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e, "lag": self.lag}


@dataclass(slots=True)
class FullLoad:
    """The part of a closed loop's pass in which every user has an open request and has had a first token."""

    seconds: float
    output_tokens: float
    """By the events in it; where an event carries several tokens, its answer's mean."""
    output_tokens_per_s: float


@dataclass(slots=True)
class LoadSummary:
    """What one pass, or all measured passes together, came to."""

    requests: int
    failed: int
    wall: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    lag: Distribution | None
    unchecked: int
    """Requests whose tokens are counted from events, because the server sent no usage."""
    loop_lag: Distribution | None = None
    """How late the client's event loops came back to a task that slept; all processes together."""
    client_cpu: float = 0.0
    """Share of one CPU that the busiest load-generating process used."""
    client_saturated: bool = False
    full_load: FullLoad | None = None
    """None for an open loop, and for a pass that was never at full load."""


@dataclass(slots=True)
class LoadResult:
    """One level of load."""

    load: dict[str, Any]
    """`{"mode": "closed", "concurrency": n}` or `{"mode": "open", "rate": r}`."""
    summary: LoadSummary
    passes: list[LoadSummary]
    """The measured passes; the warm-up is not among them."""
    failures: list[str] = field(default_factory=list)
    """Distinct failure messages with their counts, warm-up included."""


@dataclass(slots=True)
class Report:
    """A whole run of one sub-command."""

    kind: str
    environment: dict[str, Any]
    options: dict[str, Any]
    data: dict[str, Any] = field(default_factory=dict)
    """`seed` and `sha256` of the requests."""
    results: list[LoadResult] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Numbers of sub-commands that are not a load: ratios, round trips, idle CPU."""
    problems: list[str] = field(default_factory=list)
    """Why the result must not be used; empty = valid."""

    @property
    def valid(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "valid": self.valid, **dataclasses.asdict(self)}

    def write(self, path: Path) -> None:
        """Writes the result file, creating its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_records(path: Path, records: list[Record]) -> None:
    """Writes one JSON line a request."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for record in records:
            out.write(json.dumps(record.to_json(), allow_nan=False) + "\n")
