"""`denizen-bench frontend`: what the front end itself adds to a request, measured with a worker that has no model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import aiohttp
from denizen.bench import environment
from denizen.bench.errors import BenchError
from denizen.bench.options import add_report_options, finish, positive_float, positive_int, progress, shown
from denizen.bench.processes import idle_cpu
from denizen.bench.schema import Report
from denizen.bench.server import Server, builtin_checkpoint
from denizen.bench.stats import distribution

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import NoReturn

    from tqdm import tqdm

_MODEL = "bench"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "frontend",
        help="what the front end adds to a request, beside a bare HTTP echo; idle CPU",
        description="Starts `denizen serve` with the stub worker, which answers at once, and times one-token requests "
        "at concurrency 1, each beside the same body sent to a bare HTTP echo server; then CPU time while idle.",
    )
    parser.add_argument("--checkpoint", metavar="DIR", help="for its tokenizer (default: the built-in model)")
    parser.add_argument("--requests", type=positive_int, default=2000, metavar="N", help="default: %(default)s")
    parser.add_argument("--warm-up", type=positive_int, default=200, metavar="N", help="dropped (default: %(default)s)")
    parser.add_argument("--idle", type=positive_float, default=5.0, metavar="S", help="default: %(default)g s")
    add_report_options(parser, records=False)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    report = Report("frontend", environment.describe(), shown(options))
    checkpoint = options.checkpoint or builtin_checkpoint()
    arguments = ["--model", f"{_MODEL}={checkpoint}", "--devices", "cpu", "--worker-module", "denizen.worker.stub"]
    with Server(arguments) as server, http_echo() as echo:
        with progress(options.warm_up + options.requests, "req", options) as bar:
            samples = asyncio.run(_measure(server.url, echo, options, bar))
        report.figures["idle_cpu_percent"] = idle_cpu(server.pid, options.idle)
    report.figures["latency_ms"] = {name: distribution(values) for name, values in samples.items()}
    # Pair by pair: what disturbs the machine for a moment hits both requests of a pair alike.
    added = {
        name: distribution([one - base for one, base in zip(values, samples["echo"], strict=True)])
        for name, values in samples.items()
        if name != "echo"
    }
    report.figures["added_ms"] = added
    return finish(report, options)


async def _measure(url: str, echo: str, options: argparse.Namespace, bar: tqdm[NoReturn]) -> dict[str, list[float]]:
    """Milliseconds of each request, the kinds in turn; `options.warm_up` rounds are dropped."""
    common: dict[str, Any] = {"model": _MODEL, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    chat = {**common, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "echo": (echo, chat),
        "chat": (f"{url}/v1/chat/completions", chat),
        "chat, streamed": (f"{url}/v1/chat/completions", {**chat, "stream": True}),
        "completion of ids": (f"{url}/v1/completions", {**common, "prompt": [1, 2, 3, 4, 5, 6, 7, 8]}),
        "health": (f"{url}/health", {}),
    }
    samples: dict[str, list[float]] = {name: [] for name in kinds}
    async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
        for number in range(options.warm_up + options.requests):
            for name, (target, body) in kinds.items():
                method, data = ("POST", json.dumps(body).encode()) if body else ("GET", None)
                start = time.perf_counter()
                async with session.request(method, target, data=data) as response:
                    answer = await response.read()
                    if response.status != 200:
                        raise BenchError(f"{target} answered {response.status}: {answer[:200].decode()}")
                if number >= options.warm_up:
                    samples[name].append(1000 * (time.perf_counter() - start))
            bar.update()
    return samples


@contextlib.contextmanager
def http_echo() -> Iterator[str]:
    """URL of a bare HTTP echo server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        command = [sys.executable, "-m", "denizen.bench.echo", "http", str(listener.fileno())]
        child = subprocess.Popen(command, pass_fds=[listener.fileno()])
    try:
        yield url
    finally:
        child.terminate()
        child.wait(10)
