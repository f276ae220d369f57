"""When words were said: computed beside the steps, from what an ended request still holds.

A thread of its own, because an alignment is a few launches and then work of the host, for which no row that decodes
should wait. On a GPU it has a stream of its own too. It only reads: contexts of rows whose prefill the host has seen
complete, which nobody writes to until the row is let go.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import torch
from denizen.worker.models.base import RowCache, Speech, hears

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from denizen.worker.request import Request
    from denizen.worker.served import ServedModel

_log = logging.getLogger(__name__)


@dataclass
class Alignment:
    """A request that has ended but for the times of its words: one of ``times`` and ``error`` is set in the end."""

    served: ServedModel
    request: Request
    reason: str  #: why it ended
    row: int
    pages: Mapping[str, list[int]]
    times: list[float] | None = None
    error: Exception | None = None


class Aligner:
    """Used by the plan thread, which queues alignments and takes them back."""

    def __init__(self, done: Callable[[], None]) -> None:
        """``done`` is called, in the aligner's thread, when an alignment can be taken."""
        self._done = done
        self._queue: SimpleQueue[Alignment | None] = SimpleQueue()
        self._finished: SimpleQueue[Alignment] = SimpleQueue()
        self._thread: Thread | None = None
        self._under_way = 0
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @property
    def busy(self) -> bool:
        """Some alignment was not taken yet."""
        return self._under_way > 0

    def submit(self, alignment: Alignment) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="aligner", daemon=True)
            self._thread.start()
        self._under_way += 1
        self._queue.put(alignment)

    def take(self) -> list[Alignment]:
        """Those that have finished."""
        taken = []
        while self._under_way:
            try:
                taken.append(self._finished.get_nowait())
            except Empty:
                break
            self._under_way -= 1
        return taken

    def close(self, timeout: float) -> bool:
        """Ends the thread; False if that takes longer than ``timeout`` seconds."""
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (alignment := self._queue.get()) is not None:
            try:
                alignment.times = self._align(alignment)
            except Exception as raised:
                _log.exception("the words of request %d were not aligned", alignment.request.id)
                alignment.error = raised
            self._finished.put(alignment)
            self._done()

    @torch.inference_mode()
    def _align(self, alignment: Alignment) -> list[float]:
        served, request = alignment.served, alignment.request
        model, runner = served.model, served.runner
        assert hears(model)
        assert request.speech is not None
        outputs = request.outputs[:-1] if alignment.reason == "stop" else request.outputs
        speech = Speech(request.prompt, outputs, request.speech.options, request.speech.pcm)
        device = runner.tables.words.device
        written = len(request.prompt) + len(outputs) - (alignment.reason != "stop")  # the last was never fed
        with torch.cuda.stream(self._stream(device)) if device.type == "cuda" else nullcontext():
            caches = {}
            for spec in model.kv_pools:
                pool = runner.attention[spec.key]
                pages = torch.tensor(alignment.pages[spec.key], dtype=torch.int64, device=device)
                caches[spec.key] = RowCache(pool.keys, pool.values, pages, spec.context or written)
            return model.align(speech, caches)

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            torch.cuda.set_device(device)
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]
