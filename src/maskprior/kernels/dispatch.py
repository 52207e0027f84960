"""The dispatcher: which backend computes a call, and why."""

from typing import NamedTuple

from torch import Tensor

from maskprior.kernels.problem import AttentionProblem
from maskprior.kernels.reference import attention_with_weights

BACKENDS = ("auto", "reference")


class BackendChoice(NamedTuple):
    """The backend that computes a call, and the reason in words."""

    name: str
    reason: str


def select_backend(
    problem: AttentionProblem, *, need_weights: bool = False, backend: str = "auto"
) -> BackendChoice:
    """Backend for this problem and the reason.

    Raises:
        ValueError: an unknown backend, or one that cannot do what is asked.
    """
    if backend not in BACKENDS:
        raise ValueError(f"expected backend in {BACKENDS}, got {backend!r}")
    return BackendChoice("reference", "the equation in plain torch works everywhere")


def compute_attention(
    problem: AttentionProblem, *, need_weights: bool = False, backend: str = "auto"
) -> tuple[Tensor, Tensor | None]:
    """Output and, where asked for, the weights, from the backend that :func:`select_backend` names."""
    select_backend(problem, need_weights=need_weights, backend=backend)
    output, weights = attention_with_weights(problem)
    return output, (weights if need_weights else None)
