"""Triton, where it is installed. Installs for the CPU need none: the torch reference of every kernel stands alone.

``TRITON_INTERPRET=1`` in the environment before the first import runs the kernels on the CPU, which is how their tests
hold them to their references without a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fast_log2", "interpreted", "jit", "power_of_two", "tl"]

try:
    import triton  # type: ignore[import-untyped]
    from triton import language as tl
except ImportError:
    triton = None
    tl = None


class _Missing:
    """Stands for a kernel that cannot be compiled here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        raise ImportError(f"the kernel '{self._name}' needs Triton, which is not installed: pip install triton")


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``; without Triton, something that says so when it is launched."""
    return _Missing(function.__name__) if triton is None else triton.jit(function)


def interpreted() -> bool:
    """Whether kernels run on the CPU, or not at all."""
    return triton is None or bool(triton.knobs.runtime.interpret)


def _log2(x: tl.tensor) -> tl.tensor:
    return tl.log2(x)


def _fast_log2() -> Any:
    if triton is None:
        return None
    # The interpreter has no library of device functions.
    return jit(_log2) if triton.knobs.runtime.interpret else tl.extra.cuda.libdevice.fast_log2f


#: For kernels: the hardware's base-2 logarithm, one instruction where ``tl.log2`` is a polynomial of fifteen.
fast_log2 = _fast_log2()


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least ``size``: a block's width."""
    return 1 << max(size - 1, 0).bit_length()
