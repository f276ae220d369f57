"""The wheel ships every tracked file of the packages, the extension and the binary, and works where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: folder in the repository → folder in the wheel
PACKAGES = {
    "python/denizen": "denizen",
    "worker": "denizen/worker",
    "kernels": "denizen/kernels",
    "bench": "denizen/bench",
    "shm/python": "denizen/shm",
}
SUFFIXES = {".py", ".pyi", ".typed", ".json", ".jinja"}


#: A program of somebody who has the base install alone: a server with the stub worker, and a client of it.
CLIENT = """
import os, pathlib, subprocess, sys, time
from denizen.bench.stub_models import write_text
from denizen.shm import Busy, Client, ConnectError

folder = pathlib.Path("run").resolve()
os.environ |= {"DENIZEN_RUN_DIR": str(folder), "VIRTUAL_ENV": sys.prefix}
model = f"text={write_text(pathlib.Path('text'))}"
command = [sys.argv[1], "serve", "--port", "0", "--devices", "cpu", "--model", model]
with subprocess.Popen([*command, "--worker-module", "denizen.worker.stub"], stdout=subprocess.DEVNULL) as server:
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with Client() as client:
                    print(client.generate("hello", max_tokens=5, temperature=0).text)
                    break
            except (ConnectError, Busy):
                assert server.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.05)
    finally:
        server.terminate()
assert "torch" not in sys.modules
"""


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / "dist-data/scripts/denizen").exists():
        pytest.fail("dist-data/scripts/denizen is missing: run make setup first")
    out = tmp_path_factory.mktemp("wheel")
    run(Path(sys.executable).parent / "maturin", "build", "--release", "--locked", "--out", out)
    (wheel,) = out.glob("*.whl")
    return wheel


def test_every_tracked_file_of_the_packages_ships(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = run("git", "ls-files", "-z").split("\0")
    expected = set()
    for folder, package in PACKAGES.items():
        for path in tracked:
            ships = path.startswith(folder + "/") and Path(path).suffix in SUFFIXES and "/results/" not in path
            if ships and (ROOT / path).is_file():
                expected.add(package + path[len(folder) :])
    assert {"denizen/__init__.py", "denizen/worker/protocol.py", "denizen/bench/__main__.py"} <= expected
    assert not expected - names, f"missing from the wheel: {sorted(expected - names)}"
    assert not [name for name in names if "/results/" in name], (
        "measurements of this repository are no part of the product"
    )


def test_wheel_holds_binary_extension_and_nothing_top_level(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top.split("-")[0] for top in tops} == {"denizen"}, f"foreign top-level names: {sorted(tops)}"
    assert "denizen/_native.abi3.so" in names
    (binary,) = [info for info in archive.infolist() if info.filename.endswith(".data/scripts/denizen")]
    assert binary.external_attr >> 16 & 0o111, "the binary is not executable"
    assert len(names) == len(set(names)), "a file is in the wheel twice"
    licences = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "THIRD-PARTY.md"}


def test_base_install_needs_no_torch(wheel: Path, tmp_path: Path) -> None:
    """A fresh environment with the base dependencies imports the client side and runs the binary."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", wheel, PIP_CONSTRAINT=str(constraints))
    assert shutil.which("denizen", path=str(python.parent))
    assert run(python.parent / "denizen", "--version", cwd=tmp_path, VIRTUAL_ENV="").startswith("denizen 0.")
    code = "import denizen._native, denizen.worker.stub, sys; assert 'torch' not in sys.modules"
    run(python, "-c", code, cwd=tmp_path, PYTHONPATH="")
    assert run(python, "-c", CLIENT, python.parent / "denizen", cwd=tmp_path, PYTHONPATH="") == "hello\n"
    bench = subprocess.run(
        [python.parent / "denizen-bench", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (bench.returncode, bench.stderr.count("\n")) == (1, 1)
    assert "pip install 'denizen[bench]'" in bench.stderr
