"""Runs that their user ends: what had been measured is kept, and no server is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from . import commands
from .peer import Behaviour, serving

if TYPE_CHECKING:
    from collections.abc import Callable

_DEADLINE = 120.0


def start(*arguments: str) -> subprocess.Popen[str]:
    """The harness as a user starts it, from a terminal: with no signal ignored."""

    def listen() -> None:
        for one in (signal.SIGINT, signal.SIGHUP):
            signal.signal(one, signal.SIG_DFL)

    command = [sys.executable, "-m", "denizen.bench", *arguments, "--max-client-lag", "60000"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=listen)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_levels_that_were_complete_are_kept(tmp_path: Path, number: signal.Signals, processes: str) -> None:
    """Two passes of four requests are the first level; the measured pass of the second hangs."""
    with serving(Behaviour(hang={13})) as peer:
        arguments = ["--url", peer.url, "--requests", "4", "--concurrency", "1", "2", "4", "--out", str(tmp_path)]
        run = start("text", *arguments, "--output-len", "3", "--processes", processes)
        wait_for(lambda: len(peer.requests) > 13, "the requests did not come")
        run.send_signal(number)
        said, _ = run.communicate(timeout=_DEADLINE)
    assert run.returncode == 130
    assert "Traceback" not in said
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert not result["valid"]
    assert [problem.partition(":")[0] for problem in result["problems"]] == ["concurrency 2"]
    first, second = result["results"]
    assert (first["summary"]["requests"], first["stopped"]) == (4, None)
    assert (second["summary"]["requests"], second["passes"]) == (0, [])
    assert second["stopped"].startswith("interrupted")
    assert "concurrency 2: interrupted" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_turns_that_were_complete_are_compared(tmp_path: Path) -> None:
    """A turn sends nine requests: one for the start, two passes of four."""
    counter, out = tmp_path / "turns", tmp_path / "compare.json"
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(commands.__file__).parent)!r})
import peer
with open({str(counter)!r}, "a") as turns:
    print(file=turns)
with open({str(counter)!r}) as turns:
    hang = set(range(20)) if len(turns.readlines()) > 4 else set()
peer.web.run_app(peer.Peer(peer.Behaviour(hang=hang)).app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
    server = commands.python(code, "{port}")
    run = start("compare", "--a", server, "--b", server, "--json", str(out), "text", "--requests", "4")
    wait_for(lambda: counter.exists() and len(counter.read_text().splitlines()) > 4, "the fifth turn did not begin")
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=_DEADLINE)
    assert run.returncode == 130
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["figures"]["order"] == "ABBA"
    assert [problem.partition(":")[0] for problem in result["problems"]] == ["A3"]
    assert {len(row["a"]) for row in result["figures"]["compare"]} == {2}


def test_a_harness_that_is_killed_leaves_no_server(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    code = (
        "import os, runpy, sys; path = sys.argv.pop();"
        "open(path + '.new', 'w').write(str(os.getpid())); os.rename(path + '.new', path);"
        f"sys.argv[0] = {str(Path(commands.__file__).with_name('peer.py'))!r};"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    server = commands.python(code, "{port}", json.dumps({"hang": list(range(9))}), str(pids))
    run = start("text", "--launch", server, "--launch-log", str(tmp_path / "log"))
    wait_for(pids.exists, "the server did not start")
    pid = int(pids.read_text())
    os.kill(run.pid, signal.SIGKILL)
    run.communicate(timeout=_DEADLINE)
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, f"{pid} lives")
