"""`denizen-bench tts`: speech load on any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench import sentences
from denizen.bench.errors import BenchError
from denizen.bench.kind import Kind
from denizen.bench.options import positive_float, positive_int
from denizen.bench.speech_schema import SpeechSummary, Spoken
from denizen.bench.stats import distribution
from denizen.bench.summary import common
from denizen.bench.tts_client import STREAMED, Job, TtsTarget
from denizen.bench.workload import digest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.bench.sentences import Sentence
    from denizen.bench.strain import Strain

_FASTEST = 100.0


def body_field(text: str) -> tuple[str, Any]:
    """`NAME=VALUE`; a value that is JSON is that, any other a string."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got '{text}'")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def decibels(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 1.0
    if not -math.inf < value < 0:
        raise argparse.ArgumentTypeError(f"expected a loudness below 0 dB, got '{text}'")
    return value


def milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected milliseconds from 0 on, got '{text}'")
    return value


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    add_speech_options(group)
    group.add_argument(
        "--stream",
        choices=("audio", "sse", "none"),
        default="audio",
        help="the body as it is made, server-sent events, or whole answers: E2E and RTF only (default: %(default)s)",
    )
    group.add_argument(
        "--jitter-ms",
        type=milliseconds,
        default=100.0,
        metavar="MS",
        help="a player's wait between the first sample and its start, for underruns (default: %(default)g)",
    )
    group.add_argument("--requests", type=positive_int, default=64, metavar="N", help="a pass (default: %(default)s)")


def add_speech_options(parser: argparse._ActionsContainer) -> None:
    """What is spoken, how, and what counts as speech."""
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        help="one a line, or .jsonl with text, voice, language, instructions (default: sentences drawn from --seed)",
    )
    parser.add_argument("--voice", nargs="+", metavar="V", help="of texts that name none; of several, one is drawn")
    parser.add_argument("--language", help="of texts that name none")
    parser.add_argument("--instructions", help="of texts that have none")
    parser.add_argument(
        "--format",
        choices=("pcm", "wav", "flac", "mp3", "opus"),
        default="pcm",
        help="only pcm and wav can be streamed (default: %(default)s)",
    )
    parser.add_argument(
        "--sample-rate",
        type=positive_int,
        metavar="HZ",
        help="that every answer must have (default: what the server says; PCM that says nothing: 24000)",
    )
    parser.add_argument(
        "--floor-db",
        type=decibels,
        default=-50.0,
        metavar="DB",
        help="10 ms louder than this are a sound, in dB of full scale (default: %(default)g)",
    )
    parser.add_argument(
        "--max-chars-per-s",
        type=positive_float,
        default=_FASTEST,
        metavar="N",
        help="a text spoken faster than this has been cut short: a failure (default: %(default)g)",
    )
    parser.add_argument("--no-seed", action="store_true", help="send no `seed`, for servers that refuse it")
    parser.add_argument(
        "--field",
        type=body_field,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another field of every body, the value JSON or a string, for example speed=1.2; repeatable",
    )


def prepare(options: argparse.Namespace, _: Path) -> tuple[TtsTarget, TtsLoad]:
    if options.stream != "none" and options.format not in STREAMED:
        raise BenchError(f"--format {options.format} cannot be streamed: use --format pcm or wav, or --stream none")
    target = TtsTarget(
        url=options.url,
        model=options.model or "",
        api_key=options.api_key,
        timeout=options.timeout,
        stream=options.stream,
        response_format=options.format,
        rate=options.sample_rate,
        jitter=options.jitter_ms / 1000,
        floor_db=options.floor_db,
        extra=dict(options.field),
    )
    load = TtsLoad(
        requests=options.requests,
        seed=options.seed,
        texts=sentences.read(options.texts, "--texts") if options.texts else None,
        voices=tuple(options.voice or ()),
        language=options.language,
        instructions=options.instructions,
        fastest=options.max_chars_per_s,
        seeded=not options.no_seed,
        jitter_ms=None if options.stream == "none" else options.jitter_ms,
    )
    return target, load


