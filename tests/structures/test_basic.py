"""Structures of named tokens against double loops over their definition."""

import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior.structures import everything, groups, identity, pairs, reads, with_self

N = 7
indices = st.integers(0, N - 1)


def drawn(interacts: Callable[[int, int], bool]) -> Tensor:
    return torch.tensor([[float(interacts(i, j)) for j in range(N)] for i in range(N)])


def equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_everything_and_identity() -> None:
    equal(everything(N), drawn(lambda i, j: True))
    equal(identity(N), drawn(lambda i, j: i == j))


@given(st.lists(st.tuples(indices, indices)), st.booleans())
def test_pairs(chosen: list[tuple[int, int]], symmetric: bool) -> None:
    actual = pairs(N, chosen, symmetric=symmetric)
    equal(actual, drawn(lambda i, j: (i, j) in chosen or (symmetric and (j, i) in chosen)))
    equal(pairs(N, chosen + chosen, symmetric=symmetric), actual)


@given(st.lists(st.sets(indices)), st.booleans())
def test_groups(chosen: list[set[int]], include_self: bool) -> None:
    def together(i: int, j: int) -> bool:
        return any(i in group and j in group for group in chosen) and (include_self or i != j)

    equal(groups(N, chosen, include_self=include_self), drawn(together))


def test_pairs_are_groups_of_two() -> None:
    equal(pairs(N, [(0, 3), (1, 4)]), groups(N, [(3, 0), (1, 4)]))


@given(st.sets(indices), st.sets(indices))
def test_reads(queries: set[int], keys: set[int]) -> None:
    equal(reads(N, queries, keys), drawn(lambda i, j: i in queries and j in keys))
    equal(reads(N, queries, keys).T, reads(N, keys, queries))


@given(st.lists(st.tuples(indices, indices)), st.lists(st.tuples(indices, indices)))
def test_maximum_is_the_union(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    equal(torch.maximum(pairs(N, first), pairs(N, second)), pairs(N, first + second))


def test_two_interacting_bits_as_drawn_on_paper() -> None:
    expected = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    equal(with_self(pairs(3, [(0, 1)])), expected)


@pytest.mark.parametrize("constructor", [everything, identity])
@pytest.mark.parametrize("n", [0, -2])
def test_refuses_no_tokens(constructor: Callable[[int], Tensor], n: int) -> None:
    with pytest.raises(ValueError, match=f"expected n ≥ 1, got {n}"):
        constructor(n)


def test_refuses_a_fractional_length() -> None:
    with pytest.raises(TypeError, match=re.escape("expected n as an integer, got 2.0")):
        everything(2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "name", "index"),
    [
        (lambda: pairs(N, [(0, 1), (0, N)]), "pairs", N),
        (lambda: pairs(N, [(-1, 0)]), "pairs", -1),
        (lambda: groups(N, [[0, 1], [N + 4]]), "groups", N + 4),
        (lambda: reads(N, [N], [0]), "queries", N),
        (lambda: reads(N, [0], [-3]), "keys", -3),
    ],
)
def test_refuses_indices_out_of_range(build: Callable[[], Tensor], name: str, index: int) -> None:
    with pytest.raises(ValueError, match=re.escape(f"expected the indices in {name} in 0..6, got {index}")):
        build()


def test_refuses_pairs_that_are_none() -> None:
    with pytest.raises(
        ValueError, match=re.escape("expected pairs (query, key), got 3 indices in (0, 1, 2)")
    ):
        pairs(N, [(0, 1, 2)])
    with pytest.raises(TypeError, match="expected pairs as a sequence of token indices, got 0"):
        pairs(N, [0, 1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=re.escape("expected the indices in groups as an integer, got 1.5")):
        groups(N, [[0, 1.5]])  # type: ignore[list-item]
