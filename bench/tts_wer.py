"""`denizen-bench tts-wer`: whether speech says what it should, as an ASR server hears it."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench import clips, environment, tts
from denizen.bench.api import choose_model
from denizen.bench.asr import AsrLoad
from denizen.bench.asr_client import AsrTarget
from denizen.bench.clips import Clip
from denizen.bench.crew import Crew
from denizen.bench.errors import BenchError
from denizen.bench.launch import running, server_of
from denizen.bench.levels import run_level
from denizen.bench.load import ClosedLoop
from denizen.bench.options import add_report_options, add_server_options, finish, positive_int, progress, shown
from denizen.bench.quality import assess, has_words, normalize
from denizen.bench.schema import Report, Transcript

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import NoReturn

    from denizen.bench.api import Target
    from denizen.bench.levels import Load
    from denizen.bench.schema import Attempt, LoadResult
    from denizen.bench.speech_schema import Spoken
    from denizen.bench.tts_client import TtsTarget
    from tqdm import tqdm

_MANIFEST = "manifest.jsonl"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "tts-wer",
        help="word errors of speech, as an ASR server hears it",
        description="Has texts spoken by a server with /v1/audio/speech, has the audio transcribed by a server with "
        "/v1/audio/transcriptions, and reports the word error rate between the two, worst cases first. Failed requests "
        "and transcripts that say nothing about the speech make the result invalid and the exit status 1.",
    )
    add_server_options(parser)
    hearing = parser.add_argument_group("server that transcribes")
    hearing.add_argument("--asr-url", metavar="URL", help="base URL (default: that of --url)")
    hearing.add_argument("--asr-model", metavar="MODEL", help="default: the only one that the server offers")
    hearing.add_argument("--asr-api-key", metavar="KEY", help="sent as a bearer token")
    group = parser.add_argument_group("requests")
    tts.add_speech_options(group)
    group.add_argument(
        "--requests", type=positive_int, metavar="N", help="texts (default: those of the file once, or 64 drawn ones)"
    )
    group.add_argument("--seed", type=int, default=0, help="of texts, voices and sampling (default: 0)")
    group.add_argument(
        "--concurrency", type=positive_int, default=4, metavar="N", help="requests at once (default: %(default)s)"
    )
    group.add_argument(
        "--wav-dir", type=Path, metavar="DIR", help=f"keep the audio here, with a {_MANIFEST} that `asr --data` reads"
    )
    add_report_options(parser)
    # Whole answers: nothing is timed here.
    parser.set_defaults(run=run, stream="none", format="wav", jitter_ms=0.0)


def run(options: argparse.Namespace) -> int:
    report = Report("tts-wer", environment.describe(), shown(options))
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as scratch:
        folder = _folder(options.wav_dir) if options.wav_dir else Path(scratch)
        records = _measure(options, report, folder)
    return finish(report, options, records=records)


def _folder(wanted: Path) -> Path:
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"--wav-dir {wanted}: {error}") from error
    if any(wanted.glob("*.wav")):
        raise BenchError(f"--wav-dir {wanted}: there is audio in it already; name another folder")
    return wanted


def _measure(options: argparse.Namespace, report: Report, folder: Path) -> list[Attempt]:
    server = server_of(options)
    target, load = _speaking(options, folder)
    ears = AsrTarget(
        url=options.asr_url or options.url,
        model=options.asr_model or "",
        api_key=options.asr_api_key or (None if options.asr_url else options.api_key),
        timeout=options.timeout,
        clips=(),
    )
    with running(server, options):
        target, ears = choose_model(target), choose_model(ears, "--asr-")
        report.options |= {"model": target.model, "asr_url": ears.url, "asr_model": ears.model}
        with progress(2 * load.requests, "req", options) as bar:
            loop = ClosedLoop(options.concurrency)
            spoken: list[Spoken] = _once(report, "speaking", target, load, loop, bar)
            audio = _clips(folder, spoken)
            ears = dataclasses.replace(ears, clips=tuple(audio))
            hearing = AsrLoad(audio, len(audio), options.seed)
            heard: list[Transcript] = _once(report, "hearing", ears, hearing, loop, bar)
    report.data = {"seed": options.seed, **load.data(), "clips": len(audio), "clips_sha256": clips.sha256(audio)}
    good = [record for record in heard if record.error is None]
    report.problems.extend(vacuous(good))
    if voices := _by_voice(spoken, good):
        report.figures["by_voice"] = voices
    return [*spoken, *heard]


def _speaking(options: argparse.Namespace, folder: Path) -> tuple[TtsTarget, tts.TtsLoad]:
    count, options.requests = options.requests, options.requests or 64
    target, load = tts.prepare(options, folder)
    if count is None and load.texts is not None:
        load.requests = len(load.texts)
    return dataclasses.replace(target, save=folder), load


def _once(
    report: Report, name: str, target: Target, load: Load[Any, Any], loop: ClosedLoop, bar: tqdm[NoReturn]
) -> list[Any]:
    """Sends each job of the load once, without a warm-up; adds the result and what speaks against it."""
    if not load.requests:
        report.problems.append(f"{name}: there is nothing to send")
        return []
    with Crew(target, 1) as crew:
        found: tuple[LoadResult[Any], list[Any]] = run_level(crew, load, loop, [[], load.jobs(0, 0)], bar)
    result, records = found
    result.load["name"] = name
    for record in records:
        record.level = name
    report.results.append(result)
    if result.failures:
        report.problems.append(f"{name}: {result.summary.failed} requests failed: {result.failures[0]}")
    return records


def _clips(folder: Path, spoken: Sequence[Spoken]) -> list[Clip]:
    """What was spoken well, as recordings with references; writes their manifest."""
    found = []
    with (folder / _MANIFEST).open("w", encoding="utf-8") as out:
        for record in spoken:
            if record.error is not None:
                continue
            name = f"{record.index:05}.wav"
            found.append(Clip(name, folder / name, record.seconds, record.text, record.language))
            row = {"path": name, "text": record.text, "language": record.language, "voice": record.voice}
            line = {key: value for key, value in row.items() if value is not None}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
    return found


def _by_voice(spoken: Sequence[Spoken], heard: Sequence[Transcript]) -> dict[str, dict[str, Any]]:
    """Error rates of each voice; empty if there are not several."""
    voices = {f"{record.index:05}.wav": record.voice for record in spoken if record.voice is not None}
    names = sorted(set(voices.values()))
    if len(names) < 2:
        return {}
    found = {}
    for name in names:
        own = [record for record in heard if voices.get(record.clip) == name]
        quality = assess(own)
        found[name] = {
            "texts": len(own),
            "wer_rate": quality.wer and quality.wer.rate,
            "cer_rate": quality.cer and quality.cer.rate,
            "empty": quality.empty,
        }
    return found


def vacuous(heard: Sequence[Transcript]) -> list[str]:
    """Why word errors of these transcripts say nothing about the speech."""
    if not heard:
        return []  # all of them failed, and that is a problem already
    wanted = {normalize(record.reference or "", record.language) for record in heard}
    if not any(map(has_words, wanted)):
        return ["no text has a word: there is nothing to compare"]
    said = {normalize(record.text, record.language) for record in heard}
    if not any(map(has_words, said)):
        return [f"all {len(heard)} transcripts are empty: does the ASR server hear, and is this speech?"]
    if len(said) == 1 < len(wanted):
        return [f"all {len(heard)} transcripts are {said.pop()!r}: does the ASR server hear, and is this speech?"]
    return []
