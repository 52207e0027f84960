"""Optimiser and schedule: mask logits are never decayed and have their own learning-rate factor."""

import math

import torch
from torch import nn

from maskprior.experiments.config import TrainingConfig
from maskprior.parameter_groups import mask_parameters, parameter_groups

__all__ = ["make_optimizer", "make_schedule", "mask_parameters", "parameter_groups"]


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """The configured optimiser over :func:`parameter_groups`."""
    groups = parameter_groups(
        model,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        mask_learning_rate_factor=config.mask_learning_rate_factor,
    )
    for group in groups:
        if group["name"] == "mask_logits":
            group["weight_decay"] = config.mask_weight_decay
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
