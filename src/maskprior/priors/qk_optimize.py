"""Query-key prior by gradient descent: weights fitted to the attention pattern."""

import math

import torch
from torch import Tensor

from maskprior.functional import ALLOWED_LOGIT, SUPPRESSED_LOGIT
from maskprior.priors.fitting import balanced_inputs, check_positions, evaluating
from maskprior.priors.protocol import PriorModel, QueryKeyAttention
from maskprior.priors.targets import target_log_patterns

_BATCH = 16
# Relative to the mean variance of a direction: weaker ones are scaled up less; the weakest are left alone.
_SOFT_FLOOR = 1e-4
_HARD_FLOOR = 1e-6


def qk_optimize_(
    model: PriorModel,
    structure: Tensor,
    generator: torch.Generator,
    *,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
    steps: int = 200,
    lr: float = 0.02,
    samples: int = 512,
) -> None:
    """Query and key weights fitted so that the initial attention approximates the structure.

    Layer by layer, in order, from the current weights, by Adam with a linearly falling rate:

        minimise over W_Q, W_K   E_x KL( softmax(log σ(M₀)) ‖ softmax(x W_Qᵀ W_K xᵀ / √d) )

    over random inputs x. The steps are taken in whitened coordinates, W Λ^½ on x Λ^{−½}, where Λ is the
    second moment of x: plain Adam does not find the positions where their embeddings are small against the
    tokens' (position_std 0.02 against token_std 1), as all weights then move alike.

    Changes W_Q and W_K alone; the query and key biases are taken to be 0 and left alone.

    Args:
        model: the model to change in place.
        structure: ``[N, N]``, ``[1 or heads, N, N]`` or ``[layers, 1 or heads, N, N]``.
        generator: source of the random inputs.
        allowed_logit: M₀ where the structure is 1.
        suppressed_logit: M₀ where the structure is 0.
        steps: Adam steps a layer.
        lr: initial learning rate, in whitened coordinates.
        samples: number of random input sequences, rounded up to a multiple of their length.

    Raises:
        TypeError, ValueError: the structure is not one or does not fit the model, the logits are not finite
            and ordered, ``steps`` or ``samples`` < 1, ``lr`` not positive and finite, or no layer can tell
            the positions apart (nothing is changed then).

    Source: the optimised baseline ("Opt") of Ma et al. 2026; Kingma, Ba, "Adam", 2015.
    """
    if steps < 1 or not 0 < lr < math.inf:
        raise ValueError(f"expected steps ≥ 1 and a finite lr > 0, got steps={steps} and lr={lr}")
    targets = target_log_patterns(
        model, structure, allowed_logit=allowed_logit, suppressed_logit=suppressed_logit
    )
    with evaluating(model):
        inputs = balanced_inputs(model, samples, generator)
        check_positions(model, inputs, targets)
        order = torch.randperm(len(inputs), generator=generator, device=generator.device)
        inputs = inputs[order.to(inputs.device)]
        for (attention, x), target in zip(model.layer_inputs(inputs), targets, strict=True):
            _fit_layer(attention, x, target, steps, lr)


def whitening(x: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates ``[W, R]`` and their inverse ``[R, W]``: x @ coordinates has about unit second moments.

    R ≤ W directions are kept, those in which x varies at all.
    """
    flat = x.flatten(0, 1)
    values, vectors = torch.linalg.eigh(flat.mT @ flat / len(flat))
    kept = values > _HARD_FLOOR * values.mean()
    scale = (values[kept] + _SOFT_FLOOR * values.mean()).sqrt()
    return vectors[:, kept] / scale, scale[:, None] * vectors[:, kept].mT


def pattern_divergence(query: Tensor, key: Tensor, log_target: Tensor) -> Tensor:
    """Mean over batch, heads and queries of KL(target ‖ softmax(q kᵀ / √d)) over the allowed keys.

    Args:
        query: ``[batch, heads, N, d]``.
        key: ``[batch, heads, N, d]``.
        log_target: ``[1 or heads, N, N]``, −∞ where attention is not allowed.
    """
    forbidden = log_target == -torch.inf
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    log_pattern = scores.masked_fill(forbidden, -torch.inf).log_softmax(dim=-1)
    gap = (log_target - log_pattern).masked_fill(forbidden, 0.0)
    return (log_target.exp() * gap).sum(dim=-1).mean()


def _fit_layer(attention: QueryKeyAttention, x: Tensor, log_target: Tensor, steps: int, lr: float) -> None:
    weights = torch.stack([attention.query_weight(), attention.key_weight()])
    start, features = weights.cpu().double(), x.cpu().double()
    into, back = whitening(features)
    dtype = torch.promote_types(weights.dtype, torch.float32)
    whitened, coordinates, log_target = (
        tensor.to(weights.device, dtype) for tensor in (features @ into, start @ back.mT, log_target)
    )
    fitted = _minimise(coordinates, whitened, log_target, steps, lr)
    change = (fitted - coordinates).cpu().double() @ into.mT
    attention.query_weight().copy_(start[0] + change[0])
    attention.key_weight().copy_(start[1] + change[1])


@torch.enable_grad()
def _minimise(coordinates: Tensor, features: Tensor, log_target: Tensor, steps: int, lr: float) -> Tensor:
    """Adam on ``[2, heads, d, R]`` weights of ``[samples, N, R]`` features, in batches, in turn."""
    _, heads, head_width, kept = coordinates.shape
    weight = coordinates.reshape(-1, kept).mT.clone(memory_format=torch.contiguous_format).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=lr, betas=(0.9, 0.99))
    batch = torch.arange(min(_BATCH, len(features)), device=features.device)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * (1 - step / steps)
        tokens = features[(batch + step * len(batch)) % len(features)]
        query, key = (tokens @ weight).unflatten(-1, (2, heads, head_width)).permute(2, 0, 3, 1, 4)
        (weight.grad,) = torch.autograd.grad(pattern_divergence(query, key, log_target), weight)
        optimizer.step()
    return weight.detach().mT.reshape(coordinates.shape)
