"""Pairs of operands: drawing them, and how far carries run in them."""

import torch
from torch import Tensor

from maskprior.tasks.arithmetic_layout import Operation, digits_of

ENUMERATED = 2**22


def draw_distinct(count: int, total: int, generator: torch.Generator) -> Tensor:
    """``count`` different numbers below ``total``, int64, in random order.

    Raises:
        ValueError: there are not so many.
    """
    if not 0 <= count <= total:
        raise ValueError(f"expected 0 ≤ count ≤ {total}, got {count}")
    if total <= ENUMERATED or 2 * count > total:
        return torch.randperm(total, generator=generator)[:count]
    drawn = torch.empty(0, dtype=torch.long)
    while len(drawn) < count:
        more = torch.randint(total, (2 * count,), generator=generator)
        drawn = _without_repeats(torch.cat([drawn, more]))
    return drawn[:count]


def _without_repeats(numbers: Tensor) -> Tensor:
    """The numbers in order, each where it first stands."""
    kinds, inverse = numbers.unique(return_inverse=True)
    first = torch.full((len(kinds),), len(numbers)).scatter_reduce(
        0, inverse, torch.arange(len(numbers)), "amin"
    )
    return numbers[first.sort().values]


def draw_of_length(count: int, length: int, base: int, generator: torch.Generator) -> Tensor:
    """Uniformly random numbers of exactly ``length`` digits; repeats are possible."""
    low = base ** (length - 1) if length > 1 else 0
    return torch.randint(low, base**length, (count,), generator=generator)


def written_length(numbers: Tensor, base: int) -> Tensor:
    """Number of digits of integers ≥ 0 without leading zeros; 0 has one."""
    length, rest = torch.ones_like(numbers), numbers // base
    while bool((rest > 0).any()):
        length, rest = length + (rest > 0), rest // base
    return length


def carries(operation: Operation, a: Tensor, b: Tensor, columns: int, base: int) -> Tensor:
    """Which columns carry into the next (in a subtraction: borrow from it), bool ``[pairs, columns]``.

    A column of a product is the sum of its partial products a_i·b_j, i + j = k, and of what is carried into
    it. A difference is that of the larger and the smaller number.
    """
    powers = torch.tensor([base ** (column + 1) for column in range(columns)])
    a, b = a.unsqueeze(-1), b.unsqueeze(-1)
    if operation == "addition":
        return a % powers + b % powers >= powers
    if operation == "subtraction":
        return torch.maximum(a, b) % powers < torch.minimum(a, b) % powers
    sums = torch.stack([_partial_products(a, b, column, base) for column in range(columns)], dim=-1)
    return sums.cumsum(-1).squeeze(1) >= powers


def _partial_products(a: Tensor, b: Tensor, column: int, base: int) -> Tensor:
    """Σ_{i + j = column} a_i b_j base^column, ``[pairs, 1]``."""
    first = digits_of(a, column + 1, base)
    second = digits_of(b, column + 1, base).flip(-1)
    products: Tensor = first * second
    return products.sum(-1) * int(base**column)


def longest_run(flags: Tensor) -> Tensor:
    """Length of the longest run of True along the last dimension."""
    longest = run = torch.zeros(flags.shape[:-1], dtype=torch.long)
    for flag in flags.unbind(-1):
        run = (run + 1) * flag
        longest = torch.maximum(longest, run)
    return longest
