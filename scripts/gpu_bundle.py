"""Collects into ``.gpu/`` what a GPU machine without network needs beside the sources: ``make gpu-bundle``.

- ``wheels/``: FlashInfer and the packages that it imports, for the Python of that machine;
- ``aot/``: FlashInfer modules compiled here for Hopper, with NVIDIA's compiler from PyPI, so that nothing is compiled
  there (half a minute a module on 16 cores);
- ``bin/denizen`` and ``_native.abi3.so``: the launch binary and the extension, built from this checkout and stripped;
- ``env.sh``: to be sourced there from the repository's root; installs the wheels aside, puts the extension in its place
  and sets the environment, the commit of these sources included. ``DENIZEN_BUNDLE`` names the folder if it is not
  ``.gpu``;
- ``triton-cache.tar.xz``, if somebody has brought one: what ``scripts/bench_gpu.sh`` leaves in ``$OUT`` where it had
  none.

Takes minutes the first time; what is there already is kept, but for binary and extension, which cargo keeps up to date.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_BUNDLE = _ROOT / ".gpu"
_WORK = _ROOT / "target" / "gpu-bundle"
_FLASHINFER = "flashinfer-python==0.6.14"
#: What FlashInfer, worker and benchmarks import and a machine with PyTorch may lack.
_PACKAGES = (
    _FLASHINFER,
    "apache-tvm-ffi==0.1.15.post2",
    "click",
    "einops",
    "ninja",
    "nvidia-ml-py",
    "packaging",
    "requests",
    "urllib3",
    "certifi",
    "idna",
    "charset-normalizer",
    "typing-extensions",
    "tabulate",
    "tqdm",
    "msgpack",
    # What transcription is measured with.
    "cffi",
    "jiwer",
    "more-itertools",
    "pycparser",
    "rapidfuzz",
    "regex",
    "soundfile",
    "whisper-normalizer==0.1.15",
)
#: Found by trial: FlashInfer's sources include these libraries' headers.
_COMPILER = (
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-curand==10.4.0.*",
    "nvidia-cublas==13.1.*",
)
#: Of sources and bundle together: what travels to such machines is limited.
_LIMIT_MIB = 63
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

_ENV = """\
# Source this on the GPU machine from the repository's root.
denizen_bundle=${DENIZEN_BUNDLE:-$PWD/.gpu}
denizen_site=${TMPDIR:-/tmp}/denizen-site
if [ ! -d "$denizen_site/flashinfer" ]; then
  PIP_CONSTRAINT= python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \\
    --target "$denizen_site" "$denizen_bundle"/wheels/*.whl
  if [ -d "$denizen_bundle/aot" ]; then cp -r "$denizen_bundle/aot" "$denizen_site/flashinfer/data/"; fi
fi
# A running worker may have the old file mapped: overwriting it would take the ground from under it.
cmp -s "$denizen_bundle/_native.abi3.so" python/denizen/_native.abi3.so ||
  cp --remove-destination "$denizen_bundle/_native.abi3.so" python/denizen/
chmod +x "$denizen_bundle/bin/denizen"
export DENIZEN_BIN=$denizen_bundle/bin/denizen
export PYTHONPATH=$PWD/python:$denizen_site${PYTHONPATH:+:$PYTHONPATH}
export FLASHINFER_CUDA_ARCH_LIST=9.0a
denizen_nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
export CUDA_HOME=${CUDA_HOME:-$(dirname "$(dirname "$denizen_nvcc")")}
# Modules that were not built beforehand link against names that only development packages install.
denizen_links=$denizen_site/links
mkdir -p "$denizen_links"
denizen_packages=$(python3 -c 'import site; print(*site.getsitepackages())')
denizen_cudart=$(find $denizen_packages -name libcudart.so.13 2>/dev/null | head -1)
ln -sf "${denizen_cudart:-$CUDA_HOME/lib64/libcudart.so.13}" "$denizen_links/libcudart.so"
denizen_driver=$(ldconfig -p | sed -n 's/.*libcuda\\.so\\.1.*=> //p' | head -1)
ln -sf "${denizen_driver:-$CUDA_HOME/lib64/stubs/libcuda.so}" "$denizen_links/libcuda.so"
export LIBRARY_PATH=$denizen_links${LIBRARY_PATH:+:$LIBRARY_PATH}
# Kernels that were compiled on such a machine before.
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-${TMPDIR:-/tmp}/denizen-triton}
if [ ! -d "$TRITON_CACHE_DIR" ]; then
  mkdir -p "$TRITON_CACHE_DIR"
  denizen_kernels=$denizen_bundle/triton-cache.tar.xz
  if [ -f "$denizen_kernels" ]; then python3 -W ignore -m tarfile -e "$denizen_kernels" "$TRITON_CACHE_DIR"; fi
fi
# The sources travel without their history.
export DENIZEN_COMMIT=@COMMIT@ DENIZEN_DIRTY=@DIRTY@
"""

_BUILD = """\
import sys
import torch
from flashinfer.jit.attention import gen_batch_decode_module, gen_batch_prefill_module
kind, dim = sys.argv[1].split(":")
types = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32, int(dim), int(dim), 0, False, False)
spec = gen_batch_prefill_module("fa2", *types, False) if kind == "tc" else gen_batch_decode_module(*types)
spec.build(verbose=False)
print(spec.get_library_path())
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="Python of the GPU machine (default %(default)s)")
    parser.add_argument(
        "--modules",
        nargs="*",
        default=["tc:256", "tc:64", "cc:64"],
        metavar="KIND:DIM",
        help="modules to compile: tc = tensor cores (prefill and decode), cc = CUDA cores (decode), and a head "
        "dimension (default: tc:256 for Qwen3.5, tc:64 and cc:64 for Whisper); none = wheels only",
    )
    options = parser.parse_args()
    for module in options.modules:
        if module.partition(":")[0] not in ("tc", "cc") or not module.partition(":")[2].isdigit():
            parser.error(f"--modules: {module!r} is not tc:DIM or cc:DIM")
    _download_wheels(options.python)
    for module in options.modules:
        _compile(module)
    _build_programs()
    commit, dirty = _source()
    (_BUNDLE / "env.sh").write_text(_ENV.replace("@COMMIT@", commit).replace("@DIRTY@", str(int(dirty))))
    bundle, tree = (sum(path.stat().st_size for path in paths) / 2**20 for paths in (_files(_BUNDLE), _sources()))
    print(f"{_BUNDLE}: {bundle:.0f} MiB; with the sources {bundle + tree:.0f} MiB")
    if bundle + tree > _LIMIT_MIB:
        folders = sorted(path for path in _BUNDLE.iterdir() if path.is_dir())
        sizes = ", ".join(f"{path.name} {sum(f.stat().st_size for f in _files(path)) / 2**20:.0f}" for path in folders)
        print(
            f"more than {_LIMIT_MIB} MiB: remove modules from aot, or what else lies there ({sizes})", file=sys.stderr
        )
        return 1
    return 0


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def _source() -> tuple[str, bool]:
    """The commit of the sources, and whether they differ from it."""
    git = partial(subprocess.run, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    status = git(["git", "status", "--porcelain"]).stdout
    return git(["git", "rev-parse", "HEAD"]).stdout.strip(), bool(status)


def _sources() -> list[Path]:
    """What travels beside the bundle: all files that git does not ignore."""
    command = ["git", "-C", str(_ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    return [path for name in names if name and (path := _ROOT / name).is_file() and not path.is_symlink()]


def _build_programs() -> None:
    """The launch binary and the extension; the release profile strips both."""
    cargo = ["cargo", "build", "--release", "--locked", "-p", "denizen-frontend", "-p", "denizen-native"]
    subprocess.run(cargo, cwd=_ROOT, env={**os.environ, "PYO3_PYTHON": sys.executable}, check=True)
    release = _ROOT / "target" / "release"
    (_BUNDLE / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(release / "denizen", _BUNDLE / "bin" / "denizen")
    shutil.copyfile(release / "lib_native.so", _BUNDLE / "_native.abi3.so")


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments], check=True)


def _download_wheels(python: str) -> None:
    wheels = _BUNDLE / "wheels"
    wanted = [p for p in _PACKAGES if not list(wheels.glob(p.partition("==")[0].replace("-", "_") + "-*.whl"))]
    platforms = [argument for name in _PLATFORMS for argument in ("--platform", name)]
    for package in wanted:
        print(f"downloading {package}")
        _pip(
            "download", "--no-deps", "--only-binary=:all:", "--python-version", python, "--implementation", "cp",
            *platforms, "-d", str(wheels), package,
        )  # fmt: skip


def _compile(module: str) -> None:
    kind, dim = module.split(":")
    prefix = "batch_prefill" if kind == "tc" else "batch_decode"
    if list((_BUNDLE / "aot").glob(f"{prefix}*head_dim_qk_{dim}_*/*.so")):
        return
    site, cuda = _site(), _compiler()
    print(f"compiling {module} (minutes)")
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "CUDA_HOME": str(cuda),
        "LIBRARY_PATH": str(cuda / "lib"),
        "PATH": f"{site / 'bin'}:{cuda / 'bin'}:{os.environ['PATH']}",
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "FLASHINFER_WORKSPACE_BASE": str(_WORK / "workspace"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-c", _BUILD, module]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    library = Path(done.stdout.splitlines()[-1])
    target = _BUNDLE / "aot" / library.parent.name / library.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(library, target)


def _site() -> Path:
    """FlashInfer for this machine's Python, aside from the environment that runs this."""
    site = _WORK / "site"
    if not (site / "flashinfer").is_dir():
        _pip("install", "--no-deps", "--target", str(site), *_PACKAGES)
    return site


def _compiler() -> Path:
    """NVIDIA's compiler, unpacked as one toolkit."""
    unpacked = _WORK / "cuda"
    home = unpacked / "nvidia" / "cu13"
    if not (home / "bin" / "nvcc").exists():
        wheels = _WORK / "compiler-wheels"
        for package in _COMPILER:
            _pip("download", "--no-deps", "-d", str(wheels), package)
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        for tool in [*(home / "bin").iterdir(), *(home / "nvvm" / "bin").iterdir()]:
            if tool.is_file():
                tool.chmod(0o755)
        (home / "lib64").symlink_to("lib")
        (home / "lib" / "libcudart.so").symlink_to("libcudart.so.13")
        # The driver's library is not here; the linker wants its name only.
        empty = [
            "cc",
            "-shared",
            "-x",
            "c",
            "/dev/null",
            "-Wl,-soname,libcuda.so.1",
            "-o",
            str(home / "lib" / "libcuda.so"),
        ]
        subprocess.run(empty, check=True)
    return home


if __name__ == "__main__":
    sys.exit(main())
