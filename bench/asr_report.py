"""The report of transcription load: speed, latency, and what the transcripts are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from denizen.bench.report import COLUMNS, load_name, milliseconds, outcome_lines, table

if TYPE_CHECKING:
    from denizen.bench.schema import LoadResult, Quality, TranscriptSummary, WordErrors


def transcript_table(results: list[LoadResult[TranscriptSummary]]) -> str:
    """One block a load level."""
    blocks = []
    for result in results:
        total = result.summary
        heading = (
            f"{load_name(result)}: {total.requests_per_s:.2f} req/s, RTFx {total.audio_seconds_per_s:.1f}, "
            f"{total.requests - total.failed} ok, {total.failed} failed, "
            f"{total.audio_seconds:.0f} s of audio in {total.wall:.1f} s"
        )
        rows = [
            milliseconds("latency ms", total.e2e),
            milliseconds("send lag ms", total.lag),
            milliseconds("client lag ms", total.loop_lag),
        ]
        lines = [heading, table(["", *COLUMNS], rows), *quality_lines(total.quality)]
        if total.output_tokens:
            lines.append(f"{total.output_tokens} output tokens by the server's usage")
        if total.unchecked:
            lines.append(f"{total.unchecked} answers of forced length had no usage: their lengths are unchecked")
        lines.extend(outcome_lines(result))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def quality_lines(quality: Quality) -> list[str]:
    """Word errors, and what else is wrong with the transcripts; nothing about what had no reference."""
    lines = []
    for name, unit, errors in (("WER", "words", quality.wer), ("CER", "characters", quality.cer)):
        if errors is not None and errors.words:
            lines.append(f"{name} {100 * errors.rate:.2f} % of {errors.words} {unit} ({_kinds(errors)})")
    if lines or quality.silent or quality.repeating:
        lines.append(
            f"{quality.empty} empty transcripts of speech, {quality.on_silence} of {quality.silent} silent clips with "
            f"words, {quality.repeating} transcripts that repeat a phrase over and over"
        )
    for found in quality.worst:
        lines.append(f"worst: {found['clip']}: {found['errors']} errors: {found['reference']!r} → {found['text']!r}")
    return lines


def _kinds(errors: WordErrors) -> str:
    return f"{errors.substitutions} wrong, {errors.deletions} missing, {errors.insertions} added"
