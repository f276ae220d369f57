"""The report of speech load: when it is heard, how fast it is made, and whether a player would run dry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from denizen.bench.report import COLUMNS, load_name, milliseconds, outcome_lines, table

if TYPE_CHECKING:
    from denizen.bench.schema import LoadResult
    from denizen.bench.speech_schema import SpeechSummary
    from denizen.bench.stats import Distribution


def speech_table(results: list[LoadResult[SpeechSummary]]) -> str:
    """One block a load level."""
    blocks = []
    for result in results:
        total = result.summary
        heading = (
            f"{load_name(result)}: {total.audio_seconds_per_s:.2f} s of audio a second, "
            f"{total.requests_per_s:.2f} req/s, {total.requests - total.failed} ok, {total.failed} failed, "
            f"{total.audio_seconds:.0f} s of audio in {total.wall:.1f} s"
        )
        first = [
            milliseconds("first byte ms", total.ttfb),
            milliseconds("first playable ms", total.first_playable),
            milliseconds("first audible ms", total.first_audible),
        ]
        rows = [
            *(() if total.jitter_ms is None else first),
            milliseconds("E2E ms", total.e2e),
            _plain("RTF", total.rtf),
            _plain("audio s", total.audio_s),
            milliseconds("leading silence ms", total.leading_silence),
            milliseconds("send lag ms", total.lag),
            milliseconds("client lag ms", total.loop_lag),
        ]
        lines = [heading, table(["", *COLUMNS], rows)]
        if total.jitter_ms is not None:
            lines.append(_continuity(total, total.jitter_ms))
        lines.extend(outcome_lines(result))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _continuity(total: SpeechSummary, jitter_ms: float) -> str:
    good = total.requests - total.failed
    text = f"{total.underruns} underruns in {total.interrupted} of {good} answers "
    text += f"with {jitter_ms:g} ms of jitter buffer"
    if total.stalled is not None:
        mean, most = 1000 * total.stalled.mean, 1000 * total.stalled.max
        text += f", which stalled for {mean:.0f} ms in the mean, {most:.0f} at most"
    return text


def _plain(name: str, values: Distribution | None) -> list[str]:
    if values is None:
        return [name, *("–" for _ in COLUMNS)]
    return [name, *(f"{getattr(values, column):.3f}" for column in COLUMNS)]
