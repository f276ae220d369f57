"""The result file: what is written to JSON, and what the report is drawn from. Documented in `docs/benchmarks.md`.

All times are seconds. Times inside a record count from the start of its pass, on the client's monotonic clock.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from denizen.bench.stats import Distribution

SCHEMA = "denizen.bench/1"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One request as its client saw it, whatever it asked for."""

    measures: ClassVar[tuple[str, ...]] = ("e2e",)
    """Its latencies: names of attributes with seconds, a list of them or None. Bounds can be set on them."""

    index: int
    # When the load generator wanted it sent; every latency counts from here, so that a stalled server cannot hide
    # the requests that it kept from being sent.
    scheduled: float
    sent: float = 0.0
    end: float = 0.0
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
    def counts(self) -> bool:
        """Whether its times are the server's."""
        return self.error is None

    @property
    def began(self) -> float:
        """When the answer began to be of use."""
        return self.end

    def samples(self, measure: str) -> list[float]:
        """The seconds of one of its `measures`; empty if the request has none."""
        found = getattr(self, measure)
        return [] if found is None else found if isinstance(found, list) else [found]

    def to_json(self) -> dict[str, Any]:
        """The record's line in the JSONL file, derived times included."""
        return {**dataclasses.asdict(self), "e2e": self.e2e, "lag": self.lag}


@dataclass(slots=True, kw_only=True)
class Record(Attempt):
    """A request for text."""

    measures: ClassVar[tuple[str, ...]] = ("ttft", "tpot", "itl", "e2e")

    max_tokens: int
    first: float | None = None
    """The first event that carried text; None without streaming."""
    last: float | None = None
    """The last event that carried text."""
    gaps: list[float] = field(default_factory=list)
    """Between each two events that carried text."""
    events: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """As the server's usage says; None if it sent none."""
    finish_reason: str | None = None
    cancelled: bool = False
    """The client went away in the middle, as it was told to."""
    slow: bool = False
    """The client read slowly: its times are its own doing."""
    cut: str | None = None
    """How the server ended an answer that was read slowly, if before its end."""

    @property
    def counts(self) -> bool:
        """Whether it succeeded and was read to its end at full speed."""
        return self.error is None and not self.cancelled and not self.slow

    @property
    def began(self) -> float:
        return self.end if self.first is None else self.first

    @property
    def itl(self) -> list[float]:
        return self.gaps

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
        return {**Attempt.to_json(self), "ttft": self.ttft, "tpot": self.tpot}


@dataclass(slots=True, kw_only=True)
class Transcript(Attempt):
    """A request for a transcript."""

    clip: str
    """Name of the clip."""
    seconds: float
    """Of audio."""
    reference: str | None = None
    language: str | None = None
    text: str = ""
    max_tokens: int | None = None
    """Where the length is forced."""
    output_tokens: int | None = None
    """As the server's usage says, if it does."""


@dataclass(slots=True)
class FullLoad:
    """The part of a closed loop's pass in which every user has an open request and has had a first token."""

    seconds: float
    output_tokens: float
    """By the events in it; where an event carries several tokens, its answer's mean."""
    output_tokens_per_s: float


@dataclass(slots=True, kw_only=True)
class Goodput:
    """How a load stands to its service level objective."""

    bounds: dict[str, float]
    """By their names, such as `ttft_p99`; seconds."""
    values: dict[str, float | None]
    """What the load came to; None where no request had a sample."""
    misses: list[str]
    """Bounds that the load as a whole broke."""
    good: int
    """Requests that succeeded and kept every bound on their own."""
    share: float
    """Of all requests."""
    requests_per_s: float


@dataclass(slots=True, kw_only=True)
class Summary:
    """What one pass, or all measured passes together, came to."""

    requests: int
    failed: int
    wall: float
    requests_per_s: float
    e2e: Distribution | None
    lag: Distribution | None
    loop_lag: Distribution | None = None
    """How late the client's event loops came back to a task that slept; all processes together."""
    client_cpu: float = 0.0
    """Share of one CPU that the busiest load-generating process used."""
    client_saturated: bool = False
    goodput: Goodput | None = None
    """With a service level objective only."""


@dataclass(slots=True, kw_only=True)
class LoadSummary(Summary):
    """Of requests for text."""

    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    unchecked: int
    """Requests whose tokens are counted from events, because the server sent no usage."""
    cancelled: int = 0
    """Requests that the client gave up as it was told to; in no latency and no throughput."""
    slow: int = 0
    """Requests that were read slowly; likewise."""
    slow_cut: int = 0
    """Those of them that the server ended before their end."""
    full_load: FullLoad | None = None
    """None for an open loop, and for a pass that was never at full load."""


@dataclass(slots=True, kw_only=True)
class WordErrors:
    """Words of hypotheses against their references, normalised; characters in languages without spaces."""

    references: int
    """How many transcripts were compared."""
    words: int
    """Of the references."""
    substitutions: int
    deletions: int
    insertions: int
    rate: float
    """Errors over words."""


@dataclass(slots=True, kw_only=True)
class Quality:
    """What the transcripts are worth."""

    wer: WordErrors | None
    """None without references in a language with spaces."""
    cer: WordErrors | None
    empty: int
    """Transcripts without a word whose reference has some."""
    on_silence: int
    """Transcripts with words whose reference has none."""
    silent: int
    """References without a word."""
    on_silence_rate: float | None = None
    """The first of these over the second; None without silence."""
    repeating: int
    """Transcripts that repeat a phrase over and over, more often than their reference."""
    worst: list[dict[str, Any]] = field(default_factory=list)
    """The clips with most errors: `clip`, `errors`, `reference`, `text`."""


@dataclass(slots=True, kw_only=True)
class TranscriptSummary(Summary):
    """Of requests for transcripts."""

    audio_seconds: float
    """In the requests that succeeded."""
    audio_seconds_per_s: float
    """The real-time factor of all requests together, RTFx."""
    output_tokens: int | None
    """By the server's usage; None if it sends none."""
    unchecked: int
    """Forced lengths that the server's usage did not confirm, because it has none."""
    quality: Quality


S = TypeVar("S", bound=Summary)


@dataclass(slots=True)
class LoadResult(Generic[S]):
    """One level of load."""

    load: dict[str, Any]
    """`{"mode": "closed", "concurrency": n}` or `{"mode": "open", "rate": r}`."""
    summary: S
    passes: list[S]
    """The measured passes; the warm-up is not among them."""
    failures: list[str] = field(default_factory=list)
    """Distinct failure messages with their counts, warm-up included."""
    stopped: str | None = None
    """Why the level ended early: the server fell behind ever further."""


@dataclass(slots=True)
class Report:
    """A whole run of one sub-command."""

    kind: str
    environment: dict[str, Any]
    options: dict[str, Any]
    data: dict[str, Any] = field(default_factory=dict)
    """`seed` and `sha256` of the requests."""
    results: list[LoadResult[Any]] = field(default_factory=list)
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


def write_records(path: Path, records: Sequence[Attempt]) -> None:
    """Writes one JSON line a request."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for record in records:
            out.write(json.dumps(record.to_json(), allow_nan=False) + "\n")
