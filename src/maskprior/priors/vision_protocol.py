"""What priors for Vision Transformers ask of a model beyond the protocol of all priors."""

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from maskprior.priors.protocol import PriorModel, QueryKeyAttention


class ProjectedAttention(QueryKeyAttention, Protocol):
    """An attention layer whose four projections can be written in place."""

    def value_weight(self) -> Tensor:
        """View of W_V, ``[width, width]``: v = W_V x, the heads one after another."""

    def output_weight(self) -> Tensor:
        """View of W_O, ``[width, width]``: output = W_O v."""


@runtime_checkable
class VisionPriorModel(PriorModel, Protocol):
    """A model of patches on a grid; :class:`maskprior.vision.model.VitModel` is one."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""

    @property
    def prefix_tokens(self) -> int:
        """Class and register tokens, which come before the patches."""

    def position_embedding(self) -> Tensor:
        """View of the position embedding, ``[N, width]``, prefix tokens first."""

    def layer_positions(self) -> Iterator[tuple[ProjectedAttention, Tensor]]:
        """Each attention with its normalised input where tokens are their positions alone, ``[N, width]``."""


VisionPrior = Callable[[VisionPriorModel, Tensor, torch.Generator], None]
"""A prior for vision models, in place, like :class:`~maskprior.priors.protocol.Prior`."""


def vision_model(model: PriorModel, prior: str) -> VisionPriorModel:
    """The model, if patches on a grid are what it sees.

    Raises:
        TypeError: it is another.
    """
    if not isinstance(model, VisionPriorModel):
        raise TypeError(
            f"expected a model of image patches for {prior} (maskprior.vision), got {type(model).__name__}"
        )
    return model
