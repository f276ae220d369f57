"""Command lines of servers that the harness starts."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

_PEER = Path(__file__).with_name("peer.py")


def peer(**behaviour: Any) -> str:
    """A peer (:mod:`tests.bench.peer`) as a process, on the port that the harness gives it."""
    return shlex.join([sys.executable, str(_PEER), "{port}", json.dumps(behaviour)])


def python(code: str, *arguments: str) -> str:
    """A Python program."""
    return shlex.join([sys.executable, "-c", code, *arguments])
