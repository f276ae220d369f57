"""``python -m denizen.worker.stub --fd N --config JSON``: see :mod:`denizen.worker.stub`."""

from __future__ import annotations

import argparse
import faulthandler
import os
import platform
import signal
import sys
import time

from denizen import __version__, _native
from denizen.worker import lifeline
from denizen.worker.channel import Channel
from denizen.worker.config import WorkerConfig, default_rows
from denizen.worker.protocol import (
    Abort,
    Bye,
    Done,
    Drain,
    Envelope,
    Error,
    Hello,
    Load,
    Ready,
    ReadyModel,
    Stats,
    Submit,
    TokenRow,
)
from denizen.worker.stub.engine import Engine
from denizen.worker.stub.hosted import Hosted
from denizen.worker.stub.options import Options

LOAD, PREFILL, DECODE, IDLE = 0, 2, 3, 4  # phases of the arena's heartbeat
STATS_SECONDS = 0.25
LOAD_BYTES = 100 << 20


class Stub:
    """The loop: receive, step, send; and the faults."""

    def __init__(self, arena: _native.Arena, config: WorkerConfig, options: Options) -> None:
        self._arena = arena
        self._channel = Channel(arena, (_native.ArenaFull, _native.SlabFull), _native.MessageTooLarge)
        self._config = config
        self._options = options
        self._fault = options.fault
        self._tokens = 0
        self._draining = False
        self._stats = Stats()
        self._stats_at = 0.0
        speech, context = options.speech, config.scheduler.max_context
        self._models = {
            m.name: Hosted.read(m.path, context, speech if speech and speech.speaks(m.name) else None)
            for m in config.models
        }
        self._kv_tokens = config.pools.kv_tokens or 1 << 20
        self._rows = config.scheduler.max_rows or default_rows("cpu", "text")
        self._engine = Engine(self._rows, self._kv_tokens, config.pools.page_size, self._models, options)

    def run(self) -> None:
        self._start()
        while True:
            self._receive()
            if self._draining and not self._engine.busy:
                break
            if self._engine.busy and not self._channel.backlog:
                self._step()
            self._report()
        self._report(at_once=True)
        self._channel.send(Bye("drained"))
        while self._channel.backlog:
            self._receive()

    def _start(self) -> None:
        hello = Hello(
            abi=".".join(map(str, _native.ABI)),
            version=__version__,
            pid=os.getpid(),
            python=platform.python_version(),
            device=self._config.device,
        )
        self._channel.send(hello)
        self._arena.set_phase(LOAD)
        self._misbehave("load")
        if self._options.load_ms:
            for tenth in range(1, 11):
                time.sleep(self._options.load_ms / 10_000)
                for model in self._config.models:
                    self._channel.send(Stats(load=Load(model.name, LOAD_BYTES * tenth // 10, LOAD_BYTES)))
        models = tuple(
            ReadyModel(
                name,
                family=model.family,
                kind=model.kind,
                context=model.context_length,
                vocab=model.vocab_size,
                rows=self._rows,
                kv_tokens=self._kv_tokens,
                sample_rate=model.says.sample_rate if model.says else 0,
                voices=model.says.voices if model.says else (),
            )
            for name, model in self._models.items()
        )
        self._arena.set_phase(IDLE)
        self._channel.send(Ready(models, credits=4 * self._rows))

    def _receive(self) -> None:
        """Handles what has come; waits only if there is nothing else to do."""
        timeout = 0
        if not self._engine.busy:
            self._arena.set_phase(IDLE)  # here, since an abort may have ended the last request
            timeout = -1
            if self._stats != self._engine.stats():
                timeout = max(0, int((self._stats_at + STATS_SECONDS - time.monotonic()) * 1000) + 1)
        if self._channel.backlog:
            timeout = 1
        for envelope in self._channel.receive(timeout):
            if not isinstance(envelope, Envelope):
                raise envelope
            body = envelope.body
            if isinstance(body, Submit):
                self._submit(envelope.request, body, envelope.attachment)
            elif isinstance(body, Abort) and not self._has("deaf"):
                done = self._engine.abort(envelope.request)
                if done is not None:
                    self._channel.send(done, envelope.request)
            elif isinstance(body, (Drain, Bye)):
                self._draining = True
        self._channel.flush()

    def _submit(self, request: int, submit: Submit, attachment: bytes | None) -> None:
        refusal = self._engine.submit(request, submit, attachment)
        if self._has("error"):
            self._engine.abort(request)
            refusal = Error("stub_error", "the stub was told to fail", retryable=True)
        if refusal is not None:
            self._channel.send(refusal, request)

    def _step(self) -> None:
        if self._engine.admit():
            self._arena.set_phase(PREFILL)
            self._misbehave("prefill")
        self._arena.set_phase(DECODE)
        if self._options.step_ms:
            time.sleep(self._options.step_ms / 1000)
        if self._tokens >= (self._fault.after_tokens if self._fault else 0):
            self._misbehave("decode")
        rows, spoken, ended = self._engine.step()
        self._tokens += len(rows) + len(spoken)
        self._channel.send_tokens(rows)
        for request, audio, samples in spoken:
            self._channel.send(audio, request, samples)
        for request, done in ended:
            self._channel.send(done, request)
            if self._has("double"):
                self._channel.send_tokens([TokenRow(request, done.completion, 0)])
                self._channel.send(Done("length"), request)

    def _report(self, at_once: bool = False) -> None:
        stats = self._engine.stats()
        now = time.monotonic()
        if stats != self._stats and (at_once or now - self._stats_at >= STATS_SECONDS):
            self._stats, self._stats_at = stats, now
            self._channel.send(stats)

    def _has(self, kind: str) -> bool:
        return self._fault is not None and self._fault.kind == kind

    def _misbehave(self, when: str) -> None:
        fault = self._fault
        if fault is None or fault.when != when:
            return
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "exit":
            sys.exit("the stub was told to exit")
        elif fault.kind in ("hang", "stubborn"):
            if fault.kind == "stubborn":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)
        elif fault.kind == "garbage":
            self._arena.send(b"\xc1 this is no envelope")


def main() -> None:
    """Entry point; ends with status 0 when drained or when the front end has gone."""
    parser = argparse.ArgumentParser(prog="python -m denizen.worker.stub", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="this side's end of the inherited socketpair")
    parser.add_argument("--config", required=True, help="JSON, see docs/design/protocol.md")
    parser.add_argument("--stub", default=os.environ.get("DENIZEN_STUB", ""), help="JSON, see stub/options.py")
    arguments = parser.parse_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    lifeline.hold(arguments.fd)
    config = WorkerConfig.from_json(arguments.config)
    options = Options.from_json(arguments.stub, config.worker)
    if options.fault is not None and options.fault.when == "start":
        sys.exit("the stub was told to exit")
    try:
        arena = _native.Arena.attach(arguments.fd)
        Stub(arena, config, options).run()
        arena.close()
    except _native.PeerGone:
        return


if __name__ == "__main__":
    main()
