"""The worker's exceptions. Every message says what happened and what to do about it."""

from __future__ import annotations


class WorkerError(Exception):
    """Base class. ``code`` is what ERROR envelopes carry."""

    code = "internal"


class ConfigError(WorkerError):
    """The ``--config`` JSON is wrong."""

    code = "bad_config"


class DeviceError(WorkerError):
    """The device that was asked for cannot be used."""

    code = "bad_device"


class CapacityError(WorkerError):
    """The pools cannot be made as large as the configuration asks for, or not at all."""

    code = "capacity"


class CheckpointError(WorkerError):
    """A model's files are missing, broken or of an unknown family."""

    code = "bad_checkpoint"


class ModelError(WorkerError):
    """A model declares pools or walks that cannot run."""


class RequestError(WorkerError):
    """A request that the worker refuses. ``param`` names the offending parameter of SUBMIT."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class StepError(WorkerError):
    """A step raised on the device thread; its rows fail, the worker goes on."""

    code = "step_failed"
