"""Closed forms of the gradients of attention with a mask prior, and their bounds.

One query q with keys k_j, mask logits m_j, score factor c (1/√d) and weights

    s_j = c ⟨q, k_j⟩ + log σ(m_j),   p = softmax(s),   o = Σ_j p_j v_j,   g = ∂L/∂o

    ∂p_i/∂m_j = p_i (δ_ij − p_j) σ(−m_j)            ∂L/∂m_j = σ(−m_j) p_j ⟨g, v_j − o⟩
    ∂p_i/∂q   = c p_i (k_i − Σ_j p_j k_j)           ∂L/∂q   = c Σ_j p_j ⟨g, v_j − o⟩ k_j
    ∂p_i/∂k_j = c p_i (δ_ij − p_j) q                ∂L/∂k_j = c p_j ⟨g, v_j − o⟩ q

The gradient of m_j is at most p_i σ(−m_j) ≤ p_i whatever the sizes of queries and keys, the others grow with
them. ``docs/persistence.md`` derives all of it.

Source: Ma et al. 2026, Theorem 1 and Corollary 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gradients:
    """Something by mask logits, query and keys; the functions say what, and the shapes."""

    mask_logits: Tensor
    query: Tensor
    key: Tensor


def attention_weights(query: Tensor, key: Tensor, mask_logits: Tensor, scale: float) -> Tensor:
    """p = softmax(c ⟨q, k_j⟩ + log σ(m_j)), ``[..., keys]``, of single queries.

    Args:
        query: ``[..., d]``.
        key: ``[..., keys, d]``.
        mask_logits: ``[..., keys]``.
        scale: c.
    """
    scores = scale * (key @ query.unsqueeze(-1)).squeeze(-1)
    return (scores + torch.nn.functional.logsigmoid(mask_logits)).softmax(dim=-1)


def softmax_jacobian(weights: Tensor) -> Tensor:
    """∂p_i/∂s_j = p_i (δ_ij − p_j), ``[..., i, j]``, of weights ``[..., keys]``."""
    return torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)


def weight_gradients(query: Tensor, key: Tensor, mask_logits: Tensor, *, scale: float) -> Gradients:
    """Derivatives of the attention weights of single queries.

    Args:
        query: ``[..., d]``.
        key: ``[..., keys, d]``.
        mask_logits: ``[..., keys]``.
        scale: c.

    Returns:
        ∂p_i/∂m_j ``[..., i, j]``, ∂p_i/∂q ``[..., i, d]`` and ∂p_i/∂k_j ``[..., i, j, d]``.
    """
    weights = attention_weights(query, key, mask_logits, scale)
    jacobian = softmax_jacobian(weights)
    centred = key - (weights.unsqueeze(-1) * key).sum(dim=-2, keepdim=True)
    return Gradients(
        mask_logits=jacobian * torch.sigmoid(-mask_logits).unsqueeze(-2),
        query=scale * weights.unsqueeze(-1) * centred,
        key=scale * jacobian.unsqueeze(-1) * query[..., None, None, :],
    )


def weight_gradient_bounds(query: Tensor, key: Tensor, mask_logits: Tensor, *, scale: float) -> Gradients:
    """What the derivatives of the attention weights cannot exceed.

    |∂p_i/∂m_j| ≤ p_i σ(−m_j) ≤ p_i,  ‖∂p_i/∂q‖ ≤ 2c p_i max_j ‖k_j‖,  ‖∂p_i/∂k_j‖ ≤ c p_i ‖q‖

    Args:
        query: ``[..., d]``.
        key: ``[..., keys, d]``.
        mask_logits: ``[..., keys]``.
        scale: c ≥ 0.

    Returns:
        The three bounds, ``[..., i, j]``, ``[..., i]`` and ``[..., i, j]``.

    Source: Ma et al. 2026, Theorem 1.
    """
    weights = attention_weights(query, key, mask_logits, scale)
    longest = key.norm(dim=-1).amax(dim=-1, keepdim=True)
    by_key = scale * weights * query.norm(dim=-1, keepdim=True)
    return Gradients(
        mask_logits=weights.unsqueeze(-1) * torch.sigmoid(-mask_logits).unsqueeze(-2),
        query=2 * scale * weights * longest,
        key=by_key.unsqueeze(-1).expand(*by_key.shape, by_key.shape[-1]),
    )


def score_gradients(weights: Tensor, value: Tensor, output_gradient: Tensor) -> Tensor:
    """∂L/∂s_ij = p_ij ⟨g_i, v_j − o_i⟩, the factor that all gradients of the loss share.

    Args:
        weights: p, ``[..., query, key]``.
        value: ``[..., key, dv]``.
        output_gradient: g = ∂L/∂o, ``[..., query, dv]``.
    """
    gain = output_gradient @ value.transpose(-2, -1)
    return weights * (gain - (weights * gain).sum(dim=-1, keepdim=True))


def loss_gradients(
    query: Tensor, key: Tensor, value: Tensor, mask_logits: Tensor, output_gradient: Tensor, *, scale: float
) -> Gradients:
    """Gradients of any loss through o = softmax(c Q Kᵀ + log σ(M)) V.

    Args:
        query: ``[..., query, d]``.
        key: ``[..., key, d]``.
        value: ``[..., key, dv]``.
        mask_logits: M, ``[query, key]`` or with leading dimensions that broadcast to those of the others.
        output_gradient: g = ∂L/∂o, ``[..., query, dv]``.
        scale: c.

    Returns:
        ∂L/∂M in the shape of M (summed over what shares it), ∂L/∂Q and ∂L/∂K.
    """
    scores = scale * query @ key.transpose(-2, -1) + torch.nn.functional.logsigmoid(mask_logits)
    by_score = score_gradients(scores.softmax(dim=-1), value, output_gradient)
    return Gradients(
        mask_logits=(by_score * torch.sigmoid(-mask_logits)).sum_to_size(mask_logits.shape),
        query=scale * by_score @ key,
        key=scale * by_score.transpose(-2, -1) @ query,
    )


def loss_gradient_bounds(
    query: Tensor, key: Tensor, value: Tensor, mask_logits: Tensor, output_gradient: Tensor, *, scale: float
) -> Gradients:
    """What the gradients of the loss cannot exceed, with e_ij = p_ij ‖g_i‖ ‖v_j − o_i‖.

    |∂L/∂m_ij| ≤ Σ σ(−m_ij) e_ij,  ‖∂L/∂q_i‖ ≤ c max_j ‖k_j‖ Σ_j e_ij,  ‖∂L/∂k_j‖ ≤ c max_i ‖q_i‖ Σ_i e_ij

    where the first sum runs over what shares M. The first has neither queries nor keys in it.

    Args:
        query: ``[..., query, d]``.
        key: ``[..., key, d]``.
        value: ``[..., key, dv]``.
        mask_logits: M, as in :func:`loss_gradients`.
        output_gradient: g, ``[..., query, dv]``.
        scale: c ≥ 0.

    Returns:
        The three bounds: in the shape of M, ``[..., query]`` and ``[..., key]``.

    Source: Ma et al. 2026, Corollary 1.
    """
    scores = scale * query @ key.transpose(-2, -1) + torch.nn.functional.logsigmoid(mask_logits)
    weights = scores.softmax(dim=-1)
    distance = torch.cdist(weights @ value, value, compute_mode="donot_use_mm_for_euclid_dist")
    envelope = weights * output_gradient.norm(dim=-1, keepdim=True) * distance
    return Gradients(
        mask_logits=(envelope * torch.sigmoid(-mask_logits)).sum_to_size(mask_logits.shape),
        query=scale * _longest(key) * envelope.sum(dim=-1),
        key=scale * _longest(query) * envelope.sum(dim=-2),
    )


def _longest(vectors: Tensor) -> Tensor:
    """Greatest norm of ``[..., n, d]``, ``[..., 1]``."""
    longest: Tensor = vectors.norm(dim=-1).amax(dim=-1, keepdim=True)
    return longest
