"""Parameter groups of a model with priors: mask logits are never decayed and have their own learning rate."""

from typing import Any

from torch import nn

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
