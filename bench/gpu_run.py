"""What the GPU sub-commands share: servers for their loads, a budget, parts that stand alone."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from denizen.bench.errors import BenchError
from denizen.bench.report.result import RESULT
from denizen.bench.schema import Summary
from denizen.bench.server import Server

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from denizen.bench.schema import LoadResult, Report

MODEL = "bench"


class Named(Protocol):
    """A load with its name in the table."""

    name: str


L = TypeVar("L", bound=Named)
S = TypeVar("S", bound=Summary)


@dataclass
class GpuRun(Generic[L, S]):
    """A run; `measure` is the sub-command's own."""

    options: argparse.Namespace
    report: Report
    scratch: Path
    loads: dict[str, LoadResult[S]] = field(default_factory=dict)
    """By their names in the table; `results` of the report in the same order."""
    started: float = field(default_factory=time.monotonic)
    folder: Path = field(init=False)
    """The checkpoint."""
    servers: int = 0

    def measure(self, server: Server, load: L) -> None:
        """Puts a load on a server and its result into `loads`. Raises BenchError when the budget is used up."""
        raise NotImplementedError

    def attempt(self, what: str, part: Callable[[], None]) -> None:
        """Runs a part; whatever it raises becomes a problem of the result."""
        begun = time.monotonic()
        try:
            part()
        except Exception as error:
            self.report.problems.append(f"{what}: {type(error).__name__}: {error}")
        self.report.figures.setdefault("seconds", {})[what] = round(time.monotonic() - begun, 1)
        self.report.write(self.options.out / RESULT)

    def serve(
        self,
        loads: list[L],
        extra: list[str] | None = None,
        env: dict[str, str] | None = None,
        after: Callable[[L], None] | None = None,
    ) -> None:
        """Measures `loads` on one server; after one that fails, the rest on a fresh one, which has no requests left.

        `after` is called when a load has been answered and the server still runs.
        """
        arguments = ["--model", f"{MODEL}={self.folder}", "--devices", self.options.device]
        arguments += ["--python", sys.executable, *(extra or [])]
        pending = list(loads)
        while pending:
            self.check_budget()
            server = Server(
                [*arguments, *self.options.server_arg],
                env=env,
                ready_timeout=self.options.ready_timeout,
                stop_timeout=5.0,
            )
            self.servers += 1
            begun = time.monotonic()
            server.start()
            try:
                server.wait_ready()
                ready = self.report.figures.setdefault("seconds_to_ready", [])
                ready.append(round(time.monotonic() - begun, 1))
                while pending:
                    load = pending.pop(0)
                    self.attempt(load.name, partial(self.measure, server, load))
                    if after is not None:
                        after(load)
                    if load.name not in self.loads or self.loads[load.name].failures:
                        break
            finally:
                self._keep_log(server)
                server.stop()

    def check_budget(self) -> None:
        if time.monotonic() - self.started > self.options.budget:
            raise BenchError(f"left out: the budget of {self.options.budget:g} s is used up")

    def _keep_log(self, server: Server) -> None:
        with (self.options.out / "server.log").open("a", encoding="utf-8") as log:
            log.write(f"== server {self.servers}: {' '.join(server.command)}\n{server.log(200_000)}\n")
