"""Checks of constructor arguments: each says what was expected and what came."""

import operator
from collections.abc import Collection, Iterable, Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

from maskprior.structures.validation import (
    check_structure_shape,
    check_structure_type,
    check_structure_values,
)


def whole_number(name: str, value: SupportsIndex, minimum: int | None = None) -> int:
    """The value as an int of at least ``minimum``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"expected {name} as an integer, got {value!r}") from None
    if minimum is not None and number < minimum:
        raise ValueError(f"expected {name} ≥ {minimum}, got {number}")
    return number


def token_indices(name: str, values: Iterable[SupportsIndex], n: int) -> list[int]:
    """The values as token indices in 0..n−1, in their order."""
    if not isinstance(values, Iterable):
        raise TypeError(f"expected {name} as a sequence of token indices, got {values!r}")
    indices = [whole_number(f"the indices in {name}", value) for value in values]
    for index in indices:
        if not 0 <= index < n:
            raise ValueError(f"expected the indices in {name} in 0..{n - 1}, got {index}")
    return indices


def positive_numbers(name: str, values: float | Sequence[float]) -> Tensor:
    """Finite numbers > 0 as float64: shape ``[]`` for one number, ``[heads]`` for one a head."""
    try:
        numbers = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError):
        raise TypeError(f"expected {name} as a number or one number a head, got {values!r}") from None
    if numbers.dim() > 1 or numbers.numel() == 0:
        raise ValueError(f"expected {name} as a number or one number a head, got {values!r}")
    if not bool((numbers.isfinite() & (numbers > 0)).all()):
        raise ValueError(f"expected {name} finite and > 0, got {values!r}")
    return numbers


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"expected {name} to be one of {', '.join(map(repr, choices))}, got {value!r}")


def empty_structure(n: int) -> Tensor:
    """``[n, n]`` zeros to write into, for n ≥ 1 tokens."""
    n = whole_number("n", n, minimum=1)
    return torch.zeros(n, n)


def float_structure(structure: Tensor) -> Tensor:
    """A structure, which may still have empty rows, checked and in float32 at least."""
    check_structure_type(structure)
    check_structure_shape(structure)
    check_structure_values(structure)
    return structure.to(torch.promote_types(structure.dtype, torch.float32))


def square_structure(structure: Tensor) -> Tensor:
    """As :func:`float_structure`, with as many keys as queries."""
    structure = float_structure(structure)
    if structure.shape[-2] != structure.shape[-1]:
        raise ValueError(
            f"expected as many keys as queries, got a structure of shape {tuple(structure.shape)}"
        )
    return structure
