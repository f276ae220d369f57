"""Typed reads of a checkpoint's ``config.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from denizen.worker.errors import CheckpointError

if TYPE_CHECKING:
    from denizen.worker.models.checkpoint import Checkpoint


class ConfigReader:
    """Reads keys of ``config.json``, or of a section of it. A fault is a :class:`CheckpointError` with file and key."""

    def __init__(self, checkpoint: Checkpoint, values: dict[str, object] | None = None) -> None:
        self._file = checkpoint.path / "config.json"
        self.values: dict[str, object] = checkpoint.config if values is None else values

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; ``default`` stands for a key that is missing or null."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._unfit(key, "a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._unfit(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._unfit(key, "true or false")
        return value

    def section(self, key: str) -> dict[str, object]:
        """A nested object; empty where the key is missing or null."""
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._unfit(key, "an object")
        return value

    def only(self, key: str, *allowed: object) -> None:
        """Refuses a value other than ``allowed`` (a missing key is allowed)."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            choices = " or ".join(repr(choice) for choice in allowed)
            raise self.error(key, f"is {value!r}, which is not supported (supported: {choices})")

    def _unfit(self, key: str, kind: str) -> CheckpointError:
        value = self.values.get(key)
        found = "is missing" if value is None else f"is {value!r}"
        return self.error(key, f"{found}, but must be {kind}; download the checkpoint again")

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._file}: '{key}' {problem}")
