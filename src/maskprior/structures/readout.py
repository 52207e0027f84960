"""Reading rules of a [CLS] or other read-out token added to a structure."""

from collections.abc import Iterable
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from maskprior.structures.arguments import check_choice, square_structure, token_indices

Readers = Literal["all", "none"]
Position = Literal["first", "last"]


def with_readout(
    structure: Tensor,
    *,
    reads: Readers | Iterable[int] = "all",
    read_by: Readers | Iterable[int] = "none",
    self_read: bool = False,
    position: Position = "first",
) -> Tensor:
    """One more token, which reads others and may be read by them; the other rows stay as they are.

    Call it again for further tokens (distilled, registers). Tokens that have nothing to read can read the
    read-out: ``with_fallback(structure, reads(n + 1, range(n + 1), [0]))``.

    Args:
        structure: ``[*heads, n, n]`` in [0, 1]; rows may be empty.
        reads: what the read-out reads: "all" tokens, "none", or indices into the given structure.
        read_by: which tokens read the read-out: "all", "none", or indices into the given structure.
        self_read: the read-out reads itself; needed where it reads nothing else.
        position: the read-out becomes the "first" token (index 0) or the "last" (index n).

    Returns:
        ``[*heads, n + 1, n + 1]``, float32 at least.

    Raises:
        TypeError: not a floating-point or bool tensor, or an index that is not an integer.
        ValueError: not square, non-finite, out of [0, 1], an index out of 0..n−1, an unknown rule or
            position, or a read-out that reads nothing.

    Example:
        >>> print(draw(with_readout(pairs(3, [(0, 2)]), reads=[0, 1], read_by="all")))
        · ■ ■ ·
        ■ · · ■
        ■ · · ·
        ■ ■ · ·
    """
    check_choice("position", position, get_args(Position))
    structure = square_structure(structure)
    n = structure.shape[-1]
    read, readers = _tokens("reads", reads, n), _tokens("read_by", read_by, n)
    if not (read or self_read):
        raise ValueError("expected a read-out that reads something, got reads='none' without self_read=True")
    start, own = (1, 0) if position == "first" else (0, n)
    result = F.pad(structure, (start, 1 - start, start, 1 - start))
    result[..., own, [start + index for index in read]] = 1.0
    result[..., [start + index for index in readers], own] = 1.0
    result[..., own, own] = float(self_read)
    return result


def _tokens(name: str, rule: Readers | Iterable[int], n: int) -> list[int]:
    if isinstance(rule, str):
        check_choice(name, rule, get_args(Readers))
        return list(range(n)) if rule == "all" else []
    return token_indices(name, rule, n)
