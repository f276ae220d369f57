"""What all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Tests that load torch do so next to servers and other test processes.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A source tree that was not installed is importable through its links.
SOURCE = Path(__file__).resolve().parent.parent / "python"
if str(SOURCE) not in sys.path:
    sys.path.append(str(SOURCE))