@dataclass
class TtsLoad:
    """Texts to be spoken (:class:`denizen.bench.levels.Load`); two with equal arguments make equal jobs.

    Each pass draws new sentences, or takes those of a file in a shuffled order, repeating if there are fewer than
    `requests`.
    """

    requests: int
    seed: int
    texts: Sequence[Sentence] | None = None
    voices: Sequence[str] = ()
    language: str | None = None
    instructions: str | None = None
    fastest: float = _FASTEST
    """Characters a second of audio from which on an answer counts as cut short."""
    seeded: bool = True
    jitter_ms: float | None = None
    """Of a player's buffer; None for whole answers."""
    _digests: dict[tuple[int, int], bytes] = field(default_factory=dict, repr=False)

    def jobs(self, level: int, number: int) -> list[Job]:
        rng = random.Random(f"{self.seed}/{level}/{number}")
        order = list(self.texts or sentences.draw(rng.getrandbits(31), self.requests))
        if self.texts:
            order = []
            while len(order) < self.requests:
                order.extend(rng.sample(self.texts, len(self.texts)))
        jobs = [self._job(index, sentence, rng) for index, sentence in enumerate(order[: self.requests])]
        rows = [[job.text, job.voice, job.language, job.instructions, job.seed] for job in jobs]
        self._digests[level, number] = hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).digest()
        return jobs

    def _job(self, index: int, sentence: Sentence, rng: random.Random) -> Job:
        voice = rng.choice(self.voices) if self.voices else None
        return Job(
            index=index,
            text=sentence.text,
            voice=sentence.voice or voice,
            language=sentence.language or self.language,
            instructions=sentence.instructions or self.instructions,
            seed=rng.getrandbits(31) if self.seeded else None,
        )

    def data(self) -> dict[str, Any]:
        return {"sha256": digest_of(self._digests)}

    def check(self, record: Spoken) -> str | None:
        # Audio that breaks off costs the server less than the text that was to be spoken.
        if record.error is None and len(record.text) > self.fastest * record.seconds:
            return f"only {record.seconds:.2f} s of audio for {len(record.text)} characters (see --max-chars-per-s)"
        return record.error

    def summarize(
        self, records: Sequence[Spoken], wall: float, strains: Sequence[Strain], users: int | None = None
    ) -> SpeechSummary:
        good = [record for record in records if record.error is None]
        audio = sum(record.seconds for record in good)
        streamed = self.jitter_ms is not None
        return SpeechSummary(
            **common(records, good, wall, strains),
            audio_seconds=audio,
            audio_seconds_per_s=audio / wall if wall > 0 else 0.0,
            characters=sum(len(record.text) for record in good),
            ttfb=distribution([record.ttfb for record in good if record.ttfb is not None]),
            first_playable=distribution([r.first_playable for r in good if r.first_playable is not None]),
            first_audible=distribution([r.first_audible for r in good if r.first_audible is not None]),
            rtf=distribution([record.rtf for record in good if record.rtf is not None]),
            audio_s=distribution([record.seconds for record in good]),
            leading_silence=distribution([r.leading_silence for r in good if r.leading_silence is not None]),
            jitter_ms=self.jitter_ms,
            underruns=sum(record.underruns for record in good) if streamed else None,
            interrupted=sum(record.underruns > 0 for record in good) if streamed else None,
            stalled=distribution([record.stalled for record in good if record.underruns]),
        )

    def total(
        self, records: Sequence[Spoken], passes: Sequence[SpeechSummary], strains: Sequence[Strain]
    ) -> SpeechSummary:
        return self.summarize(records, sum(part.wall for part in passes), strains)


KIND = Kind(
    name="tts",
    help="speech on an OpenAI-compatible server: first sound, real-time factor, underruns",
    description="Sends texts to /v1/audio/speech of any OpenAI-compatible server and reports when the first byte, the "
    "first playable sample and the first audible sound come, the real-time factor, seconds of audio a second and "
    "underruns of a player. Failed requests, and audio that is silent, cut off or malformed, make the result invalid "
    "and the exit status 1.",
    record=Spoken,
    add_options=_add_options,
    prepare=prepare,
)
