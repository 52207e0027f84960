"""What makes a tensor a structure, checked once at the border with clear messages."""

import torch
from torch import Tensor


def first_index(condition: Tensor) -> list[int]:
    """Index of the first True of a Boolean tensor that has one."""
    index: list[int] = condition.nonzero()[0].tolist()
    return index


def check_structure(structure: Tensor, *, length: int | None = None, heads: int | None = None) -> None:
    """Raise unless ``structure`` says who interacts: ``[*heads, query, key]``, each row with some key.

    Floating point in [0, 1], or bool. An empty row is an error, as it would mean the opposite of what it
    says: softmax is shift-invariant, so a row that is suppressed everywhere is one that attends uniformly.
    ``with_fallback_self`` fills such rows.

    Args:
        structure: the tensor to check.
        length: number of tokens, queries and keys alike; None accepts any shape.
        heads: number of heads: ``[query, key]``, ``[1, query, key]`` and ``[heads, query, key]`` pass; None
            accepts any leading dimensions.

    Raises:
        TypeError: not a tensor, or neither floating point nor bool.
        ValueError: wrong shape, non-finite, out of [0, 1], or an empty row.
    """
    check_structure_type(structure)
    check_structure_shape(structure, length=length, heads=heads)
    check_structure_values(structure)
    empty = ~(structure > 0).any(dim=-1)
    if bool(empty.any()):
        raise ValueError(
            f"expected every query to interact with some key, got {int(empty.sum())} empty row(s), the first "
            f"at index {first_index(empty)}; with_fallback_self lets empty rows attend to themselves"
        )


def check_structure_type(structure: object) -> None:
    """Raise TypeError unless it is a floating-point or bool tensor."""
    if not isinstance(structure, Tensor):
        raise TypeError(
            f"expected the structure as a torch.Tensor, got {type(structure).__name__}; from_adjacency "
            f"converts arrays, nested lists and sparse matrices"
        )
    if not (structure.is_floating_point() or structure.dtype == torch.bool):
        raise TypeError(f"expected a floating-point or bool structure, got {structure.dtype}")


def check_structure_shape(structure: Tensor, *, length: int | None = None, heads: int | None = None) -> None:
    """Raise ValueError unless the shape is ``[*heads, query, key]`` with the given numbers."""
    shape = tuple(structure.shape)
    if structure.dim() < 2 or structure.numel() == 0:
        raise ValueError(
            f"expected a structure [*heads, query, key] with no dimension of size 0, got shape {shape}"
        )
    if length is not None and shape[-2:] != (length, length):
        raise ValueError(f"expected a structure [*heads, {length}, {length}], got shape {shape}")
    if heads is not None and shape[:-2] not in ((), (1,), (heads,)):
        raise ValueError(
            f"expected a structure [query, key], [1, query, key] or [{heads}, query, key] for {heads} "
            f"head(s), got shape {shape}"
        )


def check_structure_values(structure: Tensor) -> None:
    """Raise ValueError unless every value is finite and in [0, 1]."""
    if structure.dtype == torch.bool:
        return
    finite = structure.isfinite()
    if not bool(finite.all()):
        index = first_index(~finite)
        raise ValueError(
            f"expected a finite structure, got {structure[tuple(index)].item()} at index {index}"
        )
    low, high = (float(extreme) for extreme in structure.aminmax())
    if low < 0 or high > 1:
        raise ValueError(f"expected structure values in [0, 1], got values from {low:g} to {high:g}")
