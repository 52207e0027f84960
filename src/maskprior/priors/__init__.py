"""Ways of putting a structure into a model at initialisation, all with one signature.

``prior(model, structure, generator)`` works in place; a comparison is a dict of such functions.
"""

from collections.abc import Callable

from maskprior.priors.distance import pattern_distance
from maskprior.priors.impulse import impulse_
from maskprior.priors.mask import mask_, vanilla_
from maskprior.priors.mimetic import mimetic_
from maskprior.priors.mimetic_mask import mimetic_mask_
from maskprior.priors.protocol import Prior, PriorModel
from maskprior.priors.qk_optimize import qk_optimize_
from maskprior.priors.qk_svd import qk_svd_
from maskprior.priors.toeplitz import ToeplitzPrior, alibi_, toeplitz_
from maskprior.priors.vision_protocol import VisionPrior, VisionPriorModel

PRIORS: dict[str, Prior] = {
    "vanilla": vanilla_,
    "qk_svd": qk_svd_,
    "qk_optimize": qk_optimize_,
    "mask": mask_,
}
"""For models of tokens."""

VISION_PRIORS: dict[str, VisionPrior] = {
    "vanilla": vanilla_,
    "mimetic": mimetic_,
    "impulse": impulse_,
    "mask": mask_,
}
"""For models of image patches."""

LANGUAGE_PRIORS: dict[str, Prior] = {
    "vanilla": vanilla_,
    "alibi": alibi_,
    "mask": mask_,
    "toeplitz": toeplitz_,
}
"""For decoders of text."""

ALL_PRIORS: dict[str, Callable[..., None]] = {
    "vanilla": vanilla_,
    "qk_svd": qk_svd_,
    "qk_optimize": qk_optimize_,
    "mimetic": mimetic_,
    "impulse": impulse_,
    "alibi": alibi_,
    "mask": mask_,
    "mimetic_mask": mimetic_mask_,
    "toeplitz": toeplitz_,
}
"""Every prior by its name, in the order of tables."""

__all__ = [
    "ALL_PRIORS",
    "LANGUAGE_PRIORS",
    "PRIORS",
    "VISION_PRIORS",
    "Prior",
    "PriorModel",
    "ToeplitzPrior",
    "VisionPrior",
    "VisionPriorModel",
    "alibi_",
    "impulse_",
    "mask_",
    "mimetic_",
    "mimetic_mask_",
    "pattern_distance",
    "qk_optimize_",
    "qk_svd_",
    "toeplitz_",
    "vanilla_",
]
