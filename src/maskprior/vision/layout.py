"""Structures of image patches behind class and register tokens, one kind a head."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskprior.structures import everything, grid_decay, grid_neighbourhood, grid_offset, with_readout

KINDS = "'free', 'offset DY DX', 'near RADIUS' or 'decay SIGMA'"


def head_structure(head: str, height: int, width: int) -> Tensor:
    """Structure of one head over the cells of a grid, ``[height · width, height · width]``.

    Args:
        head: "free": all interact. "offset DY DX": the impulse at that offset, the own patch where that is
            off the grid. "near RADIUS": the (2 · radius + 1)² neighbourhood. "decay SIGMA": Gaussian decay
            with the distance, exp(−distance² / 2σ²). Distances in patches.
        height: rows of the grid.
        width: columns of the grid.

    Raises:
        ValueError: an unknown kind or its numbers are wrong.
    """
    kind, *numbers = head.split() or [""]
    try:
        values = [float(number) for number in numbers]
        if kind == "free" and not values:
            return everything(height * width)
        if kind == "offset" and len(values) == 2:
            dy, dx = map(int, numbers)
            return grid_offset(height, width, dy, dx, border="self")
        if kind == "near" and len(values) == 1:
            return grid_neighbourhood(height, width, values[0])
        if kind == "decay" and len(values) == 1:
            return grid_decay(height, width, values[0])
    except ValueError as error:
        raise ValueError(f"head {head!r}: {error}") from None
    raise ValueError(f"expected a head {KINDS}, got {head!r}")


@dataclass(frozen=True)
class Layout:
    """Who interacts with whom in every layer and head.

    Attributes:
        heads: one text a head, see :func:`head_structure`.
        depth: number of layers of the model.
        layers: so many layers, from the first, have the structure; in the others all interact. None: all.
    """

    heads: tuple[str, ...]
    depth: int
    layers: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers (ValueError)."""
        if not self.heads:
            raise ValueError(f"expected at least one head ({KINDS}), got none")
        if self.layers is not None and not 1 <= self.layers <= self.depth:
            raise ValueError(f"expected layers from 1 to depth={self.depth}, got {self.layers}")

    def structure(self, grid: tuple[int, int], prefix_tokens: int) -> Tensor:
        """The structure of a model: prefix tokens read all tokens and are read by all.

        Returns:
            ``[heads, N, N]``, or ``[layers, heads, N, N]`` where not all layers have it.
        """
        patches = torch.stack([head_structure(head, *grid) for head in self.heads])
        structure = with_prefix(patches, prefix_tokens)
        if self.layers is None or self.layers == self.depth:
            return structure
        free = torch.ones_like(structure)
        return torch.stack([structure if layer < self.layers else free for layer in range(self.depth)])


def with_prefix(structure: Tensor, tokens: int) -> Tensor:
    """Class and register tokens in front, which read all tokens and are read by all.

    Args:
        structure: of the patches, ``[*heads, n, n]``.
        tokens: how many.

    Returns:
        ``[*heads, tokens + n, tokens + n]``.
    """
    for _ in range(tokens):
        structure = with_readout(structure, read_by="all", self_read=True)
    return structure


def offsets(kernel_size: int) -> tuple[str, ...]:
    """One impulse a head for every offset of a k × k filter, row by row.

    Raises:
        ValueError: the kernel size is not odd.
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"expected an odd kernel_size, got {kernel_size}")
    reach = range(-(kernel_size // 2), kernel_size // 2 + 1)
    return tuple(f"offset {dy} {dx}" for dy in reach for dx in reach)
