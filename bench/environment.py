"""Where a result was measured: machine, software, source tree, command line."""

from __future__ import annotations

import csv
import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PACKAGES = (
    "denizen",
    "aiohttp",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "triton",
    "flashinfer-python",
    "nvidia-cuda-runtime",
    "numpy",
    "jiwer",
    "whisper-normalizer",
    "soundfile",
)
#: What a GPU is, and what state it is in: `nvidia-smi --help-query-gpu`.
_GPU_FIELDS = (
    "name",
    "uuid",
    "driver_version",
    "vbios_version",
    "compute_cap",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "power.limit",
    "power.max_limit",
    "persistence_mode",
    "ecc.mode.current",
    "mig.mode.current",
    "memory.total",
    "pstate",
    "temperature.gpu",
)
_GPU_STATE = ("clocks.sm", "clocks.mem", "pstate", "temperature.gpu", "power.draw")
_SECRET_FLAGS = ("--api-key",)
_SECRETS = re.compile(r"(--api-key[= ]|\b\w*(?:KEY|TOKEN|SECRET|PASSWORD)=)(?:'[^']*'|\"[^\"]*\"|\S+)")
#: Environment variables that change what is measured.
_VARIABLES = ("DENIZEN_", "CUDA_", "NCCL_", "OMP_", "MKL_", "MALLOC_", "PYTORCH_", "TORCH", "TRITON_")
_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def describe(argv: list[str] | None = None) -> dict[str, Any]:
    """The environment block of a result. Never fails: what cannot be found out is None or left out."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": redact(["denizen-bench", *sys.argv[1:]] if argv is None else argv),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_limit": _cpu_limit(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": os.getloadavg()[0],
        "gpus": _gpus(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": _packages(),
        "variables": _variables(os.environ),
        **_source(),
    }


def finish(environment: dict[str, Any]) -> None:
    """Adds when the run ended, and how warm and fast the GPUs then were."""
    environment["finished"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    if environment.get("gpus"):
        environment["gpus_after"] = _gpus(_GPU_STATE)


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
            shown.append(redact_text(word))
    return shown


def redact_text(line: str) -> str:
    """A command line in one string without its secrets: values of --api-key, and of variables named like one."""
    return _SECRETS.sub(r"\1***", line)


def model_revision(checkpoint: str | Path) -> str | None:
    """The commit of a checkpoint that came from the Hugging Face Hub, as far as its folder tells."""
    folder = Path(checkpoint).resolve()
    if folder.parent.name == "snapshots":  # in the cache: models--OWNER--NAME/snapshots/COMMIT
        return folder.name
    # Downloaded to a folder of its own: the first line of each file's notes.
    for notes in sorted((folder / ".cache" / "huggingface" / "download").glob("*.metadata")):
        try:
            return notes.read_text(encoding="utf-8").splitlines()[0].strip() or None
        except (OSError, ValueError, IndexError):
            continue
    return None


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that change what is measured, without secrets."""
    found = {name: value for name, value in variables.items() if name.startswith(_VARIABLES)}
    return {
        name: "***" if any(secret in name for secret in _SECRET_NAMES) else value
        for name, value in sorted(found.items())
    }


def _cpu_limit() -> float | None:
    """CPUs that the control group may use at once, or None if it is not limited."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


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


def _gpus(fields: Sequence[str] = _GPU_FIELDS) -> list[dict[str, str]]:
    if shutil.which("nvidia-smi") is None:
        return []
    if rows := _query(fields):
        return rows
    # Asked for a field that it does not know, it answers nothing at all.
    gpus: list[dict[str, str]] = []
    for name in fields:
        for index, row in enumerate(_query([name])):
            if index == len(gpus):
                gpus.append({})
            gpus[index] |= row
    return gpus


def _query(fields: Sequence[str]) -> list[dict[str, str]]:
    rows = _run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader") or ""
    return [dict(zip(fields, row, strict=False)) for row in csv.reader(rows.splitlines(), skipinitialspace=True)]
