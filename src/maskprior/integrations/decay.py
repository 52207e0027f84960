"""Notice optimisers that decay mask logits, once."""

import warnings
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from maskprior.parameter_groups import mask_parameters


class DecayWarning(UserWarning):
    """An optimiser pulls mask logits to 0, which is no prior."""


def watch_for_decay(model: nn.Module) -> None:
    """Warn at the first step of an optimiser that decays the model's mask logits.

    Uses torch's own hook for all optimisers, and looks at each optimiser once. It ends with the warning or
    with the model.
    """
    host = weakref.ref(model)
    looked_at: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        model = host()
        if model is None or optimizer in looked_at:
            return
        looked_at.add(optimizer)
        decayed = _decayed(optimizer, {id(parameter) for parameter in mask_parameters(model)})
        if decayed:
            handle.remove()
            warnings.warn(_message(optimizer, decayed), DecayWarning, stacklevel=3)

    handle = register_optimizer_step_pre_hook(look)
    weakref.finalize(model, handle.remove)


def _decayed(optimizer: torch.optim.Optimizer, logits: set[int]) -> dict[int, float]:
    """Weight decay by group number, for the groups that hold mask logits and decay."""
    return {
        number: float(group["weight_decay"])
        for number, group in enumerate(optimizer.param_groups)
        if group.get("weight_decay", 0.0) and any(id(parameter) in logits for parameter in group["params"])
    }


def _message(optimizer: torch.optim.Optimizer, decayed: dict[int, float]) -> str:
    groups = ", ".join(f"group {number} with {decay:g}" for number, decay in decayed.items())
    return (
        f"{type(optimizer).__name__} decays mask logits ({groups}): decay pulls M to 0, which is no prior. "
        "Build it from attachment.param_groups(lr, weight_decay)"
    )
