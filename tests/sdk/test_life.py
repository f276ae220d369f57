"""How calls and clients end: by result, cancelling, time, death of the server, fork, garbage collection, exit."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from denizen.shm import (
    BadRequest,
    Busy,
    ClientClosed,
    ConnectError,
    DenizenError,
    Forked,
    ServerGone,
    SlowReader,
    Timeout,
    connection,
)
from denizen.shm.connection import Connection

from tests.e2e.waiting import eventually

from .fake import BYE, CANCEL, CHUNK, RESULT, WELCOME, FakeServer, Heard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Fakes

DONE = {"result": {"choices": [{"index": 0, "text": "done", "finish_reason": "stop"}]}}


def endless(server: FakeServer, heard: Heard) -> None:
    """Begins an answer that does not end."""
    server.say(CHUNK, heard.request, {"text": "a"})


def echo(server: FakeServer, heard: Heard) -> None:
    """Answers with the prompt, in two pieces if it is to be streamed."""
    prompt = heard.parameters["prompt"]
    if heard.parameters.get("stream"):
        server.say(CHUNK, heard.request, {"text": prompt[:2]})
        server.say(CHUNK, heard.request, {"text": prompt[2:]})
    server.say(RESULT, heard.request, {"result": {"choices": [{"index": 0, "text": prompt}]}})


# --- cancelling ---


def test_closing_a_stream_cancels_it(fakes: Fakes) -> None:
    server = fakes.server(endless)
    with fakes.client(server) as client:
        stream = client.generate("x", stream=True)
        assert next(stream).text == "a"
        stream.close()
        stream.close()
        assert list(stream) == []
        server.cancelled(1)
        with pytest.raises(DenizenError, match="closed before its end"):
            stream.result()
        with client.generate("x", stream=True):
            pass
        server.cancelled(2)
        for _ in client.generate("x", stream=True):
            break
        gc.collect()
        server.cancelled(3)
    assert [each.request for each in server.heard if each.kind == CANCEL] == [1, 2, 3]


def test_a_finished_call_is_not_cancelled(fakes: Fakes) -> None:
    server = fakes.server(echo)
    with fakes.client(server) as client:
        client.generate("whole")
        stream = client.generate("streamed", stream=True)
        assert stream.result().text == "streamed"
        stream.close()
        del stream
        # Had they been cancelled, it would have come before this one's.
        open_stream = client.generate("last", stream=True)
        open_stream.close()
    server.end_of_file()
    assert [each.request for each in server.heard if each.kind == CANCEL] in ([], [3])


def test_late_pieces_of_a_cancelled_call_disturb_nobody(fakes: Fakes) -> None:
    def answer(server: FakeServer, heard: Heard) -> None:
        endless(server, heard)
        if heard.request == 2:
            server.say(CHUNK, 1, {"text": "late"})
            server.say(RESULT, 1, DONE)
            server.say(RESULT, 2, DONE)

    server = fakes.server(answer)
    with fakes.client(server) as client:
        client.generate("x", stream=True).close()
        server.cancelled(1)
        assert [chunk.text for chunk in client.generate("y", stream=True)] == ["a"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler, which is not there in a process that was started in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_cancels(fakes: Fakes, interruptible: None) -> None:
    server = fakes.server()
    with fakes.client(server) as client:
        waiter = threading.Thread(target=lambda: (server.calls(), os.kill(os.getpid(), signal.SIGINT)))
        waiter.start()
        with pytest.raises(KeyboardInterrupt):
            client.generate("x")
        waiter.join()
        server.cancelled(1)


# --- time ---


def test_a_call_ends_at_its_timeout(fakes: Fakes) -> None:
    server = fakes.server(endless)
    with fakes.client(server, timeout=0.05) as client:
        with pytest.raises(Timeout, match=r"within 0\.05 s") as raised:
            client.generate("x")
        assert isinstance(raised.value, TimeoutError)
        assert (raised.value.status, raised.value.code, raised.value.param) == (504, "timeout", "timeout")
        server.cancelled(1)
        stream = client.generate("x", stream=True, timeout=0.1)
        with pytest.raises(Timeout, match=r"within 0\.1 s"):
            stream.result()
        server.cancelled(2)


def test_what_has_come_is_read_even_after_the_timeout(fakes: Fakes) -> None:
    said = threading.Event()

    def answer(server: FakeServer, heard: Heard) -> None:
        echo(server, heard)
        said.set()

    with fakes.client(fakes.server(answer)) as client:
        stream = client.generate("word", stream=True, timeout=0.05)
        assert said.wait(30), "all of the answer is here"
        deadline = time.monotonic() + 0.05
        eventually(lambda: time.monotonic() > deadline, "the call's time is over")
        assert stream.result().text == "word"


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(fakes: Fakes, timeout: float) -> None:
    with fakes.client(fakes.server()) as client, pytest.raises(BadRequest, match="'timeout' must be a positive number"):
        client.generate("x", timeout=timeout)


def test_no_room_is_waited_for(fakes: Fakes) -> None:
    """The ring has 64 places; a front end that stands still takes none of them."""
    resume = threading.Event()

    def answer(server: FakeServer, heard: Heard) -> None:
        assert resume.wait(30)
        echo(server, heard)

    with fakes.client(fakes.server(answer)) as client, ThreadPoolExecutor(80) as pool:
        calls = [pool.submit(client.generate, f"call {number}") for number in range(80)]
        with pytest.raises(Timeout):
            client.generate("one too many", timeout=0.05)
        resume.set()
        assert [call.result(30).text for call in calls] == [f"call {number}" for number in range(80)]


# --- the end of a side ---


def test_death_of_the_server_ends_all_calls_at_once(fakes: Fakes) -> None:
    server = fakes.server(endless)
    with fakes.client(server) as client, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(client.generate, "x") for _ in range(8)]
        stream = client.generate("y", stream=True)
        server.calls(9)
        server.close()
        for call in calls:
            with pytest.raises(ServerGone, match="connect again"):
                call.result(30)
        with pytest.raises(ServerGone):
            stream.result()
        with pytest.raises(ServerGone) as raised:
            client.generate("z")
        assert isinstance(raised.value, ConnectionError)
        assert client.closed


def test_the_servers_farewell_is_passed_on(fakes: Fakes) -> None:
    server = fakes.server()
    with fakes.client(server) as client:
        server.say(BYE, 0, {"code": "shutting_down", "why": "it was told to stop"})
        server.close()
        with pytest.raises(ServerGone, match="it was told to stop"):
            client.generate("x")


def test_closing_the_client_ends_its_calls(fakes: Fakes) -> None:
    server = fakes.server(endless)
    client = fakes.client(server)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.generate, "x")
        server.calls()
        client.close()
        with pytest.raises(ClientClosed):
            call.result(30)
    client.close()
    with pytest.raises(ClientClosed):
        client.generate("x")
    server.end_of_file()
    assert server.heard[-1].kind == BYE


def test_a_dropped_client_ends_its_connection(fakes: Fakes) -> None:
    server = fakes.server(endless)
    stream = fakes.client(server).generate("x", stream=True)
    gc.collect()
    # The stream holds its client.
    assert next(stream).text == "a"
    del stream
    gc.collect()
    server.end_of_file()
    assert server.heard[-1].kind == BYE


def test_nothing_listens_is_a_clear_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from denizen.shm.rendezvous import run_dir, socket_path

    monkeypatch.setenv("DENIZEN_RUN_DIR", str(tmp_path / "none"))
    with pytest.raises(ConnectError, match="start `denizen serve`"):
        socket_path("default")
    (tmp_path / "none").mkdir(mode=0o755)
    with pytest.raises(ConnectError, match="mode 0700"):
        socket_path("default")
    (tmp_path / "none").chmod(0o700)
    assert socket_path("main") == tmp_path / "none/main.sock"
    assert socket_path("ignored", tmp_path / "other") == tmp_path / "other"
    for name in ("", "a/b", ".hidden"):
        with pytest.raises(ConnectError, match="no server name"):
            socket_path(name)
    monkeypatch.delenv("DENIZEN_RUN_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert str(run_dir()) == "/run/user/7/denizen"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert str(run_dir()) == f"/tmp/denizen-{os.getuid()}"


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (BYE, {"code": "shutting_down", "why": "going home"}, "going home"),
        (RESULT, {}, "did not begin with WELCOME"),
        (WELCOME, {"models": [{"kind": "text"}]}, "WELCOME cannot be read"),
        (WELCOME, {"models": 5}, "WELCOME cannot be read"),
    ],
)
def test_a_server_must_begin_with_welcome(kind: int, body: dict[str, Any], message: str) -> None:
    server = FakeServer(welcome=False)
    server.say(kind, 0, body)
    with pytest.raises(ConnectError, match=message):
        server.connect()
    server.end_of_file()


def test_a_silent_server_is_not_waited_for_for_ever() -> None:
    server = FakeServer(welcome=False)
    with pytest.raises(ConnectError, match="said nothing"):
        Connection(server.end, time.monotonic() + 0.05)
    server.end_of_file()
    server = FakeServer(welcome=False)
    server.host.close()
    with pytest.raises(ConnectError, match="broke the connection"):
        server.connect()


# --- many at once, slow readers ---


def test_threads_share_a_client(fakes: Fakes) -> None:
    server = fakes.server(echo)
    with fakes.client(server) as client, ThreadPoolExecutor(16) as pool:

        def whole_and_streamed(number: int) -> bool:
            text = f"number {number}"
            pieces = [chunk.text for chunk in client.generate(text, stream=True)]
            return client.generate(text).text == text and pieces == [text[:2], text[2:]]

        assert all(pool.map(whole_and_streamed, range(400)))
    assert client._connection._arena.open_calls == 1, "but for the box of what belongs to no call"


def test_what_a_slow_reader_leaves_is_bounded(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_BYTES", 1 << 20)
    flood = threading.Event()

    def answer(server: FakeServer, heard: Heard) -> None:
        if heard.parameters["prompt"] == "flood":
            for _ in range(4):
                server.say(CHUNK, heard.request, {"text": "a"}, bytes(300_000))
            flood.set()
        else:
            echo(server, heard)

    server = fakes.server(answer)
    with fakes.client(server) as client:
        stream = client.generate("flood", stream=True)
        assert flood.wait(30)
        server.cancelled(1)
        assert client.generate("others go on").text == "others go on"
        with pytest.raises(SlowReader, match="left unread") as raised:
            stream.result()
        assert (raised.value.status, raised.value.code) == (408, "slow_client")


def test_a_reader_that_keeps_up_is_not_bounded(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_BYTES", 1 << 20)
    step = threading.Semaphore(1)

    def answer(server: FakeServer, heard: Heard) -> None:
        for _ in range(20):
            assert step.acquire(timeout=30)
            server.say(CHUNK, heard.request, {"text": "a"}, bytes(200_000))
        server.say(RESULT, heard.request, DONE)

    with fakes.client(fakes.server(answer)) as client:
        count = 0
        for _ in client.generate("x", stream=True):
            step.release()
            count += 1
        assert count == 20


# --- forks and exits ---


def _use(client: Any, stream: Any, pipe: Any) -> None:
    seen = []
    for use in (lambda: client.generate("child"), lambda: next(stream), client.models, client.close, stream.close):
        try:
            use()
            seen.append(None)
        except DenizenError as error:
            seen.append((type(error).__name__, str(error)))
    pipe.send(seen)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_so_and_harms_nothing(fakes: Fakes) -> None:
    server = fakes.server(echo)
    with fakes.client(server) as client:
        stream = client.generate("parent", stream=True)
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=_use, args=(client, stream, theirs))
        child.start()
        assert ours.poll(30), "the child says nothing"
        generate, following, models, closed, stream_closed = ours.recv()
        child.join(30)
        for seen in (generate, following, models):
            assert seen is not None
            assert seen[0] == Forked.__name__
            assert "open a new client here" in seen[1]
        assert (closed, stream_closed, child.exitcode) == (None, None, 0)
        assert stream.result().text == "parent"
        assert client.generate("still here").text == "still here"
    assert [each for each in server.heard if each.kind == CANCEL] == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_threads(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its exit: one that waits in the parent's client counts as inside in the child too, and never leaves there."""
    monkeypatch.setattr(connection, "_EXIT_SECONDS", 3600.0)
    server = fakes.server(endless)
    with fakes.client(server) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.generate, "x")
        eventually(lambda: client._connection._arena.inside == 1, "a thread waits")
        child = multiprocessing.get_context("fork").Process(target=connection._leave_all)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        client.close()
        with pytest.raises(ClientClosed):
            waiting.result(30)


def test_errors_travel_between_processes() -> None:
    error = Busy("full", status=429, type="rate_limit_error", param=None, code="rate_limit_exceeded", retry_after=1.5)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (Busy, "full", error.__dict__)
