"""Every kernel against its torch reference on a CPU, through Triton's interpreter.

The interpreter must be chosen before a kernel is defined, so each file of checks runs in a process of its own. On a
machine with a GPU the same files run compiled: ``tests/gpu/run_all.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
_HERE = Path(__file__).parent
_CHECKS = sorted(path.name for path in _HERE.glob("check_*.py"))


@pytest.mark.parametrize("name", _CHECKS)
def test_kernels_equal_their_references(name: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", str(_HERE / name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
