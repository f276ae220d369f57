"""Records to numbers: which requests failed, and what the rest came to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from denizen.bench.schema import LoadSummary
from denizen.bench.stats import distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from denizen.bench.schema import Record


def check(record: Record, *, ignore_eos: bool, stream: bool) -> str | None:
    """Why a request that ended by itself is still a failure, or None.

    A short or unfinished answer costs the server less than the one that was asked for, so it must never count as fast.
    """
    if record.error is not None:
        return record.error
    if record.finish_reason is None:
        return "the answer ended without a finish_reason"
    if record.completion_tokens is not None:
        if stream and record.events > record.completion_tokens:
            return f"usage says {record.completion_tokens} tokens, but {record.events} events carried text"
        if record.completion_tokens > record.max_tokens:
            return f"usage says {record.completion_tokens} tokens, but max_tokens was {record.max_tokens}"
    if ignore_eos or record.finish_reason == "length":
        if record.completion_tokens is not None and record.completion_tokens != record.max_tokens:
            return f"{record.completion_tokens} tokens instead of {record.max_tokens} (finish {record.finish_reason})"
        if ignore_eos and record.finish_reason != "length":
            return f"finish_reason {record.finish_reason} although end ids were to be ignored"
    return None


def summarize(records: Sequence[Record], wall: float) -> LoadSummary:
    """Numbers over the requests that succeeded, in `wall` seconds of load."""
    good = [record for record in records if record.error is None]
    output_tokens = sum(record.tokens for record in good)
    return LoadSummary(
        requests=len(records),
        failed=len(records) - len(good),
        wall=wall,
        prompt_tokens=sum(record.prompt_tokens or 0 for record in good),
        output_tokens=output_tokens,
        requests_per_s=len(good) / wall if wall > 0 else 0.0,
        output_tokens_per_s=output_tokens / wall if wall > 0 else 0.0,
        ttft=distribution([record.ttft for record in good if record.ttft is not None]),
        tpot=distribution([record.tpot for record in good if record.tpot is not None]),
        # Each gap counts once: a mean per request would hide the stalls inside it.
        itl=distribution([gap for record in good for gap in record.gaps]),
        e2e=distribution([record.e2e for record in good]),
        lag=distribution([record.lag for record in good]),
        unchecked=sum(record.completion_tokens is None for record in good),
    )


def failure_counts(records: Iterable[Record]) -> list[str]:
    """Distinct failures, most frequent first, as `3 × message`."""
    counts = Counter(record.error for record in records if record.error is not None)
    return [f"{count} × {message}" for message, count in counts.most_common()]
