"""Installs without Triton: every kernel module imports, references work, and a twin says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import denizen.kernels

_SCRIPT = """
import sys
sys.modules["triton"] = None
import importlib
for name in sys.argv[1:]:
    importlib.import_module(f"denizen.kernels.{name}")
import torch
from denizen.kernels.gate import silu_mul, silu_mul_triton
x = torch.ones(2, 8)
assert silu_mul(x).shape == (2, 4)
try:
    silu_mul_triton(x)
except ImportError as error:
    print(error)
"""


def test_kernels_do_without_triton() -> None:
    names = [path.stem for path in Path(denizen.kernels.__path__[0]).glob("*.py") if path.stem != "__init__"]
    assert len(names) > 10
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _SCRIPT, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "pip install triton" in done.stdout
