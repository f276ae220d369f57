"""Loads the models of a worker onto its device, and tells the front end how far it is."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from denizen.worker.errors import CapacityError, DeviceError
from denizen.worker.models.checkpoint import Checkpoint
from denizen.worker.models.registry import model_class
from denizen.worker.protocol import Load, Stats
from denizen.worker.served import ServedModel

if TYPE_CHECKING:
    from denizen.worker.channel import Channel
    from denizen.worker.config import WorkerConfig

#: Heartbeat phase while graphs are captured (``docs/design/protocol.md``).
PHASE_CAPTURE = 1
#: Seconds between two progress messages.
_PROGRESS_S = 0.25
#: How long a thread keeps the interpreter while another waits for it. The device thread comes back from every kernel
#: call for it, and must not wait out the default of 5 ms behind the plan thread.
_SWITCH_S = 0.0002


def load_models(config: WorkerConfig, channel: Channel) -> list[ServedModel]:
    """Raises :class:`WorkerError` subclasses whose message says what to do."""
    device = open_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    sys.setswitchinterval(_SWITCH_S)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    loaded = []
    for entry in config.models:
        checkpoint = Checkpoint.open(entry.path)
        fingerprint = checkpoint.fingerprint()
        progress = LoadProgress(entry.name, channel)
        loaded.append((entry.name, model_class(checkpoint).load(checkpoint, device, dtype, progress), fingerprint))
    if device.type == "cuda":
        channel.arena.set_phase(PHASE_CAPTURE)
    # All weights are there before the pools share what is left.
    served = []
    for index, (name, model, fingerprint) in enumerate(loaded):
        share = 1 / (len(loaded) - index)
        try:
            served.append(
                ServedModel.build(
                    name,
                    model,
                    device,
                    dtype,
                    config.pools,
                    config.scheduler,
                    config.engine,
                    fingerprint=fingerprint,
                    share=share,
                )
            )
        except (MemoryError, torch.OutOfMemoryError) as error:
            first = str(error).splitlines()[0] if str(error) else "out of memory"
            raise CapacityError(
                f"{device} has no room for the pools of model '{name}': {first}; lower kv_tokens or max_rows"
            ) from None
    return served


def open_device(name: str) -> torch.device:
    """Raises :class:`DeviceError` for a device that is not there."""
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise DeviceError(f"device '{name}': PyTorch {torch.__version__} sees no CUDA device; use --devices cpu")
    if (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"device '{name}' is not there: {torch.cuda.device_count()} CUDA devices are visible")
    for module, package in (("triton", "triton"), ("flashinfer", "flashinfer-python==0.6.14")):
        if find_spec(module) is None:
            raise DeviceError(f"device '{name}' needs {module}, which is not installed: pip install {package}")
    torch.cuda.set_device(device)
    return device


class LoadProgress:
    """STATS.load envelopes, at most a few a second; the last one always."""

    def __init__(self, model: str, channel: Channel) -> None:
        self._model = model
        self._channel = channel
        self._due = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._due or done == total:
            self._due = now + _PROGRESS_S
            self._channel.send(Stats(Load(self._model, done, total)))
