"""The only reader of the process environment in the worker."""

from __future__ import annotations

import os


def log_level() -> str:
    """``DENIZEN_LOG``: debug, info, warning (default) or error."""
    return os.environ.get("DENIZEN_LOG", "warning").upper()
