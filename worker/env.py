"""The only reader of the process environment in the worker."""

from __future__ import annotations

import os
from pathlib import Path


def log_level() -> str:
    """``DENIZEN_LOG``: debug, info, warning (default) or error."""
    return os.environ.get("DENIZEN_LOG", "warning").upper()


def cache_folder() -> Path:
    """``DENIZEN_CACHE``: what is converted once and kept; ``~/.cache/denizen`` where it is not set."""
    return Path(os.environ.get("DENIZEN_CACHE") or "~/.cache/denizen").expanduser()


def phases_folder() -> Path | None:
    """``DENIZEN_PHASES``: where phase timers are written; None = they are off."""
    folder = os.environ.get("DENIZEN_PHASES")
    return Path(folder) if folder else None


def for_child(**changes: str) -> dict[str, str]:
    """The environment of a child process, with ``changes``."""
    return {**os.environ, **changes}
