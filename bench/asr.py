"""`denizen-bench asr`: transcription load on any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench import clips, synthetic
from denizen.bench.asr_client import AsrTarget, Job
from denizen.bench.errors import BenchError
from denizen.bench.kind import Kind
from denizen.bench.options import positive_int
from denizen.bench.quality import assess
from denizen.bench.schema import Transcript, TranscriptSummary
from denizen.bench.stats import distribution
from denizen.bench.summary import common
from denizen.bench.synthetic import Lengths
from denizen.bench.workload import digest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.clips import Clip
    from denizen.bench.strain import Strain

SYNTHETIC_CLIPS = 640
SECONDS = Lengths(2.0, 20.0, 7.4)


def spread(text: str) -> Lengths:
    """`MIN:MAX` or `MIN:MAX:MEAN`."""
    try:
        low, high, *rest = [float(part) for part in text.split(":")]
        [mean] = rest or (None,)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected MIN:MAX or MIN:MAX:MEAN, got '{text}'") from error
    if not 0 < low <= high < float("inf") or (mean is not None and not low <= mean <= high):
        raise argparse.ArgumentTypeError(f"expected 0 < MIN ≤ MEAN ≤ MAX, got '{text}'")
    return Lengths(low, high, mean)


def form_field(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got '{text}'")
    return name, value


def _add_options(options: argparse.ArgumentParser) -> None:
    parser = options.add_argument_group("requests")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="manifest (.jsonl or .tsv with path, text, language, duration), or a folder: LibriSpeech's layout, or "
        "audio files with NAME.txt beside them",
    )
    source.add_argument("--synthetic", action="store_true", help="speech-like clips drawn from --seed, no references")
    source.add_argument(
        "--synthetic-from", type=Path, nargs="+", metavar="FILE", help="the same cut from 16 kHz recordings"
    )
    parser.add_argument(
        "--silence",
        type=positive_int,
        metavar="N",
        help="add N clips of silence, faint hiss, rumble and hum: words in their transcripts are invented",
    )
    parser.add_argument(
        "--clips", type=positive_int, metavar="N", help=f"use the first N (default: all; synthetic: {SYNTHETIC_CLIPS})"
    )
    parser.add_argument(
        "--seconds",
        type=spread,
        default=SECONDS,
        metavar="MIN:MAX[:MEAN]",
        help="lengths of clips that are made (2:20:7.4)",
    )
    parser.add_argument(
        "--format", choices=("wav", "flac"), default="flac", help="of clips that are made (%(default)s)"
    )
    parser.add_argument("--requests", type=positive_int, metavar="N", help="a pass (default: each clip once)")
    parser.add_argument("--language", help="of clips that name none (default: the server detects it)")
    parser.add_argument(
        "--response-format",
        choices=("json", "text", "verbose_json", "srt", "vtt"),
        default="json",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--output-tokens",
        type=spread,
        metavar="MIN:MAX[:MEAN]",
        help="force the lengths of answers: for random weights, on Denizen only (max_tokens with ignore_eos)",
    )
    parser.add_argument(
        "--field",
        type=form_field,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another field of every form, for example temperature=0; repeatable",
    )


def prepare(options: argparse.Namespace, scratch: Path) -> list[Clip]:
    """The clips that the options ask for, those that are made in `scratch`. Raises BenchError for none."""
    found: list[Clip] = []
    if options.data is not None:
        found = clips.read(options.data)[: options.clips]
    elif options.synthetic or options.synthetic_from:
        count = options.clips or SYNTHETIC_CLIPS
        found = synthetic.make(scratch, count, options.seconds, options.format, options.seed, options.synthetic_from)
    if options.silence:
        if options.output_tokens:
            raise BenchError(
                "--silence: answers of forced length (--output-tokens) cannot be empty; leave one of them out"
            )
        found += synthetic.silence(scratch, options.silence, options.seconds, options.format, options.seed)
    if not found:
        raise BenchError("asr needs recordings: give --data, --synthetic, --synthetic-from or --silence")
    if options.language:
        found = [dataclasses.replace(clip, language=clip.language or options.language) for clip in found]
    return found


def _prepare(options: argparse.Namespace, scratch: Path) -> tuple[AsrTarget, AsrLoad]:
    chosen = tuple(prepare(options, scratch))
    target = AsrTarget(
        url=options.url,
        model=options.model or "",
        api_key=options.api_key,
        timeout=options.timeout,
        clips=chosen,
        response_format=options.response_format,
        fields=dict(options.field),
    )
    return target, AsrLoad(chosen, options.requests or len(chosen), options.seed, options.output_tokens)


def describe(chosen: Sequence[Clip]) -> dict[str, Any]:
    """What a result says about its clips."""
    return {
        "clips": len(chosen),
        "clips_sha256": clips.sha256(chosen),
        "clip_seconds": distribution([clip.seconds for clip in chosen]),
        "clip_bytes": sum(clip.path.stat().st_size for clip in chosen),
        "without_reference": sum(clip.text is None for clip in chosen),
    }


@dataclass
class AsrLoad:
    """Uploads (:class:`denizen.bench.levels.Load`); two with equal arguments make equal jobs.

    Each pass takes the clips in a shuffled order, repeating if there are fewer than `requests`.
    """

    clips: Sequence[Clip]
    requests: int
    seed: int
    output_tokens: Lengths | None = None
    _digests: dict[tuple[int, int], bytes] = field(default_factory=dict, repr=False)

    def jobs(self, level: int, number: int) -> list[Job]:
        rng = random.Random(f"{self.seed}/{level}/{number}")
        order: list[int] = []
        while len(order) < self.requests:
            order.extend(rng.sample(range(len(self.clips)), len(self.clips)))
        jobs = [
            Job(index, clip, self.output_tokens.draw_int(rng) if self.output_tokens else None)
            for index, clip in enumerate(order[: self.requests])
        ]
        rows = [[job.clip, job.max_tokens] for job in jobs]
        self._digests[level, number] = hashlib.sha256(json.dumps(rows).encode()).digest()
        return jobs

    def sha256(self) -> str:
        """Hash of all jobs made so far."""
        return digest_of(self._digests)

    def data(self) -> dict[str, Any]:
        return {"sha256": self.sha256(), **describe(self.clips)}

    def check(self, record: Transcript) -> str | None:
        if record.error is not None or record.max_tokens is None or record.output_tokens is None:
            return record.error
        # A shorter answer costs the server less than the one that was asked for.
        if record.output_tokens != record.max_tokens:
            return f"{record.output_tokens} tokens instead of {record.max_tokens}"
        return None

    def summarize(
        self, records: Sequence[Transcript], wall: float, strains: Sequence[Strain], users: int | None = None
    ) -> TranscriptSummary:
        good = [record for record in records if record.error is None]
        audio = sum(record.seconds for record in good)
        counts = [record.output_tokens for record in good if record.output_tokens is not None]
        return TranscriptSummary(
            **common(records, good, wall, strains),
            audio_seconds=audio,
            audio_seconds_per_s=audio / wall if wall > 0 else 0.0,
            output_tokens=sum(counts) if counts else None,
            unchecked=sum(record.max_tokens is not None and record.output_tokens is None for record in good),
            quality=assess(good),
        )

    def total(
        self, records: Sequence[Transcript], passes: Sequence[TranscriptSummary], strains: Sequence[Strain]
    ) -> TranscriptSummary:
        return self.summarize(records, sum(part.wall for part in passes), strains)


KIND = Kind(
    name="asr",
    help="transcription on an OpenAI-compatible server: speed and word errors",
    description="Uploads recordings to /v1/audio/transcriptions of any OpenAI-compatible server and reports "
    "requests/s, seconds of audio a second (RTFx), latency, and against reference texts the word error rate, empty "
    "and invented transcripts. Any failed request makes the result invalid and the exit status 1.",
    record=Transcript,
    add_options=_add_options,
    prepare=_prepare,
)
