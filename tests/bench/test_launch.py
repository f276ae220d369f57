"""Servers that the harness starts and stops."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from denizen.bench import launch
from denizen.bench.__main__ import main
from denizen.bench.errors import BenchError
from denizen.bench.server import Launched

from . import commands
from .peer import serving

_SMALL = ["--requests", "2", "--output-len", "3", "--max-client-lag", "60000"]
#: A server whose child outlives it unless someone ends the whole group; both write down who they are.
_WITH_CHILD = """
import os, runpy, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open(sys.argv[3], "w").write(f"{os.getpid()} {child.pid}")
sys.argv[:] = sys.argv[3:4] + sys.argv[1:3]
runpy.run_path(PEER, run_name="__main__")
"""


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "result.json"
    status = main(["text", "--json", str(out), *_SMALL, *arguments])
    return status, json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}


def test_a_server_is_started_measured_and_stopped_with_all_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = _WITH_CHILD.replace("PEER", repr(str(Path(commands.__file__).with_name("peer.py"))))
    status, result = run(tmp_path, "--launch", commands.python(code, "{port}", "{}", str(pids)))
    assert status == 0
    assert result["results"][0]["summary"]["requests"] == 2
    startup = result["figures"]["startup"]
    assert 0 < startup["ready_s"] < startup["first_answer_s"]
    for pid in map(int, pids.read_text(encoding="utf-8").split()):
        deadline = time.monotonic() + 20
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"{pid} is still there"
            time.sleep(0.02)


def test_ready_is_what_the_server_says_it_is(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    env, command, url = launch.parse(commands.peer(loading=3), "")
    with Launched(command, url, env=env, log=log) as server:
        assert server.get("/ready") == 200
        assert server.ready_seconds is not None


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (commands.python("print('no such checkpoint'); raise SystemExit(3)", "{port}"), "exited with 3"),
        ("no-such-program {port}", "cannot be started"),
        (commands.python("import time; print('thinking', flush=True); time.sleep(1000)", "{port}"), "not ready after"),
        ("", "expected a command line"),
        ("'unclosed", "No closing quotation"),
    ],
)
def test_a_server_that_does_not_start_says_why(
    command: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--launch", command, "--ready-timeout", "5")[0] == 2
    said = capsys.readouterr().err
    assert message in said
    if "checkpoint" in command or "thinking" in command:
        assert ("no such checkpoint" if "checkpoint" in command else "thinking") in said
        log = Path(said.rpartition("the server's log: ")[2].strip())
        assert log.read_text(encoding="utf-8").strip() in said
        log.unlink()


def test_a_server_that_dies_under_load_is_said_to_have_died(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    # The request that measures the start is the first; the second ends the process.
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(commands.__file__).parent)!r})
import peer
class Mortal(peer.Peer):
    async def _answer(self, request, index, body):
        if index == 1:
            print("out of memory", flush=True)
            os._exit(9)
        return await super()._answer(request, index, body)
peer.web.run_app(Mortal(peer.Behaviour()).app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
    status, result = run(tmp_path, "--launch", commands.python(code, "{port}"), "--launch-log", str(log))
    assert status == 1
    assert any("the server died" in problem and "exited with 9" in problem for problem in result["problems"])
    assert "out of memory" in capsys.readouterr().out
    assert "out of memory" in log.read_text(encoding="utf-8")


def test_an_address_that_is_taken_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as peer:
        assert run(tmp_path, "--launch", "sleep 1000", "--url", peer.url)[0] == 2
    assert "a server answers at" in capsys.readouterr().err
    assert not peer.requests


def test_command_lines_are_read_as_a_shell_would(monkeypatch: pytest.MonkeyPatch) -> None:
    env, words, url = launch.parse("A='x y' B= program --flag 'one two' --port {port}", "http://other:1")
    assert env == {"A": "x y", "B": ""}
    assert words[:-1] == ["program", "--flag", "one two", "--port"]
    assert url == f"http://127.0.0.1:{words[-1]}"
    assert launch.parse("program C=d", "http://other:1") == ({}, ["program", "C=d"], "http://other:1")
    monkeypatch.setenv("DENIZEN_BIN", "/opt/denizen")
    _, words, url = launch.parse("denizen serve --no-resident", "http://other:1")
    assert words[:-1] == ["/opt/denizen", "serve", "--no-resident", "--port"]
    assert url.endswith(words[-1])
    assert launch.parse("denizen serve --port 7", "http://other:7")[1][-1] == "7"


def test_a_group_that_ignores_the_end_is_ended(tmp_path: Path) -> None:
    code = (
        "import signal, sys, runpy; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "from aiohttp import web; app = web.Application();"
        "app.router.add_get('/ready', lambda _: web.json_response({}));"
        "web.run_app(app, port=int(sys.argv[1]), host='127.0.0.1', handle_signals=False)"
    )
    env, command, url = launch.parse(commands.python(code, "{port}"), "")
    server = Launched(command, url, env=env, log=tmp_path / "log", stop_timeout=0.2)
    with server:
        pid = server.pid
    assert not psutil.pid_exists(pid)


def test_starting_leaves_no_log_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert run(tmp_path, "--launch", commands.peer())[0] == 0
    assert [name for name in os.listdir(tmp_path) if name != "result.json"] == []


def test_a_request_that_fails_at_the_start_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = run(tmp_path, "--launch", commands.peer(error_event=[0]))
    assert status == 2
    assert "the first request to the server failed: error event: worker died" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    env, command, url = launch.parse(commands.peer(), "")
    with pytest.raises(BenchError, match="--launch-log"):
        Launched(command, url, env=env, log=tmp_path / "absent" / "log").start()


def test_secrets_of_a_command_line_are_not_kept(tmp_path: Path) -> None:
    command = f"MY_TOKEN=hunter2 {commands.peer()} --api-key=hunter2 --api-key hunter2"
    status, result = run(tmp_path, "--launch", command)
    assert status == 0
    assert "hunter2" not in json.dumps(result)
    assert result["environment"]["server"][-3:] == ["--api-key=***", "--api-key", "***"]
