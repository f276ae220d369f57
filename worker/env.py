"""The only reader of the process environment in the worker."""

from __future__ import annotations

import os
from pathlib import Path

from denizen.worker.errors import ConfigError


def log_level() -> str:
    """``DENIZEN_LOG``: debug, info, warning (default) or error."""
    return os.environ.get("DENIZEN_LOG", "warning").upper()


def cache_folder() -> Path:
    """``DENIZEN_CACHE``: what is converted once and kept; ``~/.cache/denizen`` where it is not set."""
    return Path(os.environ.get("DENIZEN_CACHE") or "~/.cache/denizen").expanduser()


def phases_folder() -> Path | None:
    """``DENIZEN_PHASES``: the folder where phase timers are written, made if it is missing; None = they are off.

    Raises :class:`ConfigError` where nothing can be written.
    """
    name = os.environ.get("DENIZEN_PHASES")
    if not name:
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"DENIZEN_PHASES: no folder can be made at {folder} ({error.strerror}); name another"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"DENIZEN_PHASES: {folder} cannot be written to; name another folder")
    return folder


def for_child(**changes: str) -> dict[str, str]:
    """The environment of a child process, with ``changes``."""
    return {**os.environ, **changes}
