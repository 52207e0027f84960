"""Query-key prior in closed form: the truncated SVD of the structure's scores."""

import torch
from torch import Tensor

from maskprior.functional import ALLOWED_LOGIT, SUPPRESSED_LOGIT
from maskprior.priors.fitting import balanced_inputs, check_positions, evaluating
from maskprior.priors.protocol import PriorModel, QueryKeyAttention
from maskprior.priors.targets import centred_scores, target_log_patterns

# Noise of every direction, relative to the mean square of the features: bounds the weights where the
# sampled inputs never vary.
_FLOOR = 1e-6
# Relative size of the random change that decides between equal singular values.
_JITTER = 1e-8
# Components of the scores below this (nats) are none.
_SILENT = 1e-4


def qk_svd_(
    model: PriorModel,
    structure: Tensor,
    generator: torch.Generator,
    *,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
    samples: int = 256,
) -> None:
    """Query and key weights whose initial attention approximates the structure, by truncated SVD.

    Layer by layer, in order. T ``[N, N]`` are the target scores, log softmax(log σ(M₀)) with the mean of each
    row taken off. F ``[N, W]`` are the mean normalised features of the positions over random inputs, C their
    covariance within a position (the token "noise"), F̃ is F with the mean over positions taken off:

        U S Vᵀ = T truncated to rank d, times ‖T‖² / ‖T truncated‖²
        G_Q = (FᵀF + C)⁻¹ Fᵀ,   G_K = (F̃ᵀF̃ + C)⁻¹ F̃ᵀ
        W_Q = d^¼ (G_Q U √S)ᵀ,  W_K = d^¼ (G_K V √S)ᵀ

    so that F W_Qᵀ W_K Fᵀ / √d = T up to a constant a row, where F tells the positions apart and rank d
    suffices. G is the least-squares estimate of "which position is this?" from one token. With C = 0 it is
    the pseudo-inverse F⁺ and the rule is the usual SVD initialisation, √d F⁺ T F⁺ᵀ; C keeps the reading off
    the directions in which tokens differ, which a pseudo-inverse amplifies by token_std / position_std, and
    shrinks T where noise leaves nothing to read. The key side needs no common component of the positions: it
    would add a constant a row only. The factor keeps the mean gap between wanted and suppressed keys, which
    truncation shrinks (to d/N of it for a permutation).

    Changes W_Q and W_K alone; the query and key biases are taken to be 0 and left alone. Components that T
    does not use keep their query weights and get key weights of 0: silent, yet with a gradient.

    Args:
        model: the model to change in place.
        structure: ``[N, N]``, ``[1 or heads, N, N]`` or ``[layers, 1 or heads, N, N]``; heads that share a
            structure get equal weights.
        generator: source of the random inputs and of the choice between equal singular values.
        allowed_logit: M₀ where the structure is 1.
        suppressed_logit: M₀ where the structure is 0.
        samples: number of random input sequences, rounded up to a multiple of their length.

    Raises:
        TypeError, ValueError: the structure is not one or does not fit the model, the logits are not finite
            and ordered, ``samples`` < 1, or no layer can tell the positions apart (nothing is changed then).

    Source: the SVD baseline of Ma et al. 2026; Zheng, Li, Saratchandran, Lucey, "Structured Initialization
    for Vision Transformers", 2025, for the pseudo-inverse of the position embedding.
    """
    targets = target_log_patterns(
        model, structure, allowed_logit=allowed_logit, suppressed_logit=suppressed_logit
    )
    with evaluating(model):
        inputs = balanced_inputs(model, samples, generator)
        check_positions(model, inputs, targets)
        for (attention, x), target in zip(model.layer_inputs(inputs), targets, strict=True):
            factors = truncated_factors(centred_scores(target), attention.query_weight().shape[1], generator)
            _write_weights(attention, x.cpu().double(), factors)


def position_readers(x: Tensor) -> tuple[Tensor, Tensor]:
    """G_Q and G_K ``[W, N]`` of normalised features ``[samples, N, W]``: F G ≈ identity."""
    mean = x.mean(dim=0)
    deviation = (x - mean).flatten(0, 1)
    noise = deviation.mT @ deviation / len(deviation)
    noise.diagonal().add_(_FLOOR * x.square().mean())
    centred = mean - mean.mean(dim=0)
    query, key = (torch.linalg.solve(f.mT @ f + noise, f.mT) for f in (mean, centred))
    return query, key


def truncated_factors(scores: Tensor, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """U √S and V √S, ``[*heads, N, rank]``, of the best approximation by that rank; zero-padded.

    Scaled so that ⟨approximation, scores⟩ = ⟨scores, scores⟩. Equal singular values are the rule (a
    permutation has no others), and LAPACK may then drop one position whole; a change of the scores too small
    to matter mixes such components at random, so that truncation costs every position a little.
    """
    noise = torch.randn(scores.shape, generator=generator, device=generator.device, dtype=scores.dtype)
    left, values, right = torch.linalg.svd(scores + _JITTER * scores.abs().amax() * noise.to(scores.device))
    energy = values.square()
    kept = energy[..., :rank].sum(dim=-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)
    root = (values[..., :rank] * energy.sum(dim=-1, keepdim=True) / kept).sqrt()[..., None, :]
    padding = (0, max(0, rank - values.shape[-1]))
    factors = (left[..., :rank] * root, right.mT[..., :rank] * root)
    first, second = (torch.nn.functional.pad(factor, padding) for factor in factors)
    return first, second


def _write_weights(attention: QueryKeyAttention, x: Tensor, factors: tuple[Tensor, Tensor]) -> None:
    query, key = attention.query_weight(), attention.key_weight()
    read_query, read_key = position_readers(x)
    left, right = factors
    gain = query.shape[1] ** 0.25
    used = left.square().sum(dim=-2) > _SILENT  # the singular values, [1 or heads, head_width]
    new_query, new_key = gain * (read_query @ left).mT, gain * (read_key @ right).mT
    query.copy_(torch.where(used[..., None], new_query, query.cpu().double()))
    key.copy_(torch.where(used[..., None], new_key, 0.0).expand_as(key))
