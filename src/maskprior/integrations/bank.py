"""The bank: the one module that an attachment adds to its host: the priors and where they go."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from maskprior.integrations.lengths import Lengths
from maskprior.integrations.site import Relations
from maskprior.mask_prior import MaskPrior

# Trainers that leave every name with "bias" undecayed (Hugging Face's does) then leave M undecayed too.
BANK_NAME = "bias_priors"


@dataclass(frozen=True)
class Plan:
    """Which attention modules have which prior.

    Attributes:
        layers: names of the attention modules in the host.
        prior_of_layer: for each of them, the index of its prior in the bank.
        heads: the heads that have a prior; None: all.
        lengths: what the priors do at other lengths.
        by_relation: M is ``[1 or heads, relations]``, not ``[*heads, N, N]``.
    """

    layers: tuple[str, ...]
    prior_of_layer: tuple[int, ...]
    heads: tuple[int, ...] | None
    lengths: Lengths
    by_relation: bool = False


class ConstantBias(nn.Module):
    """A baked prior: its bias as a buffer, nothing to learn, nothing to compute.

    Args:
        bias: ``[*heads, query, key]``.
    """

    bias: Tensor

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("bias", bias.detach().clone())

    def forward(self) -> Tensor:
        """The bias, float32."""
        return self.bias

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        bias = self.bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # .half() and .bfloat16() of the host must not round the bias: only the device may follow.
        if self.bias.dtype in (torch.float16, torch.bfloat16):
            self.bias = bias.to(self.bias.device)
        return self


class PriorBank(nn.ModuleList):
    """The priors of a host, each once, under the names ``bias_priors.<index>.mask_logits``.

    A checkpoint of another length is brought to this one's by the rule for lengths as it is loaded.

    Args:
        priors: :class:`MaskPrior` or :class:`ConstantBias`.
        plan: where they go.

    Attributes:
        installed: whether the attention modules use them at present.
        relations: those of the batch, for priors of relations.
    """

    def __init__(self, priors: Iterable[nn.Module], plan: Plan) -> None:
        super().__init__(priors)
        self.plan, self.installed = plan, False
        self.relations = Relations() if plan.by_relation else None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for index, prior in enumerate(self):
            key = f"{prefix}{index}.mask_logits"
            if isinstance(prior, MaskPrior) and isinstance(state_dict.get(key), Tensor):
                state_dict[key] = _resized(state_dict[key], prior.mask_logits, self.plan.lengths)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _resized(loaded: Tensor, own: Tensor, lengths: Lengths) -> Tensor:
    """Loaded logits at the own length; as they are (for torch to report) where the rule has no answer."""
    if loaded.shape == own.shape or loaded.shape[:-2] != own.shape[:-2] or lengths.rule == "error":
        return loaded
    return lengths.fit(loaded, own.shape[-1], own.shape[-1])
