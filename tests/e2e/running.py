"""A running `denizen serve` as the tests see it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import httpx
import openai
from denizen.bench.processes import tree
from denizen.bench.server import Server

from .waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

SHM = Path("/dev/shm")
# Everything that a request holds while it lives.
HELD = (
    "denizen_http_in_flight",
    "denizen_requests_in_flight",
    "denizen_requests_queued",
    "denizen_worker_waiting",
    "denizen_worker_running",
    "denizen_rows",
    "denizen_kv_pages",
    "denizen_state_slots",
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
)


class Running(Server):
    """A server that was started with `model` as its first model's name."""

    live: ClassVar[list[Running]] = []
    """Those that have been started and not been stopped: each test is followed by a look at them."""

    def __init__(self, arguments: list[str], *, model: str, api_key: str | None = None, **options: Any) -> None:
        if api_key:
            arguments = [*arguments, "--api-key", api_key]
        super().__init__(arguments, **options)
        self.model = model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # No keep-alive: a pooled connection to a server that is being killed would blur what a test sees.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=120, limits=limits)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key or "none", max_retries=0, timeout=120)

    def start(self) -> None:
        super().start()
        self.live.append(self)

    def stop(self) -> int | None:
        if self in self.live:
            self.live.remove(self)
        self.http.close()
        self.client.close()
        return super().stop()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def workers(self) -> list[int]:
        """Pids of the worker processes."""
        return [pid for pid in tree(self.pid)[1:] if b"denizen.worker" in _command_line(pid)]

    def metrics(self) -> dict[str, float]:
        """Every metric, summed over its labels."""
        sums: dict[str, float] = {}
        for line in self.http.get("/metrics").raise_for_status().text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def held(self) -> dict[str, float]:
        """What requests hold now: nothing, once all have ended. A metric that is missing raises KeyError."""
        metrics = self.metrics()
        return {name: metrics[name] for name in HELD if metrics[name] != 0}

    def settles(self) -> None:
        """Waits until nothing is held; fails, saying what is, if that does not come."""
        eventually(lambda: not self.held() or None, f"everything is given back; held: {self.held()}")

    def complete(self, prompt: str | list[int], **body: Any) -> dict[str, Any]:
        """A completion that must succeed, as JSON."""
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **body})

    def chat(self, content: str, **body: Any) -> dict[str, Any]:
        """A chat completion that must succeed, as JSON."""
        messages = [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **body})

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self.http.post(path, json={"model": self.model, **body})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a stream up to `[DONE]`, which must come last; `{"error": …}` events included.

        Closing the iterator closes the connection. Every line must be UTF-8 and every event JSON.
        """
        with self.http.stream("POST", path, json={"model": self.model, "stream": True, **body}) as response:
            assert response.status_code == 200, response.read().decode()
            assert response.headers["content-type"].startswith("text/event-stream")
            done, rest = False, b""
            for chunk in response.iter_raw():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    text = line.decode("utf-8")
                    assert not done or not text, f"{text!r} after [DONE]"
                    if text == "data: [DONE]":
                        done = True
                    elif text.startswith("data:"):
                        event = json.loads(text[5:])
                        yield event
                        if "error" in event:
                            return
                    else:
                        assert not text or text.startswith(":"), f"unexpected line {text!r}"
            assert not rest, f"the stream ends inside a line: {rest!r}"
            assert done, "the stream ended without [DONE] or an error event"

    def streamed(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Whole choices put together from a stream: `text`, `finish_reason`, and `events` that carried text."""
        choices: dict[int, dict[str, Any]] = {}
        for event in self.stream(path, body):
            assert "error" not in event, event
            for choice in event["choices"]:
                found = choices.setdefault(choice["index"], {"text": "", "finish_reason": None, "events": 0})
                piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
                assert found["finish_reason"] is None, "text after the finish_reason"
                found["text"] += piece
                found["events"] += bool(piece)
                found["finish_reason"] = choice["finish_reason"]
        return [choices[index] for index in sorted(choices)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def gone(pid: int) -> bool:
    """The process has exited (a zombie that nobody has reaped yet has exited, too)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return stat[stat.rindex(")") + 2] == "Z"


def arena_objects() -> set[str]:
    """Names in `/dev/shm` that belong to Denizen, of this user."""
    return {path.name for prefix in ("", "sem.") for path in SHM.glob(f"{prefix}denizen-{os.getuid()}-*")}
