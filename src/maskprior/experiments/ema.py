"""Exponential moving average of a model's weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """θ̄ ← d θ̄ + (1 − d) θ after each update, with d = min(decay, (1 + t) / (10 + t)) at update t.

    The smaller d of the first updates forgets the initial weights. Buffers that are not floating-point follow
    the model as they are.

    Args:
        model: whose parameters and buffers are averaged, on its device.
        decay: in (0, 1).

    Raises:
        ValueError: a decay out of (0, 1).

    Source: Polyak and Juditsky 1992; the warm-up is TensorFlow's ``ExponentialMovingAverage``.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"expected an EMA decay in (0, 1), got {decay}")
        self.decay = decay
        self.tensors: dict[str, Tensor] = {
            name: tensor.detach().clone() for name, tensor in model.state_dict().items()
        }

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after update ``step`` (counted from 1)."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        current = model.state_dict()
        smooth = [name for name, tensor in self.tensors.items() if tensor.is_floating_point()]
        torch._foreach_lerp_([self.tensors[n] for n in smooth], [current[n] for n in smooth], weight)
        for name in self.tensors.keys() - set(smooth):
            self.tensors[name].copy_(current[name])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within the context, the model has the averaged weights."""
        own = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        _write(model, self.tensors)
        try:
            yield
        finally:
            _write(model, own)


@torch.no_grad()
def _write(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        tensor.copy_(tensors[name])
