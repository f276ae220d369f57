"""The report that is printed when a run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from denizen.bench.schema import LoadResult, LoadSummary, Report
    from denizen.bench.stats import Distribution

COLUMNS = ("mean", "p50", "p90", "p95", "p99")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Aligned text columns, the first to the left, the rest to the right."""
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]

    def line(cells: list[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        padded[0] = cells[0].ljust(widths[0])
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["─" * width for width in widths]), *map(line, rows)])


def milliseconds(name: str, values: Distribution | None) -> list[str]:
    """A row of a table with the columns `COLUMNS`, from seconds."""
    if values is None:
        return [name, *("–" for _ in COLUMNS)]
    return [name, *(f"{1000 * getattr(values, column):.2f}" for column in COLUMNS)]


def load_name(result: LoadResult[Any]) -> str:
    """What a load level is called: its own name if it has one."""
    load = result.load
    if "name" in load:
        return str(load["name"])
    return f"concurrency {load['concurrency']}" if load["mode"] == "closed" else f"rate {load['rate']:g} req/s"


def outcome_lines(result: LoadResult[Any]) -> list[str]:
    """What every kind of load says below its numbers: goodput, the client's share, what went wrong."""
    total = result.summary
    lines = []
    if total.goodput is not None:
        goodput = total.goodput
        bounds = ", ".join(
            f"{name} {'–' if (value := goodput.values[name]) is None else f'{value:.4g}'} s of {limit:g} s"
            for name, limit in goodput.bounds.items()
        )
        lines.append(
            f"goodput: {100 * goodput.share:.1f} % of the requests, {goodput.requests_per_s:.2f} req/s, keep every "
            f"bound; SLO {'broken by ' + ', '.join(goodput.misses) if goodput.misses else 'kept'} ({bounds})"
        )
    lines.append(f"busiest client process: {100 * total.client_cpu:.0f} % of a CPU")
    if result.stopped:
        lines.append(result.stopped)
    lines.extend(f"failed: {failure}" for failure in result.failures)
    return lines


def load_table(results: list[LoadResult[LoadSummary]]) -> str:
    """One block a load level: throughput in its heading, latencies in milliseconds below."""
    blocks = []
    for result in results:
        total = result.summary
        heading = (
            f"{load_name(result)}: {total.output_tokens_per_s:.1f} output tok/s, {total.requests_per_s:.2f} req/s, "
            f"{total.requests - total.failed - total.cancelled - total.slow} ok, {total.failed} failed, "
            f"{total.prompt_tokens} prompt + {total.output_tokens} output tokens in {total.wall:.1f} s"
        )
        rows = [
            milliseconds("TTFT ms", total.ttft),
            milliseconds("TPOT ms", total.tpot),
            milliseconds("ITL ms", total.itl),
            milliseconds("E2E ms", total.e2e),
            milliseconds("send lag ms", total.lag),
            milliseconds("client lag ms", total.loop_lag),
        ]
        lines = [heading, table(["", *COLUMNS], rows)]
        if total.full_load:
            full = total.full_load
            lines.append(f"all users busy: {full.output_tokens_per_s:.1f} output tok/s over {full.seconds:.1f} s")
        if total.cancelled or total.slow:
            lines.append(
                f"not in these numbers: {total.cancelled} requests cancelled, {total.slow} read slowly "
                f"({total.slow_cut} of them cut off by the server)"
            )
        if total.unchecked:
            lines.append(f"{total.unchecked} answers had no usage: their tokens are counted from events, unchecked")
        lines.extend(outcome_lines(result))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def verdict(report: Report) -> str:
    """The report's last lines: valid, or why not."""
    if report.valid:
        return "valid"
    return "\n".join(["INVALID: do not use these numbers", *(f"  - {problem}" for problem in report.problems)])
