"""`--launch`: a server that is started for the run and stopped after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench.errors import BenchError
from denizen.bench.load import Clock
from denizen.bench.server import Launched, find_binary, free_port, own_python

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from denizen.bench.api import Target
    from denizen.bench.load import Job

DENIZEN = "denizen serve"
_PORT = "{port}"
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def server_of(options: argparse.Namespace) -> Launched | None:
    """The server that the options ask for, not yet started; `options.url` becomes its address. None without --launch.

    Raises BenchError for a command that cannot be run, or an address that is taken.
    """
    if options.launch is None:
        return None
    env, command, url = parse(options.launch, options.url)
    options.url = url
    server = Launched(
        command,
        url,
        env=env,
        ready_timeout=options.ready_timeout,
        log=options.launch_log or _scratch_log(),
        api_key=options.api_key,
    )
    if server.get("/v1/models") is not None:
        raise BenchError(
            f"--launch: a server answers at {url} already; stop it, or write --port {_PORT} in the command"
        )
    return server


def parse(command: str, url: str) -> tuple[dict[str, str], list[str], str]:
    """Environment, words and URL of a command line as a shell would read it, without the shell.

    `NAME=VALUE` words before the program go to its environment. `{port}` becomes a free port of 127.0.0.1; without it
    the server is expected at `url`, except that `denizen serve` is given a port.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BenchError(f"--launch {command!r}: {error}") from error
    env: dict[str, str] = {}
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        env[found[1]] = found[2]
        words.pop(0)
    if not words:
        raise BenchError(f"--launch {command!r}: expected a command line")
    if os.path.basename(words[0]) == "denizen":
        if "serve" in words[1:] and not any(word.partition("=")[0] == "--port" for word in words):
            words += ["--port", _PORT]
        if words[0] == "denizen":
            words[0] = find_binary()
        env = {**own_python(), **env}
    if any(_PORT in word for word in words):
        port = free_port()
        words = [word.replace(_PORT, str(port)) for word in words]
        url = f"http://127.0.0.1:{port}"
    return env, words, url


@contextlib.contextmanager
def running(server: Launched | None, options: argparse.Namespace) -> Iterator[None]:
    """Runs the server while the block lasts. Its log stays if the block fails or `--launch-log` names it."""
    if server is None:
        yield
        return
    if not options.quiet and sys.stderr.isatty():
        print(f"starting {shlex.join(server.command)}", file=sys.stderr)
    try:
        with server:
            try:
                yield
            except BenchError as error:
                # A server that died is the cause of whatever the client saw.
                try:
                    server.check_alive()
                except BenchError as death:
                    raise death from error
                raise
    except BenchError as error:
        raise BenchError(f"{error}\nthe server's log: {server.log_path}") from error
    if options.launch_log is None and server.log_path is not None:
        server.log_path.unlink(missing_ok=True)


def death_of(server: Launched | None) -> list[str]:
    """Why a result is invalid if the server has ended by itself."""
    try:
        if server is not None:
            server.check_alive()
    except BenchError as death:
        return [f"the server died: {death}"]
    return []


def startup(server: Launched, target: Target, job: Job) -> dict[str, Any]:
    """How long the server took to start: seconds from the start of its process until it was ready, and until the first
    answer began, to `job` sent as soon as it was ready.

    Raises BenchError if that request fails.
    """

    async def ask() -> float:
        async with target.connect() as client:
            clock = Clock(server.started)
            record = await client.send(job, clock.now(), clock)
        if record.error is not None:
            raise BenchError(f"the first request to the server failed: {record.error}")
        began: float = record.began
        return began

    return {"ready_s": server.ready_seconds, "first_answer_s": asyncio.run(ask())}


def _scratch_log() -> Path:
    handle, path = tempfile.mkstemp(prefix=f"denizen-bench-{time.strftime('%H%M%S')}-", suffix=".log")
    os.close(handle)
    return Path(path)
