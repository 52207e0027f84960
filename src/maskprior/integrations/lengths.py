"""What a prior made for N tokens does at another number of tokens: one declared rule."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

Rule = Literal["error", "slice", "relative", "interpolate"]


@dataclass(frozen=True)
class Lengths:
    """How a square table over N tokens (the bias, or M) is used at n tokens.

    Attributes:
        rule: "error" refuses n ≠ N. "slice" takes the first n tokens and refuses n > N. "relative" is for
            structures of the distance alone: it slices, and beyond N continues each diagonal with its mean
            (the outermost ones with the outermost mean). "interpolate" is for grids of patches: the query
            axis and the key axis are resized bilinearly, prefix tokens are kept.
        grid: rows and columns of patches of N ("interpolate"); None takes a square.
        prefix: tokens before the patches: class, distillation, registers ("interpolate").
    """

    rule: Rule = "error"
    grid: tuple[int, int] | None = None
    prefix: int = 0

    def __post_init__(self) -> None:
        """Check the rule and its arguments (ValueError)."""
        if self.rule not in get_args(Rule):
            raise ValueError(f"expected a length rule in {get_args(Rule)}, got {self.rule!r}")
        if self.rule != "interpolate" and (self.grid is not None or self.prefix != 0):
            raise ValueError(f"expected grid and prefix with rule='interpolate' only, got rule={self.rule!r}")
        if self.prefix < 0 or (self.grid is not None and min(self.grid) < 1):
            raise ValueError(f"expected a grid ≥ 1 × 1 and prefix ≥ 0, got {self.grid} and {self.prefix}")

    def check(self, structure: Tensor) -> None:
        """Raise ValueError where the rule cannot be meant for this structure ``[*heads, N, N]``."""
        rows, columns = structure.shape[-2:]
        if self.rule == "error":
            return
        if rows != columns:
            raise ValueError(
                f"expected a square structure with lengths={self.rule!r}, got {rows} × {columns}"
            )
        if self.rule == "interpolate":
            self._grid_of(rows)
        if self.rule == "relative" and not torch.allclose(structure[..., 1:, 1:], structure[..., :-1, :-1]):
            raise ValueError(
                "expected a structure of the distance alone (constant along each diagonal) with "
                "lengths='relative', got one that is not; 'slice' takes any structure"
            )

    def fit(self, table: Tensor, queries: int, keys: int) -> Tensor:
        """The rows of the last ``queries`` of ``keys`` tokens.

        Args:
            table: ``[*heads, N, N]`` (or ``[*heads, queries, keys]``, which is returned as it is).
            queries: number of query tokens, the last of the keys (all, or the newest in cached decoding).
            keys: number of key tokens.

        Returns:
            ``[*heads, queries, keys]``.

        Raises:
            ValueError: the rule has no answer for this length.
        """
        rows, columns = table.shape[-2:]
        if (queries, keys) == (rows, columns):
            return table
        if rows != columns or self.rule == "error" or queries > keys:
            raise ValueError(
                f"expected {rows} queries and {columns} keys with lengths={self.rule!r}, got {queries} and "
                f"{keys}; other lengths need a square structure and lengths='slice', 'relative' or "
                "'interpolate'"
            )
        if self.rule == "interpolate":
            return self._interpolate(table, keys)[..., keys - queries :, :]
        if keys <= columns:
            return table[..., keys - queries : keys, :keys]
        if self.rule == "slice":
            raise ValueError(
                f"expected at most {columns} tokens with lengths='slice', got {keys}; make the structure "
                "longer, or use lengths='relative' if it depends on the distance alone"
            )
        positions = torch.arange(keys, device=table.device)
        return self.at(table, positions[keys - queries :, None], positions)

    def at(self, table: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Entries at pairs of token positions, which may lie beyond N with rule "relative" alone.

        Args:
            table: ``[*heads, N, N]``.
            query: integer positions ≥ 0, any shape that broadcasts with ``key``.
            key: integer positions ≥ 0.

        Returns:
            ``[*heads, *broadcast shape]``.

        Raises:
            ValueError: a position beyond N (not looked at while compiling, where reading it would stall).
        """
        last = table.shape[-1] - 1
        if self.rule != "relative":
            compiling = torch.compiler.is_compiling()
            if not compiling and (highest := int(torch.maximum(query, key).max())) > last:
                raise ValueError(
                    f"expected positions below {last + 1} with lengths={self.rule!r}, got {highest}; make "
                    "the structure longer, or use lengths='relative' if it depends on the distance alone"
                )
            return table[..., query, key]
        inside = table[..., query.clamp(max=last), key.clamp(max=last)]
        beyond = _diagonal_means(table)[..., (key - query).clamp(-last, last) + last]
        return torch.where((query <= last) & (key <= last), inside, beyond)

    def _grid_of(self, tokens: int) -> tuple[int, int]:
        """Grid of so many tokens: the declared one, scaled."""
        height, width = self.grid or (1, 1)
        patches = tokens - self.prefix
        scale = math.sqrt(max(patches, 0) / (height * width))
        rows, columns = round(height * scale), round(width * scale)
        if patches < 1 or rows * columns != patches:
            shape = f"{height} × {width}" if self.grid else "a square"
            raise ValueError(
                f"expected {self.prefix} prefix token(s) and a grid of the proportions of {shape}, "
                f"got {tokens} tokens; Lengths('interpolate', grid=(rows, columns), prefix=…) says which"
            )
        return rows, columns

    def _interpolate(self, table: Tensor, tokens: int) -> Tensor:
        old, new = self._grid_of(table.shape[-1]), self._grid_of(tokens)
        keys = _resize_keys(table, self.prefix, old, new)
        return _resize_keys(keys.mT, self.prefix, old, new).mT


def as_lengths(lengths: Lengths | Rule) -> Lengths:
    """A rule by its name, or as it is."""
    return lengths if isinstance(lengths, Lengths) else Lengths(lengths)


def _diagonal_means(table: Tensor) -> Tensor:
    """Mean along each diagonal, ``[*heads, 2N − 1]``; index key − query + N − 1."""
    n = table.shape[-1]
    positions = torch.arange(n, device=table.device)
    diagonal = (positions - positions[:, None] + n - 1).flatten()
    total = table.new_zeros(*table.shape[:-2], 2 * n - 1).index_add(-1, diagonal, table.flatten(-2))
    count = n - torch.arange(1 - n, n, device=table.device).abs()
    return total / count


def _resize_keys(table: Tensor, prefix: int, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Resize the last axis, prefix + a grid, to another grid: ``[..., tokens]`` → ``[..., new tokens]``."""
    patches = table[..., prefix:].reshape(-1, 1, *old)
    # A smaller grid averages what it covers, as timm resizes its tables.
    resized = F.interpolate(patches, size=new, mode="bilinear", align_corners=False, antialias=True)
    return torch.cat([table[..., :prefix], resized.reshape(*table.shape[:-1], -1)], dim=-1)
