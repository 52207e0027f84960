"""Structures of named tokens: all, self, pairs, groups, readers."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from maskprior.structures.arguments import empty_structure, token_indices, whole_number
from maskprior.structures.compose import without_self


def everything(n: int) -> Tensor:
    """Every token interacts with every token, itself included: no constraint.

    Args:
        n: number of tokens.

    Returns:
        float32 ``[n, n]``.

    Raises:
        TypeError: ``n`` is not an integer.
        ValueError: ``n`` < 1.

    Example:
        >>> print(draw(everything(3)))
        ■ ■ ■
        ■ ■ ■
        ■ ■ ■
    """
    n = whole_number("n", n, minimum=1)
    return torch.ones(n, n)


def identity(n: int) -> Tensor:
    """Every token interacts with itself alone.

    Args:
        n: number of tokens.

    Returns:
        float32 ``[n, n]``.

    Raises:
        TypeError: ``n`` is not an integer.
        ValueError: ``n`` < 1.

    Example:
        >>> print(draw(identity(3)))
        ■ · ·
        · ■ ·
        · · ■
    """
    return torch.eye(whole_number("n", n, minimum=1))


def pairs(n: int, pairs: Iterable[Sequence[int]], *, symmetric: bool = True) -> Tensor:
    """The named pairs interact, nothing else; a token reads itself only where a pair (i, i) says so.

    Tokens in no pair have an empty row: see ``with_fallback`` and ``with_fallback_self``.

    Args:
        n: number of tokens.
        pairs: (query, key) indices; repeated pairs count once.
        symmetric: the key reads the query too.

    Returns:
        float32 ``[n, n]`` of 0 and 1.

    Raises:
        TypeError: an index is not an integer.
        ValueError: ``n`` < 1, a pair that is no pair, or an index out of 0..n−1.

    Example:
        >>> print(draw(pairs(4, [(0, 2)])))
        · · ■ ·
        · · · ·
        ■ · · ·
        · · · ·
    """
    structure = empty_structure(n)
    for pair in pairs:
        indices = token_indices("pairs", pair, n)
        if len(indices) != 2:
            raise ValueError(f"expected pairs (query, key), got {len(indices)} indices in {pair!r}")
        query, key = indices
        structure[query, key] = 1.0
        if symmetric:
            structure[key, query] = 1.0
    return structure


def groups(n: int, groups: Iterable[Iterable[int]], *, include_self: bool = False) -> Tensor:
    """Tokens of the same group interact with one another; groups may overlap.

    Tokens in no group have an empty row, and so have groups of one without ``include_self``.

    Args:
        n: number of tokens.
        groups: token indices of each group, e.g. the columns of a table that belong together.
        include_self: the tokens of the groups read themselves too.

    Returns:
        float32 ``[n, n]`` of 0 and 1, symmetric.

    Raises:
        TypeError: a group is not a sequence of integers.
        ValueError: ``n`` < 1, or an index out of 0..n−1.

    Example:
        >>> print(draw(groups(5, [[0, 1, 3], [2, 4]])))
        · ■ · ■ ·
        ■ · · ■ ·
        · · · · ■
        ■ ■ · · ·
        · · ■ · ·
    """
    structure = empty_structure(n)
    for group in groups:
        members = torch.tensor(token_indices("groups", group, n), dtype=torch.long)
        structure[members.unsqueeze(1), members] = 1.0
    return structure if include_self else without_self(structure)


def reads(n: int, queries: Iterable[int], keys: Iterable[int]) -> Tensor:
    """Each of the queries reads all of the keys, itself included where it is one of them.

    ``torch.minimum(structure, reads(n, range(n), keys))`` keeps only what reads those keys.

    Args:
        n: number of tokens.
        queries: indices of the tokens that read.
        keys: indices of the tokens that are read.

    Returns:
        float32 ``[n, n]`` of 0 and 1.

    Raises:
        TypeError: the indices are not sequences of integers.
        ValueError: ``n`` < 1, or an index out of 0..n−1.

    Example:
        >>> print(draw(reads(4, queries=[2, 3], keys=[0, 3])))
        · · · ·
        · · · ·
        ■ · · ■
        ■ · · ■
    """
    structure = empty_structure(n)
    rows = torch.tensor(token_indices("queries", queries, n), dtype=torch.long)
    structure[rows.unsqueeze(1), torch.tensor(token_indices("keys", keys, n), dtype=torch.long)] = 1.0
    return structure
