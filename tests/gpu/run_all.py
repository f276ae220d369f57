"""Runs every kernel and attention check on a GPU, then the timings; prints one short table last.

``make test-gpu``, or ``python3 tests/gpu/run_all.py [--only NAME] [--no-timings] [--json FILE]``. Needs PyTorch, Triton
and FlashInfer (``.gpu/env.sh`` provides the latter), not pytest. Exit status 1 if a check failed.

Each file of checks runs in a process of its own, all at once: a fault on the device ends one process, not the others.
The timings run alone, afterwards.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TypedDict

_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE.parent / "kernels", _HERE)
_TIMINGS = "timings"
_LIMIT_S = 480
sys.path[:0] = [str(_HERE.parents[1] / "python"), *(str(folder) for folder in _FOLDERS)]


class Check(TypedDict):
    seconds: float
    error: str  #: empty = passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="checks whose 'file.test' contains this")
    parser.add_argument("--no-timings", action="store_true")
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--part", nargs=2, metavar=("FILE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        name, out = options.part
        _write(Path(out), _timings(Path(out)) if name == _TIMINGS else _checks(name, options.only))
        return 0

    import torch

    if not torch.cuda.is_available():
        print("no CUDA device is visible: these checks need a GPU", file=sys.stderr)
        return 2
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}", flush=True)
    names = sorted(path.stem for folder in _FOLDERS for path in folder.glob("check_*.py"))
    checks: dict[str, Check] = {}
    for name, found in _processes(names, options.only).items():
        checks.update(found or {name: Check(seconds=0.0, error="the process ended without results")})
    timings = {} if options.no_timings else _processes([_TIMINGS], "")[_TIMINGS]
    if options.json:
        _write(Path(options.json), {"device": device, "checks": checks, "timings": timings})
    print("\n== timings, µs")
    for name, value in timings.items():
        print(f"{value:9.1f}  {name}")
    print("\n== checks")
    for name, check in checks.items():
        print(f"{'FAIL' if check['error'] else 'ok  '} {check['seconds']:6.1f} s  {name}  {check['error']}")
    failed = sum(bool(check["error"]) for check in checks.values())
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed or not checks else 0


def _processes(names: list[str], only: str) -> dict[str, dict]:
    """Runs the parts at once; the results of each, empty where it left none."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        outs = {name: Path(folder) / f"{name}.json" for name in names}
        command = [sys.executable, str(Path(__file__).resolve()), "--only", only, "--part"]
        running = {name: subprocess.Popen([*command, name, str(out)]) for name, out in outs.items()}
        deadline = time.monotonic() + _LIMIT_S
        for name, process in running.items():
            try:
                process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            results[name] = json.loads(outs[name].read_text()) if outs[name].exists() else {}
            if process.returncode and results[name] and name != _TIMINGS:
                # Also after the last check: a process that serves must end cleanly.
                results[name][f"{name}, at its end"] = _ended(process.returncode)
    return results


def _ended(code: int) -> Check:
    return Check(seconds=0.0, error=f"killed by signal {-code}" if code < 0 else f"exit status {code}")


def _checks(file: str, only: str) -> dict[str, Check]:
    results: dict[str, Check] = {}
    try:
        module = importlib.import_module(file)
    except Exception as error:
        traceback.print_exc()
        return {file: Check(seconds=0.0, error=_brief(error))}
    for name in (name for name in vars(module) if name.startswith("test_")):
        label = f"{file}.{name}"
        if only not in label:
            continue
        begin, failure = time.monotonic(), ""
        try:
            getattr(module, name)()
        except Exception as error:
            traceback.print_exc()
            failure = _brief(error)
        results[label] = Check(seconds=time.monotonic() - begin, error=failure)
        print(f"{label}: {failure or 'ok'}", flush=True)
    return results or {file: Check(seconds=0.0, error="" if only else "no checks in it")}


def _timings(out: Path) -> dict[str, float]:
    """Written after each, so that what was measured before a fault is kept."""
    timings: dict[str, float] = {}
    for name, value in importlib.import_module(_TIMINGS).all_timings():
        timings[name] = value
        _write(out, timings)
        print(f"{value:9.1f}  {name}", flush=True)
    return timings


def _write(path: Path, results: object) -> None:
    path.write_text(json.dumps(results, indent=1))


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


if __name__ == "__main__":
    sys.exit(main())
