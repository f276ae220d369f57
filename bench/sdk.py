"""`denizen-bench sdk`: what a call costs over shared memory, beside the same call over HTTP, in one run."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import struct
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
from denizen.bench import environment
from denizen.bench.errors import BenchError
from denizen.bench.options import add_report_options, finish, positive_float, positive_int, progress, shown
from denizen.bench.schema import Report
from denizen.bench.server import Server
from denizen.bench.sse import Events
from denizen.bench.stats import distribution, percentile
from denizen.bench.stub_models import write_ears, write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from denizen.shm import Client

    Call = Callable[[], float]
    """Makes one call and returns its size: tokens, or seconds of audio."""

MIB = 1 << 20
_TEXT, _EARS, _VOICE = "text", "ears", "voice"
_IDS = [1, 2, 3, 4, 5, 6, 7, 8]
_HEARD_RATE, _SPOKEN_RATE = 16_000, 24_000
_NO_LANGUAGE = "klingon"
_BOUNDARY = "denizen-bench"
_SIDES = ("http", "shm")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "sdk",
        help="calls over shared memory (denizen.shm) beside the same over HTTP",
        description="Starts `denizen serve` with the stub worker and makes the same calls over shared memory and over "
        "HTTP in turns: round trips without work, of one token and of many, whole and streamed; long audio in and out.",
    )
    parser.add_argument("--rounds", type=positive_int, default=1000, metavar="N", help="default: %(default)s")
    parser.add_argument("--warm-up", type=positive_int, default=100, metavar="N", help="dropped (default: %(default)s)")
    parser.add_argument("--tokens", type=positive_int, default=256, help="of the long answers (default: %(default)s)")
    parser.add_argument(
        "--audio-rounds", type=positive_int, default=10, metavar="N", help="after one to warm up (default: %(default)s)"
    )
    parser.add_argument(
        "--audio-seconds", type=positive_float, default=120.0, metavar="S", help="of a recording (default: %(default)g)"
    )
    add_report_options(parser, records=False)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    report = Report("sdk", environment.describe(), shown(options))
    rounds = 5 * (options.warm_up + options.rounds) + 2 * (1 + options.audio_rounds)
    with (
        stub_server() as (server, client),
        contextlib.closing(Http(server.port)) as web,
        progress(rounds, "round", options) as bar,
    ):
        short = _answers(client, web, options.tokens) | _upload(client, web, options.audio_seconds)
        text = _rounds(short, options.warm_up, options.rounds, bar.update)
        audio = _rounds(_audio(client, web, options.audio_seconds), 1, options.audio_rounds, bar.update)
    report.figures["round_trip_ms"] = {
        f"{name}, {side}": distribution([1000 * each for each in taken.seconds]) for (side, name), taken in text.items()
    }
    report.figures["http_over_shm"] = {
        name: {
            **{f"p{q}": _quantile(text["http", name], q) / _quantile(taken, q) for q in (50, 99)},
            "of_client_cpu": mean(text["http", name].cpu_seconds) / mean(taken.cpu_seconds),
        }
        for (side, name), taken in text.items()
        if side == "shm"
    }
    report.figures["audio"] = {f"{name}, {side}": _flow(taken, name) for (side, name), taken in audio.items()}
    report.figures["client_cpu_ms"] = {
        f"{name}, {side}": 1000 * mean(taken.cpu_seconds) for (side, name), taken in (text | audio).items()
    }
    return finish(report, options)


@dataclass
class Taken:
    """What one kind of call takes, round by round. ``size``: of each, tokens or seconds of audio."""

    size: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    """Of the calling process."""


def _rounds(
    calls: dict[tuple[str, str], Call], warm_up: int, rounds: int, done: Callable[[], Any]
) -> dict[tuple[str, str], Taken]:
    """What each call takes.

    One kind of call after the other, and of each kind the two ways in turns, there and back: what disturbs the machine
    for a while hits both alike, and neither always follows a call that left the caches and processors otherwise.
    """
    measured = {key: Taken() for key in calls}
    for name in dict.fromkeys(name for _, name in calls):
        for number in range(warm_up + rounds):
            for side in _SIDES if number % 2 == 0 else reversed(_SIDES):
                taken = measured[side, name]
                cpu, start = time.process_time(), time.perf_counter()
                size = calls[side, name]()
                seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
                if number >= warm_up:
                    taken.seconds.append(seconds)
                    taken.cpu_seconds.append(cpu_seconds)
                if number == 0:
                    taken.size = size
                elif size != taken.size:
                    raise BenchError(f"{name}, {side}: {size:g} instead of {taken.size:g}")
            done()
        web, shm = (measured[side, name].size for side in _SIDES)
        if web != shm:
            raise BenchError(f"{name}: {shm:g} over shared memory, {web:g} over HTTP")
    return measured


def _quantile(taken: Taken, q: int) -> float:
    return percentile(sorted(taken.seconds), q)


def _flow(taken: Taken, name: str) -> dict[str, float]:
    # The median round: one that a busy machine stretched tells nothing about the way.
    rate = taken.size / _quantile(taken, 50)
    hertz = _SPOKEN_RATE if name == "out" else _HEARD_RATE
    return {"audio_s_per_s": rate, "mib_per_s": rate * hertz * 4 / MIB}


def _answers(client: Client, web: Http, tokens: int) -> dict[tuple[str, str], Call]:
    def common(count: int) -> dict[str, Any]:
        return {"model": _TEXT, "max_tokens": count, "temperature": 0, "ignore_eos": True}

    def over_shm(count: int, stream: bool) -> Call:
        arguments = common(count)

        def whole() -> float:
            return float(client.generate(_IDS, **arguments).usage.completion_tokens)

        def streamed() -> float:
            with client.generate(_IDS, stream=True, **arguments) as pieces:
                return float(pieces.result().usage.completion_tokens)

        return streamed if stream else whole

    def over_http(count: int, stream: bool) -> Call:
        body = {**common(count), "prompt": _IDS}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        data = json.dumps(body).encode()
        ask = web.streamed if stream else web.whole
        return lambda: float(ask("/v1/completions", data)["usage"]["completion_tokens"])

    def models_over_http() -> float:
        return float(len(web.whole("/v1/models")["data"]))

    kinds = [("1 token", 1, False), (f"{tokens} tokens", tokens, False), (f"{tokens} tokens, streamed", tokens, True)]
    calls: dict[tuple[str, str], Call] = {
        ("http", "list of models"): models_over_http,
        ("shm", "list of models"): lambda: float(len(client.models())),
    }
    for name, count, stream in kinds:
        calls |= {("http", name): over_http(count, stream), ("shm", name): over_shm(count, stream)}
    return calls


def _noise(seconds: float) -> np.ndarray:
    return np.random.default_rng(0).uniform(-0.5, 0.5, round(seconds * _HEARD_RATE)).astype(np.float32)


def _hearing(pcm: np.ndarray, language: str) -> bytes:
    return _form({"model": _EARS, "language": language, "response_format": "verbose_json"}, _wav(pcm))


def _upload(client: Client, web: Http, seconds: float) -> dict[tuple[str, str], Call]:
    """The way in alone: parameters are checked when all of a recording has come, before any of it is heard."""
    from denizen.shm import BadRequest

    pcm = _noise(seconds)
    form = _hearing(pcm, _NO_LANGUAGE)

    def over_http() -> float:
        web.post("/v1/audio/transcriptions", form, _FORM_TYPE, expected=400).read()
        return seconds

    def over_shm() -> float:
        try:
            client.transcribe(pcm, _HEARD_RATE, model=_EARS, language=_NO_LANGUAGE)
        except BadRequest:
            return seconds
        raise BenchError(f"the language '{_NO_LANGUAGE}' was not refused")

    name = f"{seconds:g} s of sound, refused"
    return {("http", name): over_http, ("shm", name): over_shm}


def _audio(client: Client, web: Http, seconds: float) -> dict[tuple[str, str], Call]:
    pcm = _noise(seconds)
    form = _hearing(pcm, "en")
    # The stub speaks 80 ms for each byte; its context bounds the text.
    text = "a" * min(2000, max(1, round(seconds / 0.08)))
    spoken = json.dumps({"model": _VOICE, "input": text, "voice": "low", "response_format": "pcm"}).encode()

    def hear() -> float:
        return client.transcribe(pcm, _HEARD_RATE, model=_EARS, language="en").duration or 0.0

    def speak() -> float:
        with client.speak(text, model=_VOICE, voice="low") as speech:
            return sum(array.size for array in speech) / speech.sample_rate

    return {
        ("http", "in"): lambda: web.whole("/v1/audio/transcriptions", form, _FORM_TYPE)["duration"],
        ("shm", "in"): hear,
        ("http", "out"): lambda: len(web.post("/v1/audio/speech", spoken).read()) / 2 / _SPOKEN_RATE,
        ("shm", "out"): speak,
    }


class Http:
    """One kept-alive connection, with as little between socket and caller as Python's own library has."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def post(
        self, path: str, body: bytes | None, content_type: str = "application/json", expected: int = 200
    ) -> http.client.HTTPResponse:
        """GET where there is no body."""
        self._connection.request("GET" if body is None else "POST", path, body, {"Content-Type": content_type})
        response = self._connection.getresponse()
        if response.status != expected:
            raise BenchError(f"{path} answered {response.status}: {response.read()[:300].decode(errors='replace')}")
        return response

    def whole(self, path: str, body: bytes | None = None, content_type: str = "application/json") -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.post(path, body, content_type).read())
        return answer

    def streamed(self, path: str, body: bytes) -> dict[str, Any]:
        """The last event; each is parsed, as the other side's are."""
        response, events = self.post(path, body), Events()
        last: dict[str, Any] = {}
        while chunk := response.read1(65536):
            for data in events.feed(chunk):
                if data != b"[DONE]":
                    last = json.loads(data)
        if not events.done:
            raise BenchError(f"the stream of {path} ended without [DONE]: {last}")
        return last

    def close(self) -> None:
        self._connection.close()


