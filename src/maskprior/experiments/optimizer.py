"""Optimiser and schedule: mask logits are never decayed and have their own learning-rate factor."""

import math
from typing import Any

import torch
from torch import nn

from maskprior.experiments.config import TrainingConfig
from maskprior.mask_prior import MaskPrior


def mask_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The mask logits of every :class:`MaskPrior` in the model, each once."""
    found = [module.mask_logits for module in model.modules() if isinstance(module, MaskPrior)]
    return list(dict.fromkeys(found))


def parameter_groups(
    model: nn.Module, *, learning_rate: float, weight_decay: float, mask_learning_rate_factor: float = 1.0
) -> list[dict[str, Any]]:
    """Groups for any torch optimiser: "decayed", "undecayed", "mask_logits"; frozen ones are left out.

    Weight decay pulls M to 0, where log σ(M) is the same for every pair: no prior. Vectors (biases, norms)
    are not decayed either, as is usual.

    Args:
        model: any module.
        learning_rate: of the first two groups.
        weight_decay: of the "decayed" group; the others have 0.
        mask_learning_rate_factor: learning rate of the mask logits over ``learning_rate``.
    """
    logits = mask_parameters(model)
    chosen = {id(parameter) for parameter in logits}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    groups: list[tuple[str, list[nn.Parameter], float, float]] = [
        ("decayed", [p for p in others if p.dim() > 1], learning_rate, weight_decay),
        ("undecayed", [p for p in others if p.dim() <= 1], learning_rate, 0.0),
        (
            "mask_logits",
            [p for p in logits if p.requires_grad],
            learning_rate * mask_learning_rate_factor,
            0.0,
        ),
    ]
    return [
        {"name": name, "params": parameters, "lr": lr, "weight_decay": decay}
        for name, parameters, lr, decay in groups
        if parameters
    ]


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """The configured optimiser over :func:`parameter_groups`."""
    groups = parameter_groups(
        model,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        mask_learning_rate_factor=config.mask_learning_rate_factor,
    )
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate)
    device = next(model.parameters()).device.type
    # One fused update instead of a Python loop over parameters; the arithmetic is the same.
    fused = True if device in ("cpu", "cuda") else None
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=config.learning_rate, betas=config.betas, fused=fused)


def make_schedule(
    optimizer: torch.optim.Optimizer, config: TrainingConfig
) -> torch.optim.lr_scheduler.LambdaLR:
    """Linear warm-up, then constant or half a cosine to zero at the last step."""

    def factor(step: int) -> float:
        warm = min(1.0, (step + 1) / max(1, config.warmup_steps))
        if config.schedule == "constant":
            return warm
        left = max(1, config.steps - config.warmup_steps)
        done = min(1.0, max(0, step - config.warmup_steps) / left)
        return warm * 0.5 * (1 + math.cos(math.pi * done))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
