"""Structures of cells on a height × width grid, numbered row by row: cell (y, x) is token y · width + x."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from maskprior.structures.arguments import check_choice, positive_numbers, whole_number
from maskprior.structures.compose import per_head

Metric = Literal["chebyshev", "manhattan", "euclidean"]
Border = Literal["clamp", "self", "empty"]


def grid_neighbourhood(height: int, width: int, radius: float, metric: Metric = "chebyshev") -> Tensor:
    """Cells no further apart than the radius interact, each with itself too.

    Distance by metric: "chebyshev" max(|Δy|, |Δx|), "manhattan" |Δy| + |Δx|, "euclidean" √(Δy² + Δx²).

    Args:
        height: rows of the grid.
        width: columns of the grid.
        radius: greatest distance, in cells; 1 with "chebyshev" is the 3 × 3 neighbourhood.
        metric: how distance is measured.

    Returns:
        float32 ``[height · width, height · width]``, symmetric.

    Raises:
        TypeError: ``height`` or ``width`` is not an integer.
        ValueError: a side < 1, a negative or non-finite radius, or an unknown metric.

    Example:
        >>> print(draw(grid_neighbourhood(2, 3, radius=1, metric="manhattan")))
        ■ ■ · ■ · ·
        ■ ■ ■ · ■ ·
        · ■ ■ · · ■
        ■ · · ■ ■ ·
        · ■ · ■ ■ ■
        · · ■ · ■ ■
    """
    check_choice("metric", metric, get_args(Metric))
    if not 0 <= radius < float("inf"):
        raise ValueError(f"expected a finite radius ≥ 0, got {radius}")
    dy, dx = _differences(height, width)
    if metric == "euclidean":  # squared, so that whole radii compare exactly
        return (dy.square() + dx.square() <= radius**2).float()
    distance = torch.maximum(dy.abs(), dx.abs()) if metric == "chebyshev" else dy.abs() + dx.abs()
    return (distance <= radius).float()


def grid_decay(height: int, width: int, sigma: float | Sequence[float]) -> Tensor:
    """Gaussian decay with Euclidean distance: s = exp(−(Δy² + Δx²) / 2σ²).

    Args:
        height: rows of the grid.
        width: columns of the grid.
        sigma: standard deviation in cells; a sequence gives one a head.

    Returns:
        float32 ``[height · width, height · width]``, or ``[heads, …]`` for a sequence; 1 on the diagonal.

    Raises:
        TypeError: ``height`` or ``width`` is not an integer.
        ValueError: a side < 1, or a sigma that is not finite and > 0.

    Example:
        >>> print(draw(grid_decay(2, 2, sigma=1.0)))
        ■ 6 6 4
        6 ■ 4 6
        6 4 ■ 6
        4 6 6 ■
    """
    dy, dx = _differences(height, width)
    sigmas = positive_numbers("sigma", sigma)[..., None, None]
    return torch.exp(-(dy.square() + dx.square()) / (2 * sigmas.square())).float()


def grid_offset(height: int, width: int, dy: int, dx: int, *, border: Border = "clamp") -> Tensor:
    """An impulse: cell (y, x) interacts with cell (y + dy, x + dx) alone.

    Where that cell is off the grid: "clamp" takes the nearest cell on it, "self" the cell itself, and "empty"
    leaves the row empty (zero padding), for composing with ``torch.maximum`` or ``with_fallback``.

    Args:
        height: rows of the grid.
        width: columns of the grid.
        dy: offset in rows, downwards.
        dx: offset in columns, to the right.
        border: what cells read whose target is off the grid.

    Returns:
        float32 ``[height · width, height · width]``, one 1 a row (at most one with "empty").

    Raises:
        TypeError: a size or offset is not an integer.
        ValueError: a side < 1, or an unknown border rule.

    Source: Zheng, Li, Saratchandran, Lucey 2025, arXiv 2505.19985, for impulse filters as attention.

    Example:
        >>> print(draw(grid_offset(2, 3, dy=0, dx=1)))
        · ■ · · · ·
        · · ■ · · ·
        · · ■ · · ·
        · · · · ■ ·
        · · · · · ■
        · · · · · ■
    """
    check_choice("border", border, get_args(Border))
    y, x = _cells(height, width)
    to_y, to_x = y + whole_number("dy", dy), x + whole_number("dx", dx)
    inside = (to_y >= 0) & (to_y < height) & (to_x >= 0) & (to_x < width)
    own = torch.arange(height * width)
    clamped = to_y.clamp(0, height - 1) * width + to_x.clamp(0, width - 1)
    target = torch.where(inside, clamped, own) if border == "self" else clamped
    structure = torch.zeros(height * width, height * width)
    structure[own, target] = 1.0
    return structure * inside.unsqueeze(1) if border == "empty" else structure


def grid_offsets(height: int, width: int, kernel_size: int, *, border: Border = "clamp") -> Tensor:
    """One impulse a head, for every offset of a k × k filter, row by row: head h has
    dy = h // k − (k − 1)/2 and dx = h mod k − (k − 1)/2.

    Args:
        height: rows of the grid.
        width: columns of the grid.
        kernel_size: k, odd.
        border: what cells read whose target is off the grid, see :func:`grid_offset`.

    Returns:
        float32 ``[k · k, height · width, height · width]``; the middle head is the identity.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a side < 1, a kernel size that is not odd and ≥ 1, or an unknown border rule.

    Example:
        >>> print(draw(grid_offsets(1, 2, 3)[3:6]))
        ■ ·   ■ ·   · ■
        ■ ·   · ■   · ■
    """
    if whole_number("kernel_size", kernel_size, minimum=1) % 2 == 0:
        raise ValueError(f"expected an odd kernel_size, got {kernel_size}")
    reach = range(-(kernel_size // 2), kernel_size // 2 + 1)
    return per_head(grid_offset(height, width, dy, dx, border=border) for dy in reach for dx in reach)


def _cells(height: int, width: int) -> tuple[Tensor, Tensor]:
    height = whole_number("height", height, minimum=1)
    width = whole_number("width", width, minimum=1)
    cells = torch.arange(height * width)
    return cells // width, cells % width


def _differences(height: int, width: int) -> tuple[Tensor, Tensor]:
    y, x = (axis.double() for axis in _cells(height, width))
    return y - y.unsqueeze(1), x - x.unsqueeze(1)