_FORM_TYPE = f"multipart/form-data; boundary={_BOUNDARY}"


def _form(fields: dict[str, str], file: bytes) -> bytes:
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'.encode()
    return b"".join([*parts, head, file, f"\r\n--{_BOUNDARY}--\r\n".encode()])


def _wav(pcm: np.ndarray) -> bytes:
    """Float32 like what travels through the shared memory, so that both ways carry the same bytes."""
    data = pcm.astype("<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, _HEARD_RATE, 4 * _HEARD_RATE, 4, 32)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@contextlib.contextmanager
def stub_server() -> Iterator[tuple[Server, Client]]:
    """A server whose stub worker answers, hears and speaks, and a client of it."""
    try:
        from denizen.shm import Client
    except ImportError as error:
        raise BenchError(f"the client package cannot be imported ({error}); run `make setup`") from error
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as folder:
        root = Path(folder)
        write = {_TEXT: write_text, _EARS: write_ears, _VOICE: write_text}
        arguments = [part for name in write for part in ("--model", f"{name}={write[name](root / name)}")]
        arguments += ["--devices", "cpu", "--worker-module", "denizen.worker.stub", "--shm-name", "bench"]
        stub = json.dumps({"speech": {"models": [_VOICE], "sample_rate": _SPOKEN_RATE}})
        run_dir = root / "run"
        run_dir.mkdir(mode=0o700)
        env = {"DENIZEN_STUB": stub, "DENIZEN_RUN_DIR": os.fspath(run_dir)}
        with Server(arguments, env=env) as server, Client(path=run_dir / "bench.sock", audio=True) as client:
            yield server, client
