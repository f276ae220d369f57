"""Where a result was measured: machine, software, source tree, command line."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("denizen", "aiohttp", "torch", "transformers", "tokenizers", "triton", "flashinfer-python", "numpy")
_GPU_FIELDS = (
    "name",
    "uuid",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "power.limit",
    "mig.mode.current",
    "memory.total",
)
_SECRET_FLAGS = ("--api-key",)


def describe(argv: list[str] | None = None) -> dict[str, Any]:
    """The environment block of a result. Never fails: what cannot be found out is None or left out."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": redact(["denizen-bench", *sys.argv[1:]] if argv is None else argv),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": os.getloadavg()[0],
        "gpus": _gpus(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": _packages(),
        **_source(),
    }


def redact(argv: list[str]) -> list[str]:
    """The command line without its secrets: results get published."""
    shown: list[str] = []
    for word in argv:
        flag, equals, _ = word.partition("=")
        if shown and shown[-1] in _SECRET_FLAGS:
            shown.append("***")
        elif flag in _SECRET_FLAGS and equals:
            shown.append(f"{flag}=***")
        else:
            shown.append(word)
    return shown


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _packages() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _run(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _source() -> dict[str, Any]:
    """Commit and dirty flag of the tree that the harness runs from; None for an installed wheel.

    What the environment says comes first (`scripts/gpu_bundle.py`): sources that travelled have no history, or one that
    is not theirs.
    """
    if commit := os.environ.get("DENIZEN_COMMIT"):
        return {"commit": commit, "dirty": os.environ.get("DENIZEN_DIRTY", "0") != "0"}
    folder = str(Path(__file__).resolve().parent)
    status = _run("git", "-C", folder, "status", "--porcelain")
    return {
        "commit": _run("git", "-C", folder, "rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
    }


def _gpus() -> list[dict[str, str]]:
    rows = _run("nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader") or ""
    return [dict(zip(_GPU_FIELDS, row.split(", "), strict=False)) for row in rows.splitlines()]
