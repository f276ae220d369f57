"""``python -m denizen.worker.probe [--cuda]``: what this interpreter offers, as one JSON object on stdout.

The front end asks before it starts workers, and ``denizen doctor`` shows it. Without ``--cuda`` nothing heavy is
imported, so it takes tens of milliseconds.

Keys: ``python``, ``denizen`` (versions), ``native`` (null, or why the extension cannot be imported), ``missing``
(packages that a worker needs and that are not there), ``torch``, ``flashinfer`` (versions or null), ``architectures``
(what ``config.json`` may name); with ``--cuda`` also ``torch_error`` and ``devices``.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from denizen import __version__
from denizen.worker.models.registry import supported_architectures

_NEEDED = ("msgpack", "numpy", "safetensors", "tokenizers", "torch")


def probe() -> dict[str, Any]:
    """The light part."""
    native = None
    try:
        importlib.import_module("denizen._native")
    except ImportError as error:
        native = str(error)
    return {
        "python": platform.python_version(),
        "denizen": __version__,
        "native": native,
        "missing": [name for name in _NEEDED if find_spec(name) is None],
        "torch": _version("torch"),
        "flashinfer": _version("flashinfer-python"),
        "architectures": supported_architectures(),
    }


def cuda() -> dict[str, Any]:
    """What torch sees; imports it."""
    try:
        torch = importlib.import_module("torch")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return {
            "torch_error": None,
            "cuda": torch.version.cuda,
            "devices": [_device(torch, index) for index in range(count)],
        }
    except Exception as error:  # a broken install raises all kinds
        return {"torch_error": f"{type(error).__name__}: {error}", "cuda": None, "devices": []}


def _device(torch: Any, index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    capability = f"{properties.major}.{properties.minor}"
    return f"cuda:{index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB, capability {capability}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(json.dumps(probe() | (cuda() if "--cuda" in sys.argv[1:] else {})))
