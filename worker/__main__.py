"""Entry of the worker process: attach to the arena, load the models, serve, exit.

Exit code 0: drained, terminated, or the front end has gone. 1: the worker could not start or broke; one line says why,
in an ERROR envelope with request 0, or on stderr where nobody is left to take that.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import logging
import os
import platform
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import denizen
from denizen.worker import env, lifeline
from denizen.worker.channel import Channel
from denizen.worker.config import WorkerConfig
from denizen.worker.errors import ConfigError, WorkerError
from denizen.worker.protocol import SCHEMA, Error, Hello, ProtocolError, Ready
from denizen.worker.signals import TerminationWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.worker.protocol import Envelope

_log = logging.getLogger("denizen.worker")

#: Longest time that a failing worker waits for room to say why.
_REPORT_S = 2.0
#: Requests in flight beyond those that run: they wait in the worker, so that a free row is filled at once.
_QUEUED_PER_ROW = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the worker; returns the exit code."""
    # Before any thread starts: threads inherit the mask, so only the watch sees SIGTERM.
    watch = TerminationWatch()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    parser = argparse.ArgumentParser(prog="python -m denizen.worker", description="A worker process of Denizen.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the front end")
    parser.add_argument("--config", required=True, help="JSON, see docs/design/protocol.md")
    options = parser.parse_args(arguments)
    lifeline.hold(options.fd)
    logging.basicConfig(level=env.log_level(), format="%(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    native: Any = importlib.import_module("denizen._native")
    try:
        arena = native.Arena.attach(options.fd)
    except Exception as error:
        print(f"denizen worker: cannot attach to the front end: {error}", file=sys.stderr)
        return 1
    channel = Channel(arena, (native.ArenaFull, native.SlabFull), native.MessageTooLarge)
    try:
        serve(channel, options.config, watch, ".".join(map(str, native.ABI)))
    except native.PeerGone:
        _log.info("the front end has gone")
    except WorkerError as error:
        return _fail(channel, native.PeerGone, error.code, str(error))
    except Exception as error:
        _log.exception("internal error")
        return _fail(channel, native.PeerGone, "internal", f"{type(error).__name__}: {error}")
    finally:
        arena.close()
    return 0


def serve(channel: Channel, config_json: str, watch: TerminationWatch, abi: str = "") -> None:
    """HELLO, load, READY, and the engine's loop until it ends."""
    channel.send(
        Hello(
            abi=abi,
            version=denizen.__version__,
            pid=os.getpid(),
            python=platform.python_version(),
            torch=_version("torch"),
            device=_device_of(config_json),
        )
    )
    _check_hello(channel.receive(-1, max_messages=1))
    config = WorkerConfig.from_json(config_json)
    if not config.models:
        raise ConfigError("--config names no models")
    # torch takes seconds to import: after HELLO, so that the front end knows the process is there.
    from denizen.worker.engine import Engine
    from denizen.worker.load import load_models
    from denizen.worker.phases import PhaseTimers

    folder = env.phases_folder()
    models = load_models(config, channel)
    timers = None
    if folder is not None:
        file = folder / f"phases-{os.getpid()}.jsonl"
        timers = PhaseTimers(file, worker=config.worker, resident=config.engine.resident)
    engine = Engine(channel, models, overlap=config.engine.overlap, stopwatch=timers)
    # What is there by now stays: the collector need not walk it again and again, which would hold up a step.
    gc.collect()
    gc.freeze()
    watch.on_term(lambda: engine.stop("terminated"))
    credits = sum(served.scheduler.rows.capacity for served in models) * (1 + _QUEUED_PER_ROW)
    channel.send(Ready(tuple(served.ready() for served in models), credits))
    engine.run()


def _check_hello(received: list[Envelope | ProtocolError]) -> None:
    first = received[0] if received else None
    if isinstance(first, ProtocolError):
        raise ConfigError(f"the front end's first envelope is malformed: {first}")
    if first is None or not isinstance(first.body, Hello):
        raise ConfigError("the front end's first envelope must be HELLO; both sides must be of one Denizen version")
    if first.body.schema != SCHEMA:
        raise ConfigError(
            f"the front end speaks schema {first.body.schema}, this worker {SCHEMA}; "
            "install one version of Denizen for both"
        )


def _device_of(config_json: str) -> str:
    try:
        return WorkerConfig.from_json(config_json).device
    except ConfigError:
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _fail(channel: Channel, gone: type[Exception], code: str, message: str) -> int:
    line = message.splitlines()[0] if message else code
    try:
        channel.send(Error(code, line))
        channel.finish(_REPORT_S)
    except gone:
        print(f"denizen worker: {line}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
