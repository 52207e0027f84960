"""The dispatcher: which backend computes a call, and why."""

from typing import NamedTuple

from torch import Tensor

from maskprior.kernels import aten, native, reference
from maskprior.kernels.problem import AttentionProblem, make_problem

# Fastest first; the last one can do everything.
ORDER = ("native", "aten", "reference")
BACKENDS = ("auto", *ORDER)

_DIFFERENTIABLE = {"native": native.attention, "aten": aten.attention}
_LACKS = {"native": native.lacks, "aten": aten.lacks}
_MERITS = {
    "native": "C++ tiles that stay in the cache",
    "aten": "torch's own products over blocks",
    "reference": "the equation in plain torch",
}


class BackendChoice(NamedTuple):
    """The backend that computes a call, and the reason in words."""

    name: str
    reason: str


def select_backend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
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

    Raises:
        ValueError: the call is not valid, the backend is unknown or cannot do what is asked.
        TypeError: tensors of the wrong type.
    """
    problem = make_problem(
        query, key, value, bias=bias, allowed=allowed, is_causal=is_causal, scale=scale, dropout_p=dropout_p
    )
    name = choose(problem, need_weights, backend)
    if backend != "auto":
        return BackendChoice(name, "it was asked for")
    passed_over = [f"{other} {_lack(other, problem, need_weights)}" for other in ORDER[: ORDER.index(name)]]
    return BackendChoice(name, "; ".join([_MERITS[name], *passed_over]))


def compute_attention(
    problem: AttentionProblem, *, need_weights: bool = False, backend: str = "auto"
) -> tuple[Tensor, Tensor | None]:
    """Output and, where asked for, the weights, from the backend that :func:`choose` names."""
    name = choose(problem, need_weights, backend)
    if name != "reference":
        return _DIFFERENTIABLE[name](problem), None
    output, weights = reference.attention_with_weights(problem)
    return output, (weights if need_weights else None)


def choose(problem: AttentionProblem, need_weights: bool, backend: str) -> str:
    """Name of the backend asked for if it can, else of the fastest that can.

    Raises:
        ValueError: an unknown backend, or one that cannot do what is asked.
    """
    if backend == "auto":
        for name in ORDER:
            if not _lack(name, problem, need_weights):
                return name
    if backend not in BACKENDS:
        raise ValueError(f"expected backend in {BACKENDS}, got {backend!r}")
    lack = _lack(backend, problem, need_weights)
    if lack:
        able = choose(problem, need_weights, "auto")
        raise ValueError(f"the {backend} backend {lack}; backend={able!r} can do what is asked")
    return backend


def _lack(name: str, problem: AttentionProblem, need_weights: bool) -> str:
    """What keeps a backend from the problem; empty if nothing."""
    if name == "reference":
        return ""
    return "does not return weights" if need_weights else _LACKS[name](problem)
