"""Causal priors of the distance alone: one logit a distance, which goes on beyond the trained length."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Self

from maskprior.functional import ALLOWED_LOGIT, SUPPRESSED_LOGIT, logits_to_bias, structure_to_logits
from maskprior.mask_prior import MaskPrior
from maskprior.priors.protocol import PriorModel
from maskprior.priors.targets import layer_structures
from maskprior.structures import check_structure

Beyond = Literal["linear", "last"]


class ToeplitzPrior(MaskPrior):
    """M_ij = m_{i−j}: a :class:`MaskPrior` with one learnable logit for each distance 0 … N − 1.

        attention = softmax(Q Kᵀ / √d + log σ(m_{i−j})) V over the keys j ≤ i

    Distances from N on have no logit of their own. Rule "last": they have that of N − 1. Rule "linear":
    log σ goes on as a straight line with the mean slope of the outer half of the distances, if it falls.

    Args:
        mask_logits: m, ``[1 or heads, N]``.
        learnable: False freezes it.
        beyond: the rule.

    Raises:
        ValueError: not finite, of another shape, or an unknown rule.
    """

    def __init__(self, mask_logits: Tensor, *, learnable: bool = True, beyond: Beyond = "linear") -> None:
        if mask_logits.dim() != 2:
            raise ValueError(f"expected mask_logits [1 or heads, distances], got {tuple(mask_logits.shape)}")
        if beyond not in get_args(Beyond):
            raise ValueError(f"expected beyond in {get_args(Beyond)}, got {beyond!r}")
        super().__init__(mask_logits, learnable=learnable)
        self.beyond: Beyond = beyond

    @classmethod
    def from_structure(
        cls,
        structure: Tensor,
        *,
        allowed_logit: float = ALLOWED_LOGIT,
        suppressed_logit: float = SUPPRESSED_LOGIT,
        learnable: bool = True,
        beyond: Beyond = "linear",
    ) -> Self:
        """The prior whose M starts as that of ``MaskPrior.from_structure`` at the keys j ≤ i.

        Raises:
            ValueError: the structure is not one, or not constant along the diagonals at and below the main.
        """
        check_structure(structure)
        below = structure.float().tril()
        if structure.shape[-1] != structure.shape[-2] or not torch.allclose(
            below[..., 1:, 1:], below[..., :-1, :-1]
        ):
            raise ValueError(
                "expected a square structure of the distance alone (constant along each diagonal), got one "
                f"of shape {tuple(structure.shape)} that is not; mask_ takes any structure"
            )
        by_distance = structure[..., -1, :].flip(-1).reshape(-1, structure.shape[-1])
        logits = structure_to_logits(
            by_distance, allowed_logit=allowed_logit, suppressed_logit=suppressed_logit
        )
        return cls(logits, learnable=learnable, beyond=beyond)

    def by_distance(self, distances: int) -> Tensor:
        """log σ(m) of the distances 0 … ``distances`` − 1, ``[1 or heads, distances]``, float32."""
        bias = logits_to_bias(self.mask_logits)
        trained = bias.shape[-1]
        if distances <= trained:
            return bias[:, :distances]
        last = bias[:, -1:]
        further = torch.arange(1, distances - trained + 1, device=bias.device)
        return torch.cat([bias, last + self._slope(bias) * further], dim=-1)

    def _slope(self, bias: Tensor) -> Tensor:
        half = bias.shape[-1] // 2
        if self.beyond == "last" or half == 0:
            return torch.zeros_like(bias[:, -1:])
        return ((bias[:, -1:] - bias[:, -1 - half : -half]) / half).clamp(max=0)

    def square(self, length: int, dtype: torch.dtype | None = None) -> Tensor:
        """Bias of ``length`` tokens, ``[1 or heads, length, length]``; keys after the query have 0."""
        bias = _spread(self.by_distance(length), 0.0)
        return bias if dtype is None else bias.to(dtype)

    def forward(self, dtype: torch.dtype | None = None) -> Tensor:
        """Bias at the trained length, ``[1 or heads, N, N]``."""
        return self.square(self.mask_logits.shape[-1], dtype)

    def square_logits(self) -> Tensor:
        """M as a matrix, ``[1 or heads, N, N]``; keys after the query have the suppressed logit."""
        return _spread(self.mask_logits, SUPPRESSED_LOGIT)

    def pattern(self) -> Tensor:
        """softmax(log σ(M)) over the keys j ≤ i, ``[1 or heads, N, N]``."""
        bias = self()
        later = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).triu(1)
        pattern: Tensor = bias.masked_fill(later, -torch.inf).softmax(-1)
        return pattern


def _spread(values: Tensor, future: float) -> Tensor:
    """``[heads, n]`` by distance → ``[heads, n, n]`` by query and key; ``future`` after the query."""
    n = values.shape[-1]
    # Row i is the n entries from n − 1 − i on: values n − 1 … 0, then the future.
    line = F.pad(values.flip(-1), (0, n - 1), value=future)
    return line.unfold(-1, n, 1).flip(-2)


def toeplitz_(
    model: PriorModel,
    structure: Tensor,
    generator: torch.Generator,
    *,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
    learnable: bool = True,
    last: bool = False,
) -> None:
    """Mask prior with one logit a distance and head, from the same start as ``mask_``.

    Args:
        model: a causal model whose ``set_priors`` takes a :class:`ToeplitzPrior`.
        structure: as for ``mask_``, of the distance alone.
        generator: not used.
        allowed_logit: M where the structure is 1.
        suppressed_logit: M where the structure is 0.
        learnable: False freezes M.
        last: beyond the trained length the last logit holds; else log σ goes on as a straight line.

    Raises:
        TypeError, ValueError: the structure is not one, does not fit or is not of the distance alone.
    """
    beyond: Beyond = "last" if last else "linear"
    model.set_priors(
        [
            ToeplitzPrior.from_structure(
                layer,
                allowed_logit=allowed_logit,
                suppressed_logit=suppressed_logit,
                learnable=learnable,
                beyond=beyond,
            )
            for layer in layer_structures(model, structure)
        ]
    )


def alibi_slopes(heads: int) -> list[float]:
    """s_h = 2^(−8 (h + 1) / heads).

    Source: Press, Smith, Lewis 2022, "Train Short, Test Long", section 3.
    """
    return [2 ** (-8 * (head + 1) / heads) for head in range(heads)]


def alibi_(model: PriorModel, structure: Tensor, generator: torch.Generator) -> None:
    """ALiBi, the fixed bias −s_h (i − j): a frozen :class:`ToeplitzPrior`, a yardstick for learnable ones.

    A constant added to a row changes nothing, so −s (i − j + 1) is the same attention; there
    log σ(m) = −x has the finite solution m = −log(eˣ − 1).

    Args:
        model: a causal model whose ``set_priors`` takes a :class:`ToeplitzPrior`.
        structure: only checked.
        generator: not used.

    Raises:
        TypeError, ValueError: the structure is not one or does not fit the model.

    Source: Press, Smith, Lewis 2022, "Train Short, Test Long", section 3.
    """
    layer_structures(model, structure)
    shape = model.config
    slopes = torch.tensor(alibi_slopes(shape.heads), dtype=torch.float64)
    x = slopes[:, None] * torch.arange(1, shape.attended_length + 1)
    # In this form large x does not overflow.
    logits = -(x + torch.log(-torch.expm1(-x))).float()
    model.set_priors([ToeplitzPrior(logits, learnable=False) for _ in range(shape.depth)])
