"""Ways of putting a structure into a model at initialisation, all with one signature.

``prior(model, structure, generator)`` works in place; a comparison is a dict of such functions.
"""

from maskprior.priors.distance import pattern_distance
from maskprior.priors.mask import mask_, vanilla_
from maskprior.priors.protocol import Prior, PriorModel
from maskprior.priors.qk_optimize import qk_optimize_
from maskprior.priors.qk_svd import qk_svd_

PRIORS: dict[str, Prior] = {
    "vanilla": vanilla_,
    "qk_svd": qk_svd_,
    "qk_optimize": qk_optimize_,
    "mask": mask_,
}

__all__ = [
    "PRIORS",
    "Prior",
    "PriorModel",
    "mask_",
    "pattern_distance",
    "qk_optimize_",
    "qk_svd_",
    "vanilla_",
]
