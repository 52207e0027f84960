"""The dispatcher: which backend computes a call, and why."""

import warnings
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from maskprior.kernels import aten, native, reference, sdpa
from maskprior.kernels.operators import is_plain, transform_on
from maskprior.kernels.problem import AttentionProblem, check_bias_range, check_one_bias, make_problem

# What `auto` tries on a device, fastest first; the last can do everything.
ON_CPU = ("native", "aten", "reference")
ON_CUDA = ("triton", "sdpa", "reference")
ELSEWHERE = ("sdpa", "reference")
BACKENDS = ("auto", "native", "aten", "triton", "sdpa", "flex", "reference")

_MERITS = {
    "native": "C++ tiles that stay in the cache",
    "aten": "torch's own products over blocks",
    "triton": "fused, with a deterministic bias gradient",
    "sdpa": "torch's fused attention",
    "reference": "the equation in plain torch",
}
_HAS_TRITON = find_spec("triton") is not None


class BackendChoice(NamedTuple):
    """The backend that computes a call, and the reason in words."""

    name: str
    reason: str


def select_backend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask_logits: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    allowed: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    backend: str = "auto",
) -> BackendChoice:
    """The backend that would compute this call of :func:`maskprior.functional.attention`, and the reason.

    The arguments are those of the call; ``backend`` is "auto" or one of ``maskprior.kernels.BACKENDS``.

    Raises:
        ValueError: the call is not valid, the backend is unknown or cannot do what is asked.
        TypeError: tensors of the wrong type.
    """
    check_one_bias(mask_logits, bias)
    if mask_logits is not None:
        bias = mask_logits  # of the same shape and type, which is all that counts
    problem = make_problem(
        query, key, value, bias=bias, allowed=allowed, is_causal=is_causal, scale=scale, dropout_p=dropout_p
    )
    name = choose(problem, need_weights, backend)
    if backend != "auto":
        return BackendChoice(name, "it was asked for")
    order = _order(problem)
    passed_over = [f"{other} {_lack(other, problem, need_weights)}" for other in order[: order.index(name)]]
    return BackendChoice(name, "; ".join([_MERITS[name], *passed_over]))


def compute_attention(
    problem: AttentionProblem, *, need_weights: bool = False, backend: str = "auto"
) -> tuple[Tensor, Tensor | None]:
    """Output and, where asked for, the weights, from the backend that :func:`choose` names."""
    name = choose(problem, need_weights, backend)
    if name == "native":
        return native.attention(problem), None
    if name == "aten":
        return aten.attention(problem), None
    _check_bias(problem)
    if name == "sdpa":
        return sdpa.attention(problem), None
    if name in ("triton", "flex"):
        return _compute_on_cuda(name, problem), None
    output, weights = reference.attention_with_weights(problem)
    return output, (weights if need_weights else None)


def _check_bias(problem: AttentionProblem) -> None:
    """Refuse +∞ where it is seen without waiting for a device, for backends that do not see it themselves."""
    bias = problem.bias
    if bias is None or not bias.is_cpu or torch.compiler.is_compiling():
        return
    if is_plain(problem) and not transform_on(*problem[:4]):
        check_bias_range(bias.detach())


def choose(problem: AttentionProblem, need_weights: bool, backend: str) -> str:
    """Name of the backend asked for if it can, else of the fastest that can.

    Raises:
        ValueError: an unknown backend, or one that cannot do what is asked.
    """
    if backend == "auto":
        for name in _order(problem):
            if not _lack(name, problem, need_weights):
                if name == "sdpa" and _learns_on_cuda(problem):
                    _warn_of_sdpa(_lack("triton", problem, need_weights))
                return name
    if backend not in BACKENDS:
        raise ValueError(f"expected backend in {BACKENDS}, got {backend!r}")
    lack = _lack(backend, problem, need_weights)
    if lack:
        able = choose(problem, need_weights, "auto")
        raise ValueError(f"the {backend} backend {lack}; backend={able!r} can do what is asked")
    return backend


def _order(problem: AttentionProblem) -> tuple[str, ...]:
    query = problem.query
    return ON_CPU if query.is_cpu else ON_CUDA if query.is_cuda else ELSEWHERE


def _lack(name: str, problem: AttentionProblem, need_weights: bool) -> str:
    """What keeps a backend from the problem; empty if nothing."""
    if name == "reference":
        return ""
    if need_weights:
        return "does not return weights"
    transform = transform_on(*problem[:4]) if name != "sdpa" else ""
    if transform:
        return f"does not take {transform}"
    if name == "native":
        return native.lacks(problem)
    if name == "aten":
        return aten.lacks(problem)
    return "" if name == "sdpa" else _lack_on_cuda(name, problem)


def _lack_on_cuda(name: str, problem: AttentionProblem) -> str:
    # Imported late: the CPU pays for neither Triton nor FlexAttention.
    if name == "flex":
        from maskprior.kernels import flex

        return flex.lacks(problem)
    if not _HAS_TRITON:
        return "needs the package triton"
    from maskprior.kernels import triton

    return triton.lacks(problem)


def _compute_on_cuda(name: str, problem: AttentionProblem) -> Tensor:
    if name == "flex":
        from maskprior.kernels import flex

        return flex.attention(problem)
    from maskprior.kernels import triton

    return triton.attention(problem)


def _learns_on_cuda(problem: AttentionProblem) -> bool:
    learns = problem.bias is not None and problem.bias.requires_grad
    return problem.query.is_cuda and learns and not torch.compiler.is_compiling()


@lru_cache(maxsize=1)
def _warn_of_sdpa(lack: str) -> None:
    warnings.warn(
        "attention with a learnable bias falls to torch's SDPA, whose bias gradient takes B · H · N² of "
        f"memory, because the triton backend {lack}",
        stacklevel=2,
    )
