"""What the kernel checks share. They run on a GPU, and on a CPU through Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from denizen.kernels.jit import tl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Relative error that rounding to a type explains. The interpreter truncates to bf16, where a GPU rounds to nearest.
BOUND = {torch.float32: 2e-6, torch.bfloat16: 4e-3 if DEVICE.type == "cuda" else 1e-2}

if DEVICE.type == "cpu":
    # Loop bounds are arrays of one element in the interpreter, which NumPy no longer converts to an integer.
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang_tensor

    def _patch_tensor(tensor: type, scope: Any) -> None:
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_tensor

    # It keeps bf16 as its 16 bits, and multiplies matrices of them as if they were integers.
    _dot = interpreter.InterpreterBuilder.create_dot

    def _widened(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def _create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        return _dot(self, _widened(a), _widened(b), d, *options)

    interpreter.InterpreterBuilder.create_dot = _create_dot


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def on_device(x: torch.Tensor) -> torch.Tensor:
    """A copy for the kernel; the reference keeps the original, on the CPU."""
    return x.to(DEVICE) if DEVICE.type == "cuda" else x.clone()


def strided(x: torch.Tensor, extra: int = 5) -> torch.Tensor:
    """The same values as columns of a wider tensor whose other columns are NaN (or a large number)."""
    filler = float("nan") if x.is_floating_point() else 1 << 29
    wide = torch.full((*x.shape[:-1], x.shape[-1] + extra), filler, dtype=x.dtype, device=x.device)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An output buffer on the device full of what must not survive."""
    filler = float("nan") if dtype.is_floating_point else -77
    return torch.full(shape, filler, dtype=dtype, device=DEVICE)


def close(got: torch.Tensor, want: torch.Tensor, bound: float, what: str) -> None:
    """Raises unless the relative error of the whole is below ``bound`` and every element is a number."""
    got, want = got.cpu().double(), want.cpu().double()
    if got.shape != want.shape:
        raise AssertionError(f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}")
    if not torch.isfinite(got).all():
        raise AssertionError(f"{what}: not finite")
    error = float((got - want).norm() / want.norm().clamp_min(1e-30))
    if error > bound:
        raise AssertionError(f"{what}: relative error {error:.2e} above {bound:.0e}")


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Raises unless both hold the same bits (NaN equals NaN)."""
    got, want = got.cpu(), want.cpu()
    if got.dtype != want.dtype or not torch.equal(torch.nan_to_num(got, 7e9), torch.nan_to_num(want, 7e9)):
        wrong = (
            int((torch.nan_to_num(got, 7e9) != torch.nan_to_num(want, 7e9)).sum()) if got.shape == want.shape else -1
        )
        raise AssertionError(f"{what}: {wrong} elements differ")
