"""The dispatcher: which backend computes a call, and why."""

from typing import NamedTuple

from torch import Tensor

from maskprior.kernels import aten
from maskprior.kernels.problem import AttentionProblem, make_problem
from maskprior.kernels.reference import attention_with_weights

BACKENDS = ("auto", "reference", "aten")


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
    """The backend that would compute this call, and the reason.

    Raises:
        ValueError: the call is not valid, the backend is unknown or cannot do what is asked.
        TypeError: tensors of the wrong type.
    """
    problem = make_problem(
        query, key, value, bias=bias, allowed=allowed, is_causal=is_causal, scale=scale, dropout_p=dropout_p
    )
    return choose(problem, need_weights, backend)


def compute_attention(
    problem: AttentionProblem, *, need_weights: bool = False, backend: str = "auto"
) -> tuple[Tensor, Tensor | None]:
    """Output and, where asked for, the weights, from the backend that :func:`choose` names."""
    name = choose(problem, need_weights, backend).name
    if name == "reference":
        output, weights = attention_with_weights(problem)
        return output, (weights if need_weights else None)
    return aten.attention(problem), None


def choose(problem: AttentionProblem, need_weights: bool, backend: str) -> BackendChoice:
    """Backend of a checked problem: the one asked for if it can, else the fastest that can."""
    if backend not in BACKENDS:
        raise ValueError(f"expected backend in {BACKENDS}, got {backend!r}")
    if backend == "reference":
        return BackendChoice("reference", "asked for")
    lack = _aten_lacks(problem, need_weights)
    if backend == "aten":
        if lack:
            raise ValueError(f"backend 'aten' {lack}; backend='reference' can")
        return BackendChoice("aten", "asked for")
    return (
        BackendChoice("reference", f"aten {lack}") if lack else BackendChoice("aten", "torch's own products")
    )


def _aten_lacks(problem: AttentionProblem, need_weights: bool) -> str:
    """What keeps the aten backend from this problem, empty if nothing."""
    if problem.query.device.type != "cpu":
        return f"runs on cpu, got {problem.query.device.type}"
    if need_weights:
        return "does not return weights"
    return ""
