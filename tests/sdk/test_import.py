"""The base install is enough: `denizen.shm` needs msgpack, posix_ipc, numpy and the extension, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.arena.harness import ENVIRONMENT

CODE = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "flashinfer", "transformers", "tokenizers", "triton", "typing_extensions"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
before = set(sys.modules)
import denizen.shm
from denizen.shm import *
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_base_install_is_enough() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    top = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    # What Cython registers for msgpack and numpy belongs to them.
    assert {name for name in top if "cython" not in name} == {"denizen", "msgpack", "posix_ipc", "numpy"}
    of_ours = {name for name in loaded if name.startswith("denizen.")}
    assert "denizen._native" in of_ours
    assert not {name for name in of_ours if not name.startswith(("denizen.shm", "denizen._native"))}
