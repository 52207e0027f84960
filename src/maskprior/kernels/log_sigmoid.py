"""log σ(M) where PyTorch's own is slow: on the CPU it takes longer than the attention itself at N = 1024.

PyTorch's ``logsigmoid`` keeps a buffer of the size of M and takes some 12 ns an element; this takes one.
"""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskprior.kernels.native import LIBRARY, hint_large_pages
from maskprior.kernels.operators import transform_on

WORTHWHILE = 4096  # elements from which the call into the library pays


def log_sigmoid(logits: Tensor) -> Tensor:
    """log σ(logits) elementwise, with ∂ log σ(m)/∂m = σ(−m); second derivatives too.

    Under torch.compile or torch.func, in forward mode, and for anything but large float32 tensors of the CPU
    it is torch's own.
    """
    # Compiling is asked for first: the size would become a guard.
    if (
        torch.compiler.is_compiling()
        or LIBRARY.functions is None
        or type(logits) not in (Tensor, nn.Parameter)
        or transform_on(logits)
    ):
        return F.logsigmoid(logits)
    if not (logits.is_cpu and logits.dtype == torch.float32 and logits.numel() >= WORTHWHILE):
        return F.logsigmoid(logits)
    result: Tensor = _LogSigmoid.apply(logits)
    return result


class _LogSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)  # itself, as a copy would have no derivative
        return _compute(logits.contiguous(), None)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (logits,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # the backward is recorded
            return gradient * torch.sigmoid(-logits)
        return _compute(logits.contiguous(), gradient.contiguous())


def _compute(logits: Tensor, gradient: Tensor | None) -> Tensor:
    result = torch.empty_like(logits)
    hint_large_pages(result)
    pointers = [logits.data_ptr(), 0 if gradient is None else gradient.data_ptr(), result.data_ptr()]
    assert LIBRARY.functions is not None
    LIBRARY.functions.maskprior_log_sigmoid(
        *map(ctypes.c_void_p, pointers),
        *map(ctypes.c_int64, (logits.numel(), torch.get_num_threads(), LIBRARY.level)),
    )
    return result
