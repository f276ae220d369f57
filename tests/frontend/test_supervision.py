"""Workers that start slowly, crash, hang, stop, or talk nonsense; with the stub, so that each fault is on order."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.processes import idle_cpu

from tests.e2e.running import arena_objects, gone
from tests.e2e.waiting import eventually

if TYPE_CHECKING:
    from tests.e2e.running import Running

    from .conftest import Stub

PATH = "/v1/completions"


def answers(server: Running) -> None:
    assert server.complete("abc", max_tokens=4)["choices"][0]["text"] == "abca"


def error_of(server: Running, **body: Any) -> dict[str, Any]:
    """The error of a request that must fail."""
    response = server.http.post(PATH, json={"model": "bytes", "prompt": "abc", "max_tokens": 50, **body})
    assert response.status_code >= 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def counted(times: int, path: Path, **fault: Any) -> dict[str, Any]:
    """A fault of the first `times` processes only."""
    return {**fault, "times": times, "counter": str(path / "starts")}


def loading_worker(server: Running) -> int:
    """Pid of the worker, once it loads."""
    eventually(lambda: "loading" in _ready_text(server), "the worker loads")
    [worker] = server.workers()
    return worker


def _ready_text(server: Running) -> str:
    return server.http.get("/ready").text if server.get("/ready") else ""


def test_while_it_loads_the_server_lives_but_is_not_ready(stub: Stub) -> None:
    server = stub(ready=False, load_ms=3000)
    eventually(lambda: server.get("/ready") == 503, "/ready answers")
    assert server.get("/health") == 200
    eventually(lambda: "loading bytes: " in _ready_text(server), "/ready says how far it is")
    assert error_of(server)["code"] in ("not_ready", "model_not_found")
    server.wait_ready()
    answers(server)
    assert "10 % of 100.00 MiB" in server.log()
    assert "curl http://127.0.0.1" in server.log()


def test_a_worker_that_crashes_at_its_start_is_started_again(stub: Stub, tmp_path: Path) -> None:
    server = stub(fault=counted(2, tmp_path, kind="exit", when="start"))
    answers(server)
    assert server.metrics()["denizen_worker_deaths_total"] == 2


@pytest.mark.parametrize(("kind", "when"), [("exit", "start"), ("exit", "load"), ("kill", "load")])
def test_a_crash_loop_ends_the_server_with_one_line(stub: Stub, kind: str, when: str) -> None:
    server = stub(ready=False, fault={"kind": kind, "when": when})
    assert server.process.wait(60) == 1
    errors = [line for line in server.log().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "worker 0 (cpu) died 5 times in a row" in errors[0]
    assert ("the stub was told to exit" if kind == "exit" else "SIGKILL") in errors[0]


def test_a_crash_before_the_first_token_is_not_noticed_by_the_client(stub: Stub, tmp_path: Path) -> None:
    """The request is given to the restarted worker."""
    server = stub(fault=counted(1, tmp_path, kind="kill", when="prefill"))
    answers(server)
    assert server.metrics()["denizen_resubmitted_total"] == 1


def test_a_crash_before_the_first_token_moves_the_request_to_another_worker(stub: Stub) -> None:
    server = stub("--workers-per-device", "2", fault={"kind": "kill", "when": "prefill", "worker": 0})
    answers(server)
    assert server.metrics()["denizen_resubmitted_total"] == 1


def test_a_request_that_kills_every_worker_is_given_up(stub: Stub, tmp_path: Path) -> None:
    server = stub(fault=counted(2, tmp_path, kind="kill", when="prefill"))
    error = error_of(server)
    assert error["code"] == "worker_died"
    server.wait_ready()
    answers(server)


def test_a_worker_that_dies_in_mid_stream_ends_every_stream_with_an_error(stub: Stub, tmp_path: Path) -> None:
    server = stub(step_ms=2, fault=counted(1, tmp_path, kind="kill", after_tokens=400))
    body = {"prompt": "abc", "max_tokens": 1000}
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda _: list(server.stream(PATH, body)), range(8)))
    for events in ends:
        assert len(events) > 1
        assert events[-1]["error"]["code"] == "worker_died"
    server.wait_ready()
    answers(server)
    server.settles()


def test_a_worker_that_hangs_is_ended_and_its_stacks_are_shown(stub: Stub, tmp_path: Path) -> None:
    server = stub("--hang-limit", "2", fault=counted(1, tmp_path, kind="hang", when="decode", after_tokens=1))
    error = error_of(server)
    assert error["code"] == "worker_died"
    assert "decode" in error["message"]
    server.wait_ready()
    answers(server)
    log = server.log(20_000)
    assert "_misbehave" in log, "the stack dump"
    # Symptom: "No available shared memory broadcast block" for a minute, and no cause given.
    assert re.search(r"worker 0 \(cpu\) \(pid \d+, \d+ queued, last heartbeat [\d.]+ s ago\) hangs: decode for", log)


def test_a_worker_that_hangs_and_ignores_sigterm_is_killed(stub: Stub, tmp_path: Path) -> None:
    server = stub("--hang-limit", "2", fault=counted(1, tmp_path, kind="stubborn", when="prefill"))
    [worker] = server.workers()
    answers(server)  # on the worker that follows: this one had not sent a token
    eventually(lambda: gone(worker), "the worker is killed")


@pytest.mark.parametrize("state", ["hung", "stopped"])
def test_a_worker_that_reacts_to_nothing_does_not_survive_the_front_end(stub: Stub, state: str) -> None:
    """Symptom: an orphan on a GPU. Such a worker sees no end of file; the kernel ends it with its parent."""
    server = stub(fault={"kind": "stubborn", "when": "prefill"}) if state == "hung" else stub()
    [worker] = server.workers()
    with ThreadPoolExecutor(1) as pool:
        if state == "hung":
            pool.submit(server.complete, "abc")
            eventually(lambda: server.metrics()["denizen_requests_in_flight"] > 0, "the request is with the worker")
        else:
            os.kill(worker, signal.SIGSTOP)
        os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: gone(worker), "the worker is killed")


def test_a_worker_that_is_stopped_and_continued_goes_on_as_before(stub: Stub) -> None:
    """Symptom: /health stays 200 while the scheduler hangs. Here /ready tells, and says why."""
    server = stub(step_ms=5)
    [worker] = server.workers()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(lambda: server.streamed(PATH, {"prompt": "abc", "max_tokens": 300}))
        eventually(lambda: server.metrics()["denizen_output_tokens_total"] > 10, "the stream runs")
        os.kill(worker, signal.SIGSTOP)
        eventually(lambda: server.get("/ready") == 503, "/ready says 503")
        assert "no heartbeat" in server.http.get("/ready").text
        assert server.get("/health") == 200
        assert error_of(server)["code"] == "not_ready"
        os.kill(worker, signal.SIGCONT)
        [choice] = stream.result(60)
    assert choice["text"] == "abc" * 100
    server.wait_ready()
    assert server.workers() == [worker]


def test_a_worker_that_talks_nonsense_is_replaced(stub: Stub, tmp_path: Path) -> None:
    server = stub(fault=counted(1, tmp_path, kind="garbage", after_tokens=1))
    [worker] = server.workers()
    assert error_of(server)["code"] == "worker_died"
    eventually(lambda: gone(worker), "the worker is ended")
    server.wait_ready()
    answers(server)
    assert "malformed message" in server.log()


def test_a_second_terminal_and_late_tokens_reach_nobody(stub: Stub) -> None:
    server = stub(fault={"kind": "double"})
    for _ in range(20):
        answers(server)
    # The last ones may still be on their way when their request has been answered.
    dropped = eventually(
        lambda: (seen := server.metrics()["denizen_dropped_envelopes_total"]) >= 40 and seen, "all dropped"
    )
    assert dropped == 40
    server.settles()


def test_an_error_of_the_worker_is_the_requests_error(stub: Stub) -> None:
    server = stub(fault={"kind": "error"})
    error = error_of(server)
    assert error["code"] == "stub_error"
    assert "told to fail" in error["message"]


def test_clients_that_leave_free_their_places_whether_queued_or_running(stub: Stub) -> None:
    """Symptom: a disconnect does not abort, especially of queued requests."""
    server = stub("--max-rows", "2", step_ms=20)
    body = {"prompt": "abc", "max_tokens": 4000}
    # Two run, six wait in the worker (four credits a row), the rest in the front end's queue.
    streams = [server.stream(PATH, body) for _ in range(2)]
    for stream in streams:
        next(stream)
    with ThreadPoolExecutor(10) as pool:
        timeouts = [pool.submit(server.http.post, PATH, json={"model": "bytes", **body}, timeout=1) for _ in range(10)]
        eventually(lambda: server.metrics()["denizen_requests_queued"] == 4, "the queue fills")
        for left in timeouts:
            assert left.exception(30) is not None
    for stream in streams:
        stream.close()
    server.settles()
    answers(server)


def test_aborts_that_race_the_end_leave_nothing_behind(stub: Stub) -> None:
    server = stub()

    def leave_early(number: int) -> None:
        stream = server.stream(PATH, {"prompt": "abc", "max_tokens": 1 + number % 7})
        for _ in range(number % 5):
            next(stream, None)
        stream.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave_early, range(300)))
    server.settles()
    answers(server)


def test_too_many_requests_are_refused_with_a_time_to_come_back(stub: Stub) -> None:
    server = stub("--max-in-flight", "2", step_ms=20)
    streams = [server.stream(PATH, {"prompt": "abc", "max_tokens": 4000}) for _ in range(2)]
    for stream in streams:
        next(stream)
    response = server.http.post(PATH, json={"model": "bytes", "prompt": "abc", "max_tokens": 1})
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    for stream in streams:
        stream.close()
    server.settles()


@pytest.mark.parametrize("role", ["worker", "front end", "both"])
def test_killing_a_role_again_and_again_leaves_nothing_in_dev_shm(stub: Stub, role: str) -> None:
    """Symptom: shared-memory files of processes that were killed pile up."""
    before = arena_objects()
    for _ in range(4):
        server = stub()
        [worker] = server.workers()
        if role != "front end":
            os.kill(worker, signal.SIGKILL)
        if role != "worker":
            os.kill(server.pid, signal.SIGKILL)
            server.process.wait(60)
        eventually(lambda worker=worker: gone(worker), "no worker is left")
        server.stop()
    assert arena_objects() <= before


def test_a_worker_killed_while_it_starts_leaves_nothing(stub: Stub) -> None:
    server = stub(ready=False, load_ms=20_000)
    worker = loading_worker(server)
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: gone(worker), "no worker is left")


def test_what_dead_processes_left_is_swept_at_the_start(stub: Stub) -> None:
    planted = Path(f"/dev/shm/denizen-{os.getuid()}-planted")
    planted.write_bytes(b"\0" * 4096)
    try:
        stub()
        assert not planted.exists()
    finally:
        planted.unlink(missing_ok=True)


def test_a_signal_while_it_loads_ends_it(stub: Stub) -> None:
    server = stub(ready=False, load_ms=20_000)
    worker = loading_worker(server)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 0
    assert gone(worker)


def test_an_idle_server_uses_no_cpu(stub: Stub) -> None:
    """Symptom: 100 % CPU while idle."""
    server = stub("--workers-per-device", "2")
    answers(server)
    server.settles()
    assert idle_cpu(server.pid, 5) < 3


def test_a_worker_whose_last_request_was_aborted_is_ready(stub: Stub) -> None:
    """Symptom: 503 half a minute after a client left, because the worker still said that it decodes."""
    server = stub("--hang-limit", "4", step_ms=5)
    stream = server.stream(PATH, {"prompt": "abc", "max_tokens": 4000})
    next(stream)
    stream.close()
    server.settles()
    since = time.monotonic()
    while time.monotonic() - since < 1.5:  # a quarter of the limit, and a look at the heartbeat
        assert server.get("/ready") == 200
