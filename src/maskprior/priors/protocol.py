"""What a prior is, and what it asks of a model."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from maskprior.mask_prior import MaskPrior


class ModelShape(Protocol):
    """The sizes that a structure must fit: N tokens, L layers, H heads."""

    @property
    def attended_length(self) -> int:
        """Number of tokens N that attention sees."""

    @property
    def depth(self) -> int:
        """Number of layers L."""

    @property
    def heads(self) -> int:
        """Number of heads H."""


class QueryKeyAttention(Protocol):
    """An attention layer whose query and key weights can be written in place."""

    def query_weight(self) -> Tensor:
        """View of W_Q, ``[heads, head_width, width]``: q = W_Q x."""

    def key_weight(self) -> Tensor:
        """View of W_K, ``[heads, head_width, width]``: k = W_K x."""


class PriorModel(Protocol):
    """A model that priors can be put into; :class:`maskprior.models.Transformer` is one."""

    @property
    def config(self) -> ModelShape:
        """The model's sizes."""

    def modules(self) -> Iterator[nn.Module]:
        """All submodules and the model itself, as ``nn.Module`` has it."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, as ``nn.Module`` has it."""

    def set_priors(self, priors: Sequence[MaskPrior | None]) -> None:
        """Give each layer its prior; one object named twice is shared."""

    def allowed(self, length: int) -> Tensor | None:
        """Hard constraint ``[length, length]`` (True = may attend) or None."""

    def sample_inputs(self, count: int, generator: torch.Generator) -> Tensor:
        """Random token sequences ``[count, length]``."""

    def layer_inputs(self, tokens: Tensor) -> Iterator[tuple[QueryKeyAttention, Tensor]]:
        """Each attention with its normalised input ``[batch, N, width]``, lazily, layer by layer."""

    def attention_patterns(self, tokens: Tensor) -> Tensor:
        """Attention averaged over the batch, ``[layers, heads, N, N]``."""


class Prior(Protocol):
    """Puts a structure into a model at initialisation, in place, like the functions of ``torch.nn.init``.

    Options of a prior are keyword-only with defaults, so ``functools.partial`` makes its variants.
    """

    def __call__(self, model: PriorModel, structure: Tensor, generator: torch.Generator) -> None:
        """Change the prior's own parameters of ``model``; ``generator`` is the only randomness."""
