"""Records to numbers: which requests failed, and what the rest came to."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from denizen.bench.schema import FullLoad, LoadSummary
from denizen.bench.stats import distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from denizen.bench.schema import Attempt, Record, Summary
    from denizen.bench.strain import Strain


def check(record: Record, *, ignore_eos: bool, stream: bool) -> str | None:
    """Why a request that ended by itself is still a failure, or None.

    A short or unfinished answer costs the server less than the one that was asked for, so it must never count as fast.
    """
    if record.error is not None or record.cancelled or record.cut is not None:
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


def pass_wall(records: Iterable[Attempt]) -> float:
    """Seconds from the start of a pass to its last answer."""
    return max((record.end for record in records), default=0.0)


def full_load(records: Sequence[Record], users: int) -> FullLoad | None:
    """What was generated while all `users` of a closed loop had an open request and had had a first token.

    A whole pass also has its start, when all prompts wait at once, and its end, when users have nothing left to send.
    """
    firsts = sorted(record.first for record in records if record.first is not None)
    if len(firsts) < users:
        return None
    start, last_sent = firsts[users - 1], max(record.scheduled for record in records)
    end = min((record.end for record in records if record.end > last_sent), default=start)
    if end <= start:
        return None
    tokens = 0.0
    for record in records:
        if record.error is None and record.first is not None:
            times = itertools.accumulate(record.gaps, initial=record.first)
            tokens += sum(start < moment <= end for moment in times) * record.tokens / record.events
    return FullLoad(end - start, tokens, tokens / (end - start))


def overload(passes: Sequence[Summary], max_lag: float) -> list[str]:
    """Why the client itself may be what was measured; `max_lag` in seconds."""
    problems = []
    for summary in passes:
        for what, lag in (("sent requests", summary.lag), ("came back to its answers", summary.loop_lag)):
            if lag is not None and lag.p99 > max_lag:
                problems.append(
                    f"the client was too slow: it {what} {1000 * lag.p99:.1f} ms late (p99, limit "
                    f"{1000 * max_lag:g} ms); use more --processes, or a machine with more CPUs"
                )
        if summary.client_saturated:
            problems.append(
                f"the client was too slow: a process used {100 * summary.client_cpu:.0f} % of a CPU; "
                "use more --processes, or a machine with more CPUs"
            )
    return list(dict.fromkeys(problems))


def summarize(
    records: Sequence[Record], wall: float, strains: Sequence[Strain] = (), users: int | None = None
) -> LoadSummary:
    """Numbers over the requests that succeeded, in `wall` seconds of load. `users` of one closed-loop pass."""
    good = [record for record in records if record.counts]
    output_tokens = sum(record.tokens for record in good)
    return LoadSummary(
        **common(records, good, wall, strains),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in good),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / wall if wall > 0 else 0.0,
        ttft=distribution([record.ttft for record in good if record.ttft is not None]),
        tpot=distribution([record.tpot for record in good if record.tpot is not None]),
        # Each gap counts once: a mean per request would hide the stalls inside it.
        itl=distribution([gap for record in good for gap in record.gaps]),
        unchecked=sum(record.completion_tokens is None for record in good),
        cancelled=sum(record.cancelled for record in records),
        slow=sum(record.slow for record in records),
        slow_cut=sum(record.cut is not None for record in records),
        full_load=None if users is None else full_load(records, users),
    )


def common(
    records: Sequence[Attempt], good: Sequence[Attempt], wall: float, strains: Sequence[Strain]
) -> dict[str, Any]:
    """The fields of :class:`Summary`, for summaries of any kind of request; `good` are those that count."""
    return {
        "requests": len(records),
        "failed": sum(record.error is not None for record in records),
        "wall": wall,
        "requests_per_s": len(good) / wall if wall > 0 else 0.0,
        "e2e": distribution([record.e2e for record in good]),
        "lag": distribution([record.lag for record in good]),
        "loop_lag": distribution([late for strain in strains for late in strain.loop_lag]),
        "client_cpu": max((strain.cpu_share for strain in strains), default=0.0),
        "client_saturated": any(strain.saturated for strain in strains),
    }


def failure_counts(records: Iterable[Attempt]) -> list[str]:
    """Distinct failures, most frequent first, as `3 × message`."""
    counts = Counter(record.error for record in records if record.error is not None)
    return [f"{count} × {message}" for message, count in counts.most_common()]
