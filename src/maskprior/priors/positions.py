"""Sinusoidal position embeddings of patches on a grid."""

import torch
from torch import Tensor

from maskprior.priors.vision_protocol import VisionPriorModel


def sinusoidal_positions(height: int, width: int, channels: int, temperature: float = 10_000.0) -> Tensor:
    """Fixed embedding of the cells of a grid, row by row:

        e(y, x) = [sin(x ω), cos(x ω), sin(y ω), cos(y ω)],   ω_k = temperature^(−k / K),  k = 0 … K − 1

    with K = channels / 4. Every embedding has the norm √(channels / 2).

    Args:
        height: rows of the grid.
        width: columns of the grid.
        channels: size of an embedding, a multiple of 4.
        temperature: the longest wavelength over 2π, about.

    Returns:
        float32 ``[height · width, channels]``.

    Raises:
        ValueError: channels is not a multiple of 4.

    Source: Vaswani et al. 2017, section 3.5; in two dimensions Chen, Xie, He 2021, arXiv 2104.02057.
    """
    if channels % 4:
        raise ValueError(f"expected channels as a multiple of 4, got {channels}")
    rates = temperature ** -(torch.arange(channels // 4, dtype=torch.float64) / (channels // 4))
    cells = torch.arange(height * width, dtype=torch.float64)
    y, x = (cells // width)[:, None] * rates, (cells % width)[:, None] * rates
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()


@torch.no_grad()
def set_sinusoidal_positions(model: VisionPriorModel) -> None:
    """Write :func:`sinusoidal_positions` into the model; prefix tokens get zeros."""
    embedding = model.position_embedding()
    table = sinusoidal_positions(*model.grid, embedding.shape[-1])
    embedding[: model.prefix_tokens] = 0
    embedding[model.prefix_tokens :] = table.to(embedding)
