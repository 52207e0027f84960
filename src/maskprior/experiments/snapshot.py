"""What a run shows of its model: attention and M, at the start and at the end."""

from typing import Protocol

from torch import Tensor


class Observed(Protocol):
    """A model whose attention can be looked at."""

    def attention_patterns(self, inputs: Tensor, /) -> Tensor:
        """Attention averaged over the batch, ``[layers, heads, N, N]``."""

    def mask_logits(self) -> Tensor | None:
        """M of every layer, ``[layers, 1 or heads, N, N]``; None without."""


def snapshot(model: Observed, inputs: Tensor, moment: str) -> dict[str, Tensor]:
    """Mean attention patterns ``[layers, heads, N, N]`` and, with a mask prior, M of every layer."""
    tensors = {f"attention_{moment}": model.attention_patterns(inputs).float().cpu()}
    logits = model.mask_logits()
    if logits is not None:
        tensors[f"mask_logits_{moment}"] = logits.detach().cpu()
    return tensors
