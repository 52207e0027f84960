"""The mask prior on top of mimetic query and key weights."""

import torch
from torch import Tensor

from maskprior.functional import ALLOWED_LOGIT, SUPPRESSED_LOGIT
from maskprior.priors.mask import mask_
from maskprior.priors.mimetic import mimetic_
from maskprior.priors.vision_protocol import VisionPriorModel


def mimetic_mask_(
    model: VisionPriorModel,
    structure: Tensor,
    generator: torch.Generator,
    *,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
    learnable: bool = True,
) -> None:
    """Both: the mask for where to attend, mimetic query and key weights for what to.

    The weights are those that ``mimetic_`` draws with the same generator; position embeddings, W_V and W_O
    stay as they are.

    Args:
        model: the model to change in place.
        structure: as for ``mask_``.
        generator: source of the weights.
        allowed_logit: M where the structure is 1.
        suppressed_logit: M where the structure is 0.
        learnable: False freezes M.

    Raises:
        TypeError, ValueError: as ``mimetic_`` and ``mask_`` do.

    Source: Trockman and Kolter 2023, section 4, and Ma et al. 2026, section 3.
    """
    mimetic_(model, structure, generator, value_output=False, sinusoidal=False)
    mask_(
        model,
        structure,
        generator,
        allowed_logit=allowed_logit,
        suppressed_logit=suppressed_logit,
        learnable=learnable,
    )
