"""Structural priors for Transformers that training does not wash out.

attention(Q, K, V) = softmax(Q Kᵀ / √d + log σ(M)) V, with M learnable and initialised from a structure.
"""

from importlib.metadata import version as _version

from maskprior import functional, structures
from maskprior.integrations.attaching import attach
from maskprior.mask_prior import MaskPrior

__all__ = ["MaskPrior", "attach", "functional", "structures"]

__version__ = _version("maskprior")
