"""CPU backend in C++: tiles of scores that never leave the cache, forward and backward in one pass each.

The library is built when the package is installed where a C++ compiler exists (see ``setup.py``) and is
loaded through a plain C interface, so one build serves every version of torch and Python. It picks AVX-512,
AVX2 or portable code when it runs. Operands are float32 or bfloat16 (brought into float32 tile by tile).
"""

import ctypes
import struct
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from maskprior.kernels.operators import Gradients, Needs, define_operator, empty_gradients, empty_output
from maskprior.kernels.problem import AttentionProblem, check_bias_range

LEVELS = ("portable", "AVX2", "AVX-512")
DTYPES = (torch.float32, torch.bfloat16)

# struct MaskpriorCall of native_src/interface.h, field by field.
_CALL = struct.Struct("=8q7q2d 4q4q4q 3q 5q 4q2q 4q4q4q4qq")
_NO_ROWS = (0, 0, 0, 0)
_LARGE = 1 << 22  # bytes from which fresh memory is worth a hint
_INFINITE_SCORE, _OUT_OF_MEMORY = 1, 2


class Library(NamedTuple):
    """The library's functions (None if there is no library), its best instruction set, and the reason."""

    functions: ctypes.CDLL | None
    level: int
    reason: str


def load_library(path: Path) -> Library:
    """Load the compiled library, or say why there is none."""
    if not path.exists():
        hint = "installing again where there is a C++ compiler builds it, `pip install -v` says why not"
        return Library(None, 0, f"was not built, there is no {path}: {hint}")
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        return Library(None, 0, f"could not be loaded: {error}")
    if functions.maskprior_call_size() != _CALL.size:
        return Library(None, 0, f"was built from other sources than these; install again to rebuild {path}")
    level = int(functions.maskprior_level())
    return Library(functions, level, f"uses {LEVELS[level]} code")


LIBRARY = load_library(Path(__file__).with_name("_native.so"))


def lacks(problem: AttentionProblem) -> str:
    """What keeps this backend from the problem; empty if nothing."""
    if problem.query.device.type != "cpu":
        return f"runs on the CPU, got {problem.query.device.type}"
    if LIBRARY.functions is None:
        return LIBRARY.reason
    if problem.query.dtype not in DTYPES:
        return f"computes float32 and bfloat16, got {problem.query.dtype}"
    return ""


def forward(problem: AttentionProblem, level: int = LIBRARY.level) -> tuple[Tensor, Tensor]:
    """Output, and the highest score and the logarithm of the total of each query, ``[2, B, Hq, Lq]``."""
    problem, output, norm = _whole_rows(problem), empty_output(problem), empty_residual(problem)
    hint_large_pages(output)
    if output.numel() > 0:
        _call("maskprior_forward", problem, level, (*_rows(output), *_planes(norm)), _NO_GRADIENTS)
    return output, norm


def backward(
    problem: AttentionProblem,
    output: Tensor,
    residual: Tensor,
    gradient: Tensor,
    needs: Needs,
    level: int = LIBRARY.level,
) -> Gradients:
    """All gradients in one pass."""
    problem, grads, gradient = _whole_rows(problem), empty_gradients(problem, needs), _whole(gradient)
    hint_large_pages(*grads)
    if output.numel() == 0:
        return Gradients._make(grad.zero_() for grad in grads)
    stored = (*_rows(output), *_planes(residual))
    operands = [_rows(grad) if needs.operands else _NO_ROWS for grad in grads[:3]]
    pointers = (*_rows(gradient), *operands[0], *operands[1], *operands[2], grads.bias.data_ptr())
    _call("maskprior_backward", problem, level, stored, pointers, needs)
    return grads


def empty_residual(problem: AttentionProblem) -> Tensor:
    """Room for two numbers of each query."""
    return problem.query.new_empty(2, *problem.query.shape[:3], dtype=torch.float32)


attention = define_operator("native", forward, backward, empty_residual, "CPU")


def hint_large_pages(*tensors: Tensor) -> None:
    """Ask for large pages under large fresh tensors: small ones cost more to map than to fill."""
    for tensor in tensors:
        if tensor.nbytes >= _LARGE and LIBRARY.functions is not None:
            storage = tensor.untyped_storage()
            LIBRARY.functions.maskprior_prefer_large_pages(
                ctypes.c_void_p(storage.data_ptr()), ctypes.c_int64(storage.nbytes())
            )


def _whole(tensor: Tensor) -> Tensor:
    """The tensor with a contiguous last axis, as the library reads whole rows."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _whole_rows(problem: AttentionProblem) -> AttentionProblem:
    query, key, value, bias, allowed, is_causal, scale, dropout_p, seed = problem
    if bias is not None:
        bias = _whole(bias)
    if allowed is not None and allowed.stride(3) > 1 and allowed.shape[3] > 1:
        allowed = allowed.contiguous()
    rows = _whole(query), _whole(key), _whole(value)
    return AttentionProblem(*rows, bias, allowed, is_causal, scale, dropout_p, seed)


def _rows(tensor: Tensor) -> tuple[int, ...]:
    """Pointer and the strides of batch, head and row."""
    return (tensor.data_ptr(), *tensor.stride()[:3])


def _planes(norm: Tensor) -> tuple[int, int]:
    """Pointers of the two halves of a contiguous float32 tensor."""
    return norm.data_ptr(), norm.data_ptr() + norm.nbytes // 2


def _broadcast(tensor: Tensor | None) -> tuple[int, ...]:
    """Pointer and all strides, 0 along axes of size one; or nothing."""
    if tensor is None:
        return 0, 0, 0, 0, 0
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return (tensor.data_ptr(), *(stride if size > 1 else 0 for size, stride in strides))


_NO_GRADIENTS = (0,) * 17


def _call(
    name: str,
    problem: AttentionProblem,
    level: int,
    stored: tuple[int, ...],
    gradients: tuple[int, ...],
    needs: Needs = Needs(False, False),  # noqa: B008 (immutable)
) -> None:
    query, key, value, bias, allowed, is_causal, scale, dropout_p, seed = problem
    batch, heads, queries, width = query.shape
    packed = _CALL.pack(
        *(batch, heads, key.shape[1], queries, key.shape[2], width, value.shape[3]),
        *(0 if bias is None else bias.shape[0], query.dtype == torch.bfloat16, is_causal),
        *(needs.operands, needs.bias and bias is not None, torch.get_num_threads(), level),
        *(0 if seed is None else int(seed), dropout_p, scale),
        *(*_rows(query), *_rows(key), *_rows(value)),
        *((0, 0, 0) if bias is None else (bias.data_ptr(), *bias.stride()[:2])),
        *(*_broadcast(allowed), *stored, *gradients),
    )
    status = getattr(LIBRARY.functions, name)(packed)
    if status == _OUT_OF_MEMORY:
        raise MemoryError("no memory for the scratch space of the native attention")
    if status == _INFINITE_SCORE and bias is not None:
        check_bias_range(bias)
