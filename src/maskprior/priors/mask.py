"""The two ends of every comparison: no prior, and the learnable mask prior."""

import torch
from torch import Tensor

from maskprior.functional import ALLOWED_LOGIT, SUPPRESSED_LOGIT
from maskprior.mask_prior import MaskPrior
from maskprior.priors.protocol import PriorModel
from maskprior.priors.targets import layer_structures


def vanilla_(model: PriorModel, structure: Tensor, generator: torch.Generator) -> None:
    """No prior: the initialisation stays as it is, and the structure is only checked.

    Raises:
        TypeError, ValueError: the structure is not one or does not fit the model.
    """
    layer_structures(model, structure)


def mask_(
    model: PriorModel,
    structure: Tensor,
    generator: torch.Generator,
    *,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
    learnable: bool = True,
    share_layers: bool = False,
) -> None:
    """Mask prior: attention = softmax(Q Kᵀ / √d + log σ(M)) V with M made of the structure.

    Adds M to the model; every other parameter stays as it is. Deterministic: draws nothing.

    Args:
        model: the model to change in place.
        structure: ``[N, N]``, ``[1 or heads, N, N]`` or ``[layers, 1 or heads, N, N]``; M of a layer has the
            same shape, so a structure shared by the heads gives an M shared by the heads.
        generator: not used.
        allowed_logit: M where the structure is 1.
        suppressed_logit: M where the structure is 0.
        learnable: False freezes M.
        share_layers: one M for all layers instead of one a layer.

    Raises:
        TypeError, ValueError: the structure is not one or does not fit the model, the logits are not finite
            and ordered, or ``share_layers`` with a structure per layer.

    Source: Ma et al. 2026, section 3.
    """
    layers = layer_structures(model, structure)
    if share_layers and structure.dim() == 4:
        raise ValueError(
            f"expected a structure without a layer dimension with share_layers=True, got shape "
            f"{tuple(structure.shape)}; pass one layer's structure or share_layers=False"
        )
    device = next(iter(model.parameters())).device
    count = 1 if share_layers else len(layers)
    priors = [
        MaskPrior.from_structure(
            layer.to(device),
            allowed_logit=allowed_logit,
            suppressed_logit=suppressed_logit,
            learnable=learnable,
        )
        for layer in layers[:count]
    ]
    model.set_priors(priors * len(layers) if share_layers else priors)
