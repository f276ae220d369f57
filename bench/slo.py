"""Service level objectives: bounds on latencies, and goodput, the requests that keep them."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from denizen.bench.errors import BenchError
from denizen.bench.schema import Goodput
from denizen.bench.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.schema import Attempt

_SHAPE = re.compile(r"(?P<measure>[a-z][a-z0-9_]*)_(?P<statistic>mean|max|p\d+(?:\.\d+)?)=(?P<limit>.+)")


@dataclass(frozen=True)
class Bound:
    """`MEASURE_STATISTIC=LIMIT`, for example `ttft_p99=0.5`."""

    measure: str
    """A latency of a record, for example `ttft`."""
    statistic: str
    """`mean`, `max`, or `p` with a percentile."""
    limit: float

    @property
    def name(self) -> str:
        return f"{self.measure}_{self.statistic}"

    def of(self, samples: Sequence[float]) -> float:
        """The statistic of samples, at least one."""
        if self.statistic == "mean":
            return sum(samples) / len(samples)
        return percentile(sorted(samples), 100.0 if self.statistic == "max" else float(self.statistic[1:]))


def bound(text: str) -> Bound:
    """Parses a value of `--slo`."""
    found = _SHAPE.fullmatch(text)
    try:
        limit = float(found["limit"]) if found else 0.0
    except ValueError:
        limit = 0.0
    if found is None or not 0 < limit < float("inf"):
        raise argparse.ArgumentTypeError(f"expected MEASURE_STATISTIC=SECONDS such as ttft_p99=0.5, got '{text}'")
    statistic = found["statistic"]
    if statistic.startswith("p") and float(statistic[1:]) > 100:
        raise argparse.ArgumentTypeError(f"a percentile is at most 100, got '{text}'")
    return Bound(found["measure"], statistic, limit)


@dataclass(frozen=True)
class Slo:
    """All bounds together. Without any, every request that succeeds is good."""

    bounds: Sequence[Bound] = ()

    def check(self, record: type[Attempt]) -> None:
        """Raises BenchError if records of that type have no such measure."""
        for one in self.bounds:
            if one.measure not in record.measures:
                raise BenchError(f"--slo {one.name}: '{one.measure}' is not one of {', '.join(record.measures)}")

    def values(self, records: Sequence[Attempt]) -> dict[str, float | None]:
        """What the load came to at each bound, over the requests that succeeded; None without a sample."""
        found: dict[str, float | None] = {}
        for one in self.bounds:
            samples = [sample for record in records if record.counts for sample in record.samples(one.measure)]
            found[one.name] = one.of(samples) if samples else None
        return found

    def keeps(self, record: Attempt) -> bool:
        """Whether one request is good: it succeeded, and each of its latencies is within its bound.

        Of a latency with many samples in a request, such as the gaps between its tokens, the bound's own statistic
        over them counts.
        """
        if record.error is not None:
            return False
        for one in self.bounds:
            samples = record.samples(one.measure)
            if samples and one.of(samples) > one.limit:
                return False
        return True

    def judge(self, records: Sequence[Attempt], wall: float) -> Goodput | None:
        """Goodput of `wall` seconds of load, and the bounds that it breaks; None without bounds."""
        if not self.bounds:
            return None
        # Those whose client went away or was slow say nothing of the server.
        records = [record for record in records if record.counts or record.error is not None]
        good = sum(map(self.keeps, records))
        values = self.values(records)
        limits = {one.name: one.limit for one in self.bounds}
        misses = [name for name, value in values.items() if value is None or value > limits[name]]
        return Goodput(
            bounds=limits,
            values=values,
            misses=misses,
            good=good,
            share=good / len(records) if records else 0.0,
            requests_per_s=good / wall if wall > 0 else 0.0,
        )
