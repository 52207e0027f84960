"""Structures from structures: self in or out, fallbacks for empty rows, heads, layers, padding.

Union and intersection need no function: ``torch.maximum(a, b)`` and ``torch.minimum(a, b)``.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from maskprior.structures.arguments import float_structure, square_structure, whole_number


def with_self(structure: Tensor) -> Tensor:
    """Every token reads itself too: the diagonal becomes 1.

    Args:
        structure: ``[*heads, n, n]`` in [0, 1]; rows may be empty.

    Returns:
        The same shape, float32 at least.

    Raises:
        TypeError: not a floating-point or bool tensor.
        ValueError: not square, non-finite or out of [0, 1].

    Example:
        >>> print(draw(with_self(pairs(3, [(0, 2)]))))
        ■ · ■
        · ■ ·
        ■ · ■
    """
    structure = square_structure(structure)
    return structure.masked_fill(_diagonal(structure), 1.0)


def without_self(structure: Tensor) -> Tensor:
    """No token reads itself: the diagonal becomes 0. Rows that held nothing else become empty.

    Args:
        structure: ``[*heads, n, n]`` in [0, 1]; rows may be empty.

    Returns:
        The same shape, float32 at least.

    Raises:
        TypeError: not a floating-point or bool tensor.
        ValueError: not square, non-finite or out of [0, 1].

    Example:
        >>> print(draw(without_self(causal(3))))
        · · ·
        ■ · ·
        ■ ■ ·
    """
    structure = square_structure(structure)
    return structure.masked_fill(_diagonal(structure), 0.0)


def with_fallback(structure: Tensor, fallback: Tensor) -> Tensor:
    """Rows that are empty (in their head) are taken from the fallback; the others stay as they are.

    An empty row is not "reads nothing": softmax is shift-invariant, so a row that is suppressed everywhere
    attends uniformly. ``fallback=everything(n)`` says so openly; ``with_fallback_self`` is the other choice.

    Args:
        structure: ``[*heads, query, key]`` in [0, 1]; rows may be empty.
        fallback: of the structure's shape, or ``[query, key]`` for all heads.

    Returns:
        The structure's shape, float32 at least.

    Raises:
        TypeError: not floating-point or bool tensors.
        ValueError: shapes do not fit, non-finite or out of [0, 1].

    Example:
        >>> print(draw(with_fallback(pairs(3, [(0, 2)]), everything(3))))
        · · ■
        ■ ■ ■
        ■ · ·
    """
    structure, fallback = float_structure(structure), float_structure(fallback)
    if fallback.shape not in (structure.shape, structure.shape[-2:]):
        raise ValueError(
            f"expected a fallback of shape {tuple(structure.shape)} or {tuple(structure.shape[-2:])}, got "
            f"{tuple(fallback.shape)}"
        )
    interacts = (structure > 0).any(dim=-1, keepdim=True)
    return torch.where(interacts, structure, fallback.to(structure.dtype))


def with_fallback_self(structure: Tensor) -> Tensor:
    """Tokens whose row is empty read themselves; see :func:`with_fallback`.

    Args:
        structure: ``[*heads, n, n]`` in [0, 1]; rows may be empty.

    Returns:
        The same shape, float32 at least.

    Raises:
        TypeError: not a floating-point or bool tensor.
        ValueError: not square, non-finite or out of [0, 1].

    Example:
        >>> print(draw(with_fallback_self(pairs(3, [(0, 2)]))))
        · · ■
        · ■ ·
        ■ · ·
    """
    structure = square_structure(structure)
    return with_fallback(structure, _diagonal(structure))


def padded(structure: Tensor, n: int) -> Tensor:
    """The structure for ``n`` tokens, of which the added ones, at the end, read themselves alone.

    Graphs of different size so become one batch: ``torch.stack([padded(graph, n) for graph in graphs])``.

    Args:
        structure: ``[*heads, length, length]`` in [0, 1].
        n: number of tokens afterwards, at least ``length``.

    Returns:
        ``[*heads, n, n]``, float32 at least.

    Raises:
        TypeError: not a floating-point or bool tensor, or ``n`` not an integer.
        ValueError: not square, non-finite, out of [0, 1], or longer than ``n``.

    Example:
        >>> print(draw(padded(pairs(2, [(0, 1)]), 3)))
        · ■ ·
        ■ · ·
        · · ■
    """
    structure = square_structure(structure)
    length = structure.shape[-1]
    added = whole_number("n", n, minimum=length) - length
    result = F.pad(structure, (0, added, 0, added))
    result[..., length:, length:] = torch.eye(added, dtype=result.dtype, device=result.device)
    return result


def per_head(structures: Iterable[Tensor]) -> Tensor:
    """One structure a head, stacked.

    A tensor ``[heads, query, key]`` iterates over its heads, so that
    ``per_head([*grid_offsets(8, 8, 3), everything(64)])`` leaves the last of ten heads free.

    Args:
        structures: each ``[query, key]`` in [0, 1], all of one shape.

    Returns:
        ``[heads, query, key]``, float32 at least.

    Raises:
        TypeError: not floating-point or bool tensors.
        ValueError: none given, not two-dimensional, unequal shapes, non-finite or out of [0, 1].

    Example:
        >>> print(draw(per_head([identity(2), causal(2)])))
        ■ ·   ■ ·
        · ■   ■ ■
    """
    heads = [float_structure(structure) for structure in structures]
    _check_shapes("per_head", heads, dims=(2,))
    return torch.stack(heads)


def per_layer(structures: Iterable[Tensor]) -> Tensor:
    """One structure a layer, stacked; a layer without heads is shared by all its heads.

    Args:
        structures: each ``[query, key]`` or ``[heads, query, key]`` in [0, 1]; queries, keys and heads equal.

    Returns:
        ``[layers, heads, query, key]``, heads = 1 where no layer has more; float32 at least.

    Raises:
        TypeError: not floating-point or bool tensors.
        ValueError: none given, unequal shapes, non-finite or out of [0, 1].

    Example:
        >>> per_layer([causal(5), per_head([causal(5), identity(5)])]).shape
        torch.Size([2, 2, 5, 5])
    """
    layers = [float_structure(structure) for structure in structures]
    _check_shapes("per_layer", layers, dims=(2, 3))
    heads = {layer.shape[0] for layer in layers if layer.dim() == 3} - {1}
    if len(heads) > 1:
        raise ValueError(f"expected per_layer structures with one number of heads, got {sorted(heads)}")
    wanted = (max(heads, default=1), *layers[0].shape[-2:])
    return torch.stack([layer.expand(wanted) for layer in layers])


def _diagonal(structure: Tensor) -> Tensor:
    return torch.eye(structure.shape[-1], dtype=torch.bool, device=structure.device)


def _check_shapes(name: str, structures: list[Tensor], dims: tuple[int, ...]) -> None:
    shapes = [tuple(structure.shape) for structure in structures]
    if not shapes:
        raise ValueError(f"expected at least one structure in {name}, got none")
    if any(len(shape) not in dims for shape in shapes):
        kinds = " or ".join("[query, key]" if dim == 2 else "[heads, query, key]" for dim in dims)
        raise ValueError(f"expected {name} structures {kinds}, got shapes {shapes}")
    if len({shape[-2:] for shape in shapes}) > 1:
        raise ValueError(f"expected {name} structures with the same queries and keys, got shapes {shapes}")
