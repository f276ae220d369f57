"""What a test can ask of the stub: a JSON object in ``--stub`` or in the environment variable ``DENIZEN_STUB``.

- ``step_ms`` (0): how long a step takes
- ``load_ms`` (0): how long loading takes; progress is reported ten times
- ``doubt`` (0): audio that is transcribed at a temperature below this gets an ``avg_logprob`` of -2, else of -0.25
- ``unfinished`` (false): a full window of audio ends within its last segment, without a timestamp
- ``speech``: an object with the keys further below; models that would read text speak instead
- ``fault``: an object with the keys below

A fault has

- ``kind``: ``kill`` (SIGKILL to itself), ``exit`` (status 1), ``hang`` (stands still), ``stubborn`` (the same, and
  ignores SIGTERM), ``garbage`` (sends bytes that are no envelope), ``error`` (answers ERROR), ``double`` (a second
  terminal and late tokens after each DONE), ``deaf`` (ignores ABORT)
- ``when`` (``decode``): ``start``, ``load``, ``prefill`` or ``decode``
- ``after_tokens`` (0): with ``decode``, not before this many tokens were sent
- ``worker``: only the worker with this index
- ``times`` and ``counter``: only the first ``times`` processes; ``counter`` is a file that counts them

``speech`` has

- ``models`` (all that do not hear): names of those that speak
- ``sample_rate`` (24000): hertz of their audio
- ``token_ms`` (80): ms of audio for each token of the text at speed 1; a frame, and a step's work
- ``voices`` (``["low", "high"]``)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("kill", "exit", "hang", "stubborn", "garbage", "error", "double", "deaf")
TIMES = ("start", "load", "prefill", "decode")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong on purpose."""

    kind: str
    when: str = "decode"
    after_tokens: int = 0
    worker: int | None = None
    times: int | None = None
    counter: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.when not in TIMES:
            raise ValueError(f"fault: kind must be one of {KINDS} and when one of {TIMES}")
        if (self.times is None) != (self.counter is None):
            raise ValueError("fault: times and counter go together")

    def applies(self, worker: int) -> bool:
        """Whether this process is one that fails; counts it."""
        if self.worker is not None and self.worker != worker:
            return False
        if self.times is None or self.counter is None:
            return True
        with Path(self.counter).open("ab") as file:
            file.write(b".")
            return file.tell() <= self.times


@dataclass(frozen=True)
class Speech:
    """Which models speak, and how."""

    models: tuple[str, ...] | None = None
    sample_rate: int = 24_000
    token_ms: float = 80
    voices: tuple[str, ...] = ("low", "high")

    def __post_init__(self) -> None:
        if not self.voices or self.sample_rate <= 0 or self.token_ms <= 0:
            raise ValueError("speech: voices must be there, sample_rate and token_ms above 0")

    @classmethod
    def of(cls, values: dict[str, Any]) -> Speech:
        lists = {name: tuple(values[name]) for name in ("models", "voices") if values.get(name) is not None}
        return cls(**(values | lists))

    def speaks(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True)
class Options:
    """Parsed ``--stub``."""

    step_ms: float = 0
    load_ms: float = 0
    doubt: float = 0
    unfinished: bool = False
    speech: Speech | None = None
    fault: Fault | None = None

    @classmethod
    def from_json(cls, text: str, worker: int) -> Options:
        """Raises ValueError or TypeError for anything that is not as above."""
        values: dict[str, Any] = json.loads(text or "{}")
        fault, speech = values.pop("fault", None), values.pop("speech", None)
        parsed = Fault(**fault) if fault else None
        return cls(
            **values,
            speech=None if speech is None else Speech.of(speech),
            fault=parsed if parsed and parsed.applies(worker) else None,
        )
