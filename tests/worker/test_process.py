"""The worker as a process of its own, over a real arena."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from denizen.worker.protocol import (
    Abort,
    Audio,
    Bye,
    Done,
    Drain,
    Error,
    Hello,
    Ready,
    Stats,
    Submit,
    Tokens,
    decode,
    encode,
)

from tests.models.tiny import build

_native = pytest.importorskip("denizen._native", reason="the extension is not built")

DEADLINE_S = 90.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return build("llama", tmp_path_factory.mktemp("llama"))


class Worker:
    """A worker process and the front end's end of its arena."""

    def __init__(
        self, *, hello: bool = True, module: str = "denizen.worker", stub: dict | None = None, **config
    ) -> None:
        self.host, fd = _native.HostArena.create("worker 0")
        config = {"worker": 0, "device": "cpu", "threads": 1, "kv_tokens": 4096, "max_rows": 4, **config}
        command = [sys.executable, "-m", module, "--fd", str(fd), "--config", json.dumps(config)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "DENIZEN_STUB": json.dumps(stub or {})}
        self.process = subprocess.Popen(command, pass_fds=[fd], stderr=subprocess.PIPE, text=True, env=environment)
        os.close(fd)
        self.bodies: list = []
        self.ended: dict[int, Done | Error] = {}
        self.tokens: dict[int, list[int]] = {}
        self.audio: dict[int, list[tuple[Audio, bytes | None]]] = {}
        if hello:
            self.send(Hello(version="test", pid=os.getpid()))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_) -> None:
        self.host.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self.process.stderr.close()

    def send(self, body, request: int = 0, attachment: bytes | None = None) -> None:
        self.host.send(encode(body, request=request), attachment)

    def until(self, condition):
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"timed out; received {self.bodies[-5:]}"
            try:
                received = self.host.recv(timeout_ms=100)
            except _native.PeerGone:
                assert condition(), f"the worker has gone; received {self.bodies[-5:]}"
                continue
            for data, attachment in received:
                envelope = decode(data)
                self.bodies.append(envelope.body)
                if isinstance(envelope.body, Tokens):
                    for row in envelope.body.rows:
                        self.tokens.setdefault(row.request, []).append(row.token)
                elif isinstance(envelope.body, Audio):
                    self.audio.setdefault(envelope.request, []).append((envelope.body, attachment))
                elif isinstance(envelope.body, (Done, Error)):
                    self.ended[envelope.request] = envelope.body
        return found

    def body(self, kind):
        """The first body of this kind, waited for."""
        return self.until(lambda: next((body for body in self.bodies if isinstance(body, kind)), None))

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE_S)


def _model(path) -> list[dict]:
    return [{"name": "tiny", "path": str(path)}]


def test_a_worker_loads_serves_idles_and_drains(checkpoint):
    with Worker(models=_model(checkpoint)) as worker:
        ready = worker.body(Ready)
        hello = worker.bodies[0]
        assert isinstance(hello, Hello)
        assert hello.pid == worker.process.pid
        assert hello.abi == ".".join(map(str, _native.ABI))
        loads = [body.load for body in worker.bodies if isinstance(body, Stats)]
        assert loads[-1].done == loads[-1].total > 0
        (model,) = ready.models
        assert (model.name, model.family, model.vocab, model.rows) == ("tiny", "llama", 512, 4)
        assert model.kv_tokens == 4096
        assert len(model.fingerprint) == 64
        assert ready.credits >= model.rows
        for request in (1, 2):
            worker.send(Submit("tiny", [5, 6, 7], 12, temperature=0.0), request)
        worker.send(Submit("tiny", [5, 6, 7], 2000, temperature=0.0), 3)
        worker.until(lambda: len(worker.tokens.get(3, [])) > 2)
        worker.send(Abort(), 3)
        worker.until(lambda: len(worker.ended) == 3)
        assert worker.ended[3].reason == "abort"
        assert worker.tokens[1] == worker.tokens[2]
        assert len(worker.tokens[1]) == 12
        worker.until(lambda: isinstance(worker.bodies[-1], Stats) and worker.bodies[-1].running == 0)
        assert worker.bodies[-1].kv_pages == 0
        # Idle: no CPU. (Symptom: a core at 100 % while idle.)
        process = psutil.Process(worker.process.pid)
        worker.until(lambda: worker.host.heartbeat()["phase"] == "idle")
        before, begin = sum(process.cpu_times()[:2]), time.monotonic()
        worker.until(lambda: time.monotonic() - begin > 2.0)
        assert (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - begin) < 0.05
        # Ctrl-C reaches the whole process group; the front end decides.
        worker.process.send_signal(signal.SIGINT)
        worker.send(Drain())
        assert worker.body(Bye).why == "drained"
        assert worker.exit_code() == 0
        assert worker.host.heartbeat()["phase"] == "idle"


def test_a_worker_ends_when_the_front_end_closes(checkpoint):
    with Worker(models=_model(checkpoint)) as worker:
        worker.body(Ready)
        worker.send(Submit("tiny", [5], 2000, temperature=0.0), 1)
        worker.until(lambda: worker.tokens.get(1))
        worker.host.close()
        assert worker.exit_code() == 0


def test_a_worker_ends_when_the_front_end_closes_before_it_is_ready(checkpoint):
    with Worker(models=_model(checkpoint)) as worker:
        worker.body(Hello)
        worker.host.close()
        assert worker.exit_code() == 0


def test_sigterm_ends_an_idle_worker_cleanly(checkpoint):
    with Worker(models=_model(checkpoint)) as worker:
        worker.body(Ready)
        worker.until(lambda: worker.host.heartbeat()["phase"] == "idle")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.body(Bye).why == "terminated"
        assert worker.exit_code() == 0


BROKEN = {
    "unknown device": ({"device": "tpu"}, "device 'tpu' is unknown"),
    "no models": ({"models": []}, "no models"),
    "unknown key": ({"pages": 3}, "unknown key 'pages'"),
    "no folder": ({"models": _model("/nowhere/at/all")}, "/nowhere/at/all"),
    "huge cache": ({"kv_tokens": 2_100_000_000}, "lower kv_tokens or max_rows"),
    "tiny cache": ({"page_size": 0}, "'page_size' must be at least 1"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_worker_that_cannot_start_says_why_in_one_line(checkpoint, fault):
    change, message = BROKEN[fault]
    with Worker(**{"models": _model(checkpoint), **change}) as worker:
        error = worker.body(Error)
        assert worker.ended == {0: error}
        assert message in error.message
        assert "\n" not in error.message
        assert worker.exit_code() == 1
        assert not worker.process.stderr.read(), "the front end says it, once"


def test_a_front_end_of_another_schema_is_refused(checkpoint):
    with Worker(models=_model(checkpoint), hello=False) as worker:
        worker.send(Hello(schema=99))
        assert "schema 99" in worker.body(Error).message
        assert worker.exit_code() == 1


def test_nothing_is_left_in_shared_memory_when_a_worker_is_killed(checkpoint):
    with Worker(models=_model(checkpoint)) as worker:
        worker.body(Ready)
        worker.send(Submit("tiny", [5], 2000, temperature=0.0), 1)
        worker.until(lambda: worker.tokens.get(1))
        worker.process.send_signal(signal.SIGKILL)
        worker.exit_code()
        assert not [name for name in worker.host.names if Path("/dev/shm", name.lstrip("/")).exists()]
