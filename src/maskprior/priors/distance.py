"""How far a model's attention is from the pattern that a structure asks for."""

import torch
from torch import Tensor

from maskprior.functional import ALLOWED_LOGIT, SUPPRESSED_LOGIT
from maskprior.priors.fitting import evaluating
from maskprior.priors.protocol import PriorModel
from maskprior.priors.targets import target_log_patterns


def pattern_distance(
    model: PriorModel,
    structure: Tensor,
    tokens: Tensor,
    *,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
) -> Tensor:
    """Total variation ½ Σ_j |P_ij − P*_ij|, mean over heads and queries i.

    P is the attention averaged over the sequences, P* = softmax over keys of log σ(M₀), M₀ made of the
    structure. 0: the pattern is exact; 1: attention is where it should not be. As P is an average, attention
    that differs between sequences but is right on average counts as right.

    Args:
        model: the model to look at.
        structure: ``[N, N]``, ``[1 or heads, N, N]`` or ``[layers, 1 or heads, N, N]``.
        tokens: sequences ``[batch, length]`` of full length.
        allowed_logit: M₀ where the structure is 1.
        suppressed_logit: M₀ where the structure is 0.

    Returns:
        One distance a layer, in [0, 1], float64 on the CPU.

    Raises:
        TypeError, ValueError: the structure is not one or does not fit the model.
    """
    targets = target_log_patterns(
        model, structure, allowed_logit=allowed_logit, suppressed_logit=suppressed_logit
    )
    with evaluating(model):
        patterns = model.attention_patterns(tokens).cpu().double()
    variations = [
        (pattern - target.exp()).abs().sum(dim=-1).mean() / 2
        for pattern, target in zip(patterns, targets, strict=True)
    ]
    return torch.stack(variations)
