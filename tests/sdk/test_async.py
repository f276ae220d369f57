"""The same calls in an event loop, which they must not block."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from denizen.shm import AsyncClient, ClientClosed, ConnectError, ServerGone, SlowReader, Timeout, connection

from .fake import CANCEL, CHUNK, RESULT, FakeServer, Heard
from .test_life import echo, endless

if TYPE_CHECKING:
    from .conftest import Fakes

PATIENCE = 30.0


async def hears(server: FakeServer, what: Any) -> None:
    """Waits for the fake without standing in the loop's way."""
    await asyncio.to_thread(what)


def test_calls_are_awaited(fakes: Fakes) -> None:
    async def use() -> None:
        async with fakes.async_client(fakes.server(echo)) as client:
            assert (await client.generate("hello")).text == "hello"
            stream = await client.generate("hello", stream=True)
            assert [chunk.text async for chunk in stream] == ["he", "llo"]
            assert (await stream.result()).text == "hello"
            assert client.server_version == "0.0-fake"
            assert not client.closed
        assert client.closed
        with pytest.raises(ClientClosed):
            await client.generate("x")

    asyncio.run(use())


def test_many_calls_at_once(fakes: Fakes) -> None:
    async def use() -> None:
        async with fakes.async_client(fakes.server(echo)) as client:
            texts = [f"number {number}" for number in range(200)]
            answers = await asyncio.gather(*(client.generate(text) for text in texts))
            assert [answer.text for answer in answers] == texts

    asyncio.run(use())


def test_several_loops_share_a_client(fakes: Fakes) -> None:
    server = fakes.server(echo)
    client = fakes.async_client(server)
    asyncio.run(client.connect())

    async def use(number: int) -> None:
        for _ in range(20):
            assert (await client.generate(f"loop {number}")).text == f"loop {number}"

    threads = [threading.Thread(target=lambda n=n: asyncio.run(use(n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(client.close())


def test_sound_goes_both_ways(fakes: Fakes) -> None:
    sound = np.linspace(-1, 1, 500_000, dtype=np.float32)

    def answer(server: FakeServer, heard: Heard) -> None:
        if heard.endpoint == "audio.transcriptions":
            same = heard.audio == sound.tobytes()
            server.say(RESULT, heard.request, {"result": {"text": str(same), "segments": []}})
        else:
            server.say(CHUNK, heard.request, {"index": 0, "rate": 16000}, sound[:9000].tobytes())
            server.say(RESULT, heard.request, {"result": {"rate": 16000, "samples": 9000}})

    async def use() -> None:
        async with fakes.async_client(fakes.server(answer)) as client:
            assert (await client.transcribe(sound, 16000)).text == "True"
            speech = await client.speak("x")
            assert await speech.sample_rate() == 16000
            (array,) = [array async for array in speech]
            np.testing.assert_array_equal(array, sound[:9000])
            assert (await speech.result()).samples == 9000

    asyncio.run(use())


def test_leaving_a_stream_cancels_it(fakes: Fakes) -> None:
    server = fakes.server(endless)

    async def use() -> None:
        async with fakes.async_client(server) as client:
            stream = await client.generate("x", stream=True)
            assert (await anext(stream)).text == "a"
            stream.close()
            assert [chunk async for chunk in stream] == []
            await hears(server, lambda: server.cancelled(1))
            async with await client.generate("x", stream=True):
                pass
            await hears(server, lambda: server.cancelled(2))
            async with contextlib.aclosing(await client.generate("x", stream=True)):
                pass
            await hears(server, lambda: server.cancelled(3))
            async for _ in await client.generate("x", stream=True):
                break
            gc.collect()
            await hears(server, lambda: server.cancelled(4))
            waiting = asyncio.ensure_future(client.generate("x"))
            await hears(server, lambda: server.calls(5))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await hears(server, lambda: server.cancelled(5))

    asyncio.run(use())


def test_a_call_ends_at_its_timeout(fakes: Fakes) -> None:
    server = fakes.server(endless)

    async def use() -> None:
        async with fakes.async_client(server, timeout=0.05) as client:
            with pytest.raises(Timeout, match=r"within 0\.05 s"):
                await client.generate("x")
            await hears(server, lambda: server.cancelled(1))
            stream = await client.generate("x", stream=True, timeout=0.1)
            with pytest.raises(Timeout):
                await stream.result()
            await hears(server, lambda: server.cancelled(2))

    asyncio.run(use())


def test_death_of_the_server_ends_all_calls(fakes: Fakes) -> None:
    server = fakes.server(endless)

    async def use() -> None:
        async with fakes.async_client(server) as client:
            calls = [asyncio.ensure_future(client.generate("x")) for _ in range(5)]
            await hears(server, lambda: server.calls(5))
            await hears(server, server.close)
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, ServerGone)

    asyncio.run(use())


def test_a_server_that_stands_still_does_not_block_the_loop(fakes: Fakes) -> None:
    resume = threading.Event()

    def answer(server: FakeServer, heard: Heard) -> None:
        assert resume.wait(PATIENCE)
        endless(server, heard)
        server.say(RESULT, heard.request, {"result": {"text": ""}})

    async def use() -> None:
        server = fakes.server(answer)
        async with fakes.async_client(server) as client:
            # More than ring and slab hold.
            calls = [asyncio.ensure_future(client.generate("x" * 100_000)) for _ in range(8)]
            uploads = [asyncio.ensure_future(client.transcribe(np.zeros(300_000, np.float32), 16000)) for _ in range(2)]
            turns = 0
            while turns < 200:  # the loop keeps its turn
                await asyncio.sleep(0)
                turns += 1
            assert not any(call.done() for call in calls + uploads)
            resume.set()
            await asyncio.wait_for(asyncio.gather(*calls, *uploads), PATIENCE)

    asyncio.run(use())


def test_a_loop_that_has_ended_harms_no_other(fakes: Fakes) -> None:
    def answer(server: FakeServer, heard: Heard) -> None:
        if heard.parameters["prompt"] == "left behind":
            endless(server, heard)
        else:
            server.say(CHUNK, 1, {"text": "for a loop that has gone"})
            echo(server, heard)

    server = fakes.server(answer)
    client = fakes.async_client(server)
    kept = []

    async def leave() -> None:
        await client.connect()
        stream = await client.generate("left behind", stream=True)
        await anext(stream)
        kept.append(stream)

    async def go_on() -> None:
        assert (await client.generate("hello")).text == "hello"
        await client.close()

    asyncio.run(leave())
    asyncio.run(go_on())
    server.end_of_file()
    assert (CANCEL, 1) in [(each.kind, each.request) for each in server.heard]


def test_what_a_slow_reader_leaves_is_bounded(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_BYTES", 1 << 20)

    def answer(server: FakeServer, heard: Heard) -> None:
        for _ in range(4):
            server.say(CHUNK, heard.request, {"text": "a"}, bytes(300_000))

    server = fakes.server(answer)

    async def use() -> None:
        async with fakes.async_client(server) as client:
            stream = await client.generate("x", stream=True)
            await hears(server, lambda: server.cancelled(1))
            with pytest.raises(SlowReader):
                await stream.result()

    asyncio.run(use())


def test_it_must_be_connected() -> None:
    async def use() -> None:
        with pytest.raises(ClientClosed, match="async with AsyncClient"):
            await AsyncClient().generate("x")
        with pytest.raises(ConnectError, match="no server"):
            await AsyncClient(path="/nowhere/none.sock").connect()
        await AsyncClient().close()

    asyncio.run(use())
