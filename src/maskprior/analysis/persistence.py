"""How much of a structure an attention pattern still has.

P is a pattern ``[..., query, key]`` (rows sum to 1), S the structure, P* = softmax(log σ(M₀)) the pattern
that it asks for, U uniform attention. All measures are functions of P alone, so a constant added to a row of
scores, which changes nothing that a model does, changes no measure either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from maskprior.functional import (
    ALLOWED_LOGIT,
    SUPPRESSED_LOGIT,
    combine_bias,
    logits_to_bias,
    structure_to_logits,
)

# A pattern that starts with less of the structure than this share of all there is has nothing to lose.
LEAST_ADVANTAGE = 0.05


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """½ Σ_j |p_j − q_j| of distributions ``[..., key]``: the attention that would have to move, in [0, 1]."""
    return (first - second).abs().sum(dim=-1) / 2


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """½ KL(p‖h) + ½ KL(q‖h) in bits, h = (p + q)/2, of distributions ``[..., key]``; in [0, 1].

    Source: Lin, "Divergence Measures Based on the Shannon Entropy", 1991.
    """
    middle = (first + second) / 2
    nats = (torch.xlogy(first, first) + torch.xlogy(second, second)) / 2 - torch.xlogy(middle, middle)
    return nats.sum(dim=-1).clamp_min(0) / torch.log(torch.tensor(2.0, dtype=nats.dtype))


def suppressed_share(pattern: Tensor, structure: Tensor) -> Tensor:
    """Σ_j p_j (1 − s_j): attention on pairs that should not interact, in [0, 1], ``[..., query]``."""
    return (pattern * (1 - structure)).sum(dim=-1)


def allowed_pattern(mask_logits: Tensor, allowed: Tensor | None) -> Tensor:
    """softmax(log σ(M)) among the allowed keys, on the CPU: the pattern of the prior alone.

    A query that may attend to nothing gets zeros.
    """
    bias = logits_to_bias(mask_logits.detach().cpu())
    scores = combine_bias(bias, _on_cpu(allowed))
    assert scores is not None  # a bias went in
    return scores.softmax(dim=-1).nan_to_num(0.0)


def _on_cpu(allowed: Tensor | None) -> Tensor | None:
    return None if allowed is None else allowed.cpu()


@dataclass(frozen=True, eq=False)
class Target:
    """What the pattern of one layer is compared with.

    Attributes:
        structure: S, ``[query, key]`` or ``[1 or heads, query, key]`` in [0, 1].
        reference: P*, the pattern that the structure asks for, of the same shape.
        allowed: hard constraint ``[query, key]`` (True = may attend) or None.
    """

    structure: Tensor
    reference: Tensor
    allowed: Tensor | None = None

    @classmethod
    def of_structure(
        cls,
        structure: Tensor,
        *,
        allowed: Tensor | None = None,
        allowed_logit: float = ALLOWED_LOGIT,
        suppressed_logit: float = SUPPRESSED_LOGIT,
    ) -> "Target":
        """P* = softmax(log σ(M₀)) of the M₀ that a mask prior would start with; what all priors aim at.

        Raises:
            ValueError: the logits are not finite and ordered.
        """
        wanted = structure.detach().cpu().to(torch.promote_types(structure.dtype, torch.float32))
        logits = structure_to_logits(wanted, allowed_logit=allowed_logit, suppressed_logit=suppressed_logit)
        return cls(wanted, allowed_pattern(logits, allowed), _on_cpu(allowed))

    @classmethod
    def of_logits(cls, mask_logits: Tensor, *, allowed: Tensor | None = None) -> "Target":
        """P* = softmax(log σ(M₀)) of a given M₀; S is M₀ from its lowest (0) to its highest value (1)."""
        logits = mask_logits.detach().cpu()
        low, high = logits.aminmax()
        structure = (logits - low) / (high - low) if high > low else torch.ones_like(logits)
        return cls(structure, allowed_pattern(logits, allowed), _on_cpu(allowed))

    @cached_property
    def uniform(self) -> Tensor:
        """U, among the allowed keys."""
        return allowed_pattern(torch.zeros_like(self.structure), self.allowed)

    @cached_property
    def limit(self) -> float:
        """TV(U, P*), mean over queries and heads: the advantage of a perfect pattern."""
        return float(total_variation(self.uniform, self.reference).mean())

    def measure(self, pattern: Tensor) -> dict[str, float]:
        """Means over queries and heads of four measures of a pattern ``[..., query, key]``.

        "variation" TV(P, P*), "divergence" JS(P, P*), "suppressed" Σ_j P_j (1 − S_j) and "advantage"
        TV(U, P*) − TV(P, P*): how much nearer to the structure than uniform attention, at most ``limit``.

        Raises:
            ValueError: the pattern does not have the structure's queries and keys.
        """
        if pattern.shape[-2:] != self.structure.shape[-2:]:
            raise ValueError(
                f"expected a pattern of {list(self.structure.shape[-2:])} queries and keys, as the structure "
                f"has, got {list(pattern.shape)}"
            )
        pattern = pattern.detach().to(self.structure)
        variation = float(total_variation(pattern, self.reference).mean())
        return {
            "variation": variation,
            "divergence": float(jensen_shannon(pattern, self.reference).mean()),
            "suppressed": float(suppressed_share(pattern, self.structure).mean()),
            "advantage": self.limit - variation,
        }


def retained(advantages: Sequence[float], limit: float) -> list[float] | None:
    """Advantage at each time over that at the start: 1 = all kept, 0 = uniform, below 0 = worse than uniform.

    None where the start has less than ``LEAST_ADVANTAGE`` of the ``limit``: there was nothing to keep.
    """
    if not advantages or limit <= 0 or advantages[0] < LEAST_ADVANTAGE * limit:
        return None
    return [advantage / advantages[0] for advantage in advantages]


def time_until(steps: Sequence[float], shares: Sequence[float], level: float) -> float | None:
    """When the retained share first falls to ``level``, linear between probes; None where it never does."""
    for index, share in enumerate(shares):
        if share <= level:
            if index == 0:
                return steps[0]
            part = (shares[index - 1] - level) / (shares[index - 1] - share)
            return steps[index - 1] + part * (steps[index] - steps[index - 1])
    return None
