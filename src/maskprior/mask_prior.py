"""MaskPrior: the module that owns the mask logits M."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from maskprior.functional import (
    ALLOWED_LOGIT,
    SUPPRESSED_LOGIT,
    logits_to_bias,
    prior_pattern,
    structure_to_logits,
)
from maskprior.structures import check_structure


class MaskPrior(nn.Module):
    """Learnable additive attention bias log σ(M).

        attention = softmax(Q Kᵀ / √d + log σ(M)) V,   ∂ log σ(m)/∂m = σ(−m)

    The raw parameter (``mask_logits``) is kept apart from its meaning (``forward()``, the bias), as it is
    unconstrained and finite. It stays in float32 when the model is moved to half precision. Optimisers must
    not decay it: decay pulls M to 0, which is no prior (see ``maskprior.experiments.optimizer``).

    Args:
        mask_logits: M, ``[query, key]`` shared by all heads, or ``[heads, query, key]``.
        learnable: False freezes M.

    Raises:
        ValueError: M is not finite or has fewer than two or more than three dimensions.
        RuntimeError: ``load_state_dict`` is given an M that is not finite.

    Source: Ma et al. 2026, section 3.
    """

    mask_logits: nn.Parameter

    def __init__(self, mask_logits: Tensor, *, learnable: bool = True) -> None:
        super().__init__()
        if mask_logits.dim() not in (2, 3):
            raise ValueError(
                f"expected mask_logits [query, key] or [heads, query, key], got {tuple(mask_logits.shape)}"
            )
        if not bool(mask_logits.isfinite().all()):
            raise ValueError(
                "expected finite mask_logits, got NaN or ±inf; use `allowed` for hard constraints"
            )
        values = mask_logits.detach().to(torch.promote_types(mask_logits.dtype, torch.float32)).clone()
        self.mask_logits = nn.Parameter(values, requires_grad=learnable)

    @classmethod
    def from_structure(
        cls,
        structure: Tensor,
        *,
        allowed_logit: float = ALLOWED_LOGIT,
        suppressed_logit: float = SUPPRESSED_LOGIT,
        learnable: bool = True,
    ) -> Self:
        """Prior whose M is ``allowed_logit`` where the structure is 1 and ``suppressed_logit`` where it is 0.

        Args:
            structure: ``[query, key]`` or ``[heads, query, key]`` in [0, 1], no empty row.
            allowed_logit: M where the structure is 1.
            suppressed_logit: M where the structure is 0.
            learnable: False freezes M.

        Raises:
            ValueError: the structure is not finite, out of [0, 1], has an empty row, or the logits are
                not finite and ordered.
        """
        check_structure(structure)
        logits = structure_to_logits(
            structure, allowed_logit=allowed_logit, suppressed_logit=suppressed_logit
        )
        return cls(logits, learnable=learnable)

    def forward(self, dtype: torch.dtype | None = None) -> Tensor:
        """Bias log σ(M), the shape of M, computed in float32 and cast to ``dtype`` last."""
        return logits_to_bias(self.mask_logits, dtype)

    def pattern(self) -> Tensor:
        """softmax(log σ(M)) over keys: what the prior alone would attend to."""
        return prior_pattern(self.mask_logits)

    def extra_repr(self) -> str:
        """Shape, range and whether M is learnable."""
        values = ""
        if not self.mask_logits.is_meta:  # which has none
            low, high = self.mask_logits.detach().aminmax()
            values = f"range=[{low:.3g}, {high:.3g}], "
        return f"shape={list(self.mask_logits.shape)}, {values}learnable={self.mask_logits.requires_grad}"

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, metadata: Any, strict: bool, *messages: list[str]
    ) -> None:
        loaded = state_dict.get(f"{prefix}mask_logits")
        if loaded is not None and not loaded.is_meta and not bool(loaded.isfinite().all()):
            messages[-1].append(f"expected finite {prefix}mask_logits, got NaN or ±inf")
            return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *messages)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # .half() and .bfloat16() of the host model must not round M: only the device may follow.
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(device=moved.device)
            return moved

        return super()._apply(keep_precision, recurse)  # type: ignore[no-untyped-call, no-any-return]
