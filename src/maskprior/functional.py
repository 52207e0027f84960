"""The equation of the paper as pure functions: structure ↔ mask logits → bias → attention.

    attention(Q, K, V) = softmax(Q Kᵀ / √d + log σ(M)) V

M (``mask_logits``) is finite, learnable and unconstrained; ``log σ(M) ≤ 0`` is the ``bias``. Hard constraints
(causality, padding) are Booleans (``allowed``, True = may attend) and are never learned.

Source: Ma, Saratchandran, Gordon, Lucey, "Mask-Based Priors Are More Persistent than Query-Key
Initializations", 2026.
"""

from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from maskprior.kernels.dispatch import compute_attention
from maskprior.kernels.log_sigmoid import log_sigmoid
from maskprior.kernels.problem import check_bias_dtype, check_one_bias, make_problem

ALLOWED_LOGIT = 4.0
SUPPRESSED_LOGIT = -10.0


def check_logit_pair(allowed_logit: float, suppressed_logit: float) -> None:
    """Raise ValueError unless both logits are finite and the allowed one is the higher."""
    finite = abs(allowed_logit) < float("inf") and abs(suppressed_logit) < float("inf")
    if not (finite and allowed_logit > suppressed_logit):
        raise ValueError(
            f"expected finite allowed_logit > suppressed_logit, got allowed_logit={allowed_logit} and "
            f"suppressed_logit={suppressed_logit}; hard constraints belong in `allowed`"
        )


def structure_to_logits(
    structure: Tensor,
    *,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
) -> Tensor:
    """Mask logits M = suppressed + structure · (allowed − suppressed).

    Args:
        structure: ``[..., query, key]`` in [0, 1]: 1 = interact, 0 = suppress, between = graded.
        allowed_logit: M where the structure is 1.
        suppressed_logit: M where the structure is 0.

    Returns:
        M, the structure's shape, float32 (float64 stays float64).

    Raises:
        ValueError: the logits are not finite and ordered.
    """
    check_logit_pair(allowed_logit, suppressed_logit)
    graded = structure.to(torch.promote_types(structure.dtype, torch.float32))
    # lerp is exact at both ends, so a 0/1 structure gives exactly the two logits.
    return torch.lerp(
        torch.full_like(graded, suppressed_logit), torch.full_like(graded, allowed_logit), graded
    )


def logits_to_structure(
    mask_logits: Tensor,
    *,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
) -> Tensor:
    """Inverse of :func:`structure_to_logits`: (M − suppressed) / (allowed − suppressed).

    Not clamped: trained logits may leave [0, 1], which shows how far they moved.

    Raises:
        ValueError: the logits are not finite and ordered.
    """
    check_logit_pair(allowed_logit, suppressed_logit)
    return (mask_logits - suppressed_logit) / (allowed_logit - suppressed_logit)


def logits_to_bias(mask_logits: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Bias log σ(M) ≤ 0 with ∂ log σ(m) / ∂m = σ(−m).

    Computed in float32 at least (log σ loses its tail in half precision) and cast last.

    Args:
        mask_logits: M, ``[..., query, key]``.
        dtype: type of the result; None keeps the type it was computed in.
    """
    bias = F.logsigmoid(mask_logits.to(torch.promote_types(mask_logits.dtype, torch.float32)))
    return bias if dtype is None else bias.to(dtype)


def combine_bias(bias: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """One additive term for the scores: the bias where ``allowed``, −∞ elsewhere.

    Args:
        bias: ``[..., query, key]`` or None (no prior).
        allowed: bool, broadcastable with the bias, True = may attend; or None (no constraint).

    Raises:
        TypeError: ``allowed`` is not Boolean.
    """
    if allowed is None:
        return bias
    if allowed.dtype != torch.bool:
        raise TypeError(f"expected `allowed` as a bool tensor (True = may attend), got {allowed.dtype}")
    if bias is None:
        bias = torch.zeros((), device=allowed.device)
    return torch.where(allowed, bias, float("-inf"))


def prior_pattern(mask_logits: Tensor) -> Tensor:
    """The attention pattern that the prior alone would give: softmax over keys of log σ(M).

    Adding a constant to a row of the bias changes nothing here, so drift is measured on this pattern.
    """
    return logits_to_bias(mask_logits).softmax(dim=-1)


def structure_pattern(structure: Tensor) -> Tensor:
    """The structure with rows normalised to 1: the limit of the pattern under strong suppression.

    Raises:
        ValueError: a row is empty.
    """
    total = structure.sum(dim=-1, keepdim=True)
    if bool((total == 0).any()):
        row = (total.squeeze(-1) == 0).nonzero()[0].tolist()
        raise ValueError(f"expected every query to interact with some key, got an empty row at index {row}")
    return structure / total


@overload
def attention(
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
    need_weights: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...


@overload
def attention(
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
    need_weights: Literal[True],
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...


def attention(
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
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ + log σ(M)) V over the allowed keys.

    A query that may attend to nothing gives zeros with zero gradients. A bias of −∞ acts as not allowed.

    Args:
        query: ``[B, Hq, Lq, d]``.
        key: ``[B, Hkv, Lk, d]``, Hq a multiple of Hkv (grouped queries).
        value: ``[B, Hkv, Lk, dv]``.
        mask_logits: M, ``[Lq, Lk]``, ``[1 or Hq, Lq, Lk]`` or ``[1, 1 or Hq, Lq, Lk]``.
        bias: a ready log σ(M) of those shapes, instead of ``mask_logits`` (computed once for many layers).
        allowed: bool, broadcastable to ``[B, Hq, Lq, Lk]``, True = may attend.
        is_causal: also restrict query i to keys j ≤ i + Lk − Lq (the last query sees every key).
        scale: factor of Q Kᵀ; None means 1/√d.
        dropout_p: probability of dropping a weight; pass 0 in evaluation.
        need_weights: also return the attention weights (before dropout), ``[B, Hq, Lq, Lk]``.
        backend: "auto", the fastest that can (see :func:`maskprior.kernels.select_backend`), or one of
            ``maskprior.kernels.BACKENDS``: "native", "aten", "triton", "sdpa", "flex", "reference".

    Returns:
        ``[B, Hq, Lq, dv]`` in the query's dtype; with ``need_weights``, (output, weights).

    Raises:
        ValueError: shapes that do not fit, both ``mask_logits`` and ``bias``, a bias of +∞, or a backend that
            is unknown or cannot do what is asked.
        TypeError: a bool or integer bias, or an ``allowed`` that is not bool.

    Source: Ma et al. 2026, section 3; Vaswani et al., "Attention Is All You Need", 2017, section 3.2.
    """
    check_one_bias(mask_logits, bias)
    if mask_logits is not None:
        check_bias_dtype("mask_logits", mask_logits)
        is_plain = backend == "reference" or mask_logits.dtype != torch.float32
        bias = logits_to_bias(mask_logits) if is_plain else log_sigmoid(mask_logits)
    problem = make_problem(
        query, key, value, bias=bias, allowed=allowed, is_causal=is_causal, scale=scale, dropout_p=dropout_p
    )
    output, weights = compute_attention(problem, need_weights=need_weights, backend=backend)
    return output if weights is None else (output, weights)
