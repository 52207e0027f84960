"""The read-out token reads and is read as told, and leaves the rest alone."""

import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior.structures import (
    causal,
    check_structure,
    identity,
    pairs,
    reads,
    with_fallback,
    with_readout,
)
from maskprior.structures.readout import Position, Readers

HEADS, N = 3, 5
words: st.SearchStrategy[Readers] = st.sampled_from(("all", "none"))
rules = words | st.sets(st.integers(0, N - 1))


def chosen(rule: Readers | set[int]) -> set[int]:
    if isinstance(rule, set):
        return rule
    return set(range(N)) if rule == "all" else set()


def equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@given(rules, rules, st.sampled_from(["first", "last"]), st.booleans())
def test_against_a_double_loop(
    reading: Readers | set[int], read_by: Readers | set[int], position: Position, heads: bool
) -> None:
    structure = torch.rand(HEADS, N, N, generator=torch.Generator().manual_seed(0))
    structure = structure if heads else structure[0]
    own, shift = (0, 1) if position == "first" else (N, 0)
    actual = with_readout(structure, reads=reading, read_by=read_by, self_read=True, position=position)
    assert actual.shape == (*structure.shape[:-2], N + 1, N + 1)
    assert bool((actual[..., own, own] == 1).all())
    for i in range(N):
        assert bool((actual[..., own, i + shift] == float(i in chosen(reading))).all())
        assert bool((actual[..., i + shift, own] == float(i in chosen(read_by))).all())
        for j in range(N):
            equal(actual[..., i + shift, j + shift], structure[..., i, j])


def test_defaults_read_all_and_are_read_by_none() -> None:
    actual = with_readout(identity(N))
    equal(actual[0], torch.tensor([0.0] + [1.0] * N))
    assert not actual[1:, 0].any()
    check_structure(actual, length=N + 1)


def test_two_bits_that_only_each_other_read() -> None:
    """Cross interaction of two bits, a read-out that reads itself, idle bits that read the read-out."""
    bits = with_readout(pairs(4, [(0, 1)]), reads="none", self_read=True)
    actual = with_fallback(bits, reads(5, range(5), [0]))
    expected = [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    equal(actual, torch.tensor(expected, dtype=torch.float32))


def test_a_second_readout_can_read_the_first() -> None:
    twice = with_readout(with_readout(causal(N)), reads=[0], read_by="all", position="last")
    assert twice.shape == (N + 2, N + 2)
    assert twice[-1].tolist() == [1.0] + [0.0] * (N + 1)
    assert twice[:, -1].tolist() == [1.0] * (N + 1) + [0.0]


@pytest.mark.parametrize("reading", ["none", []])
def test_refuses_a_readout_that_reads_nothing(reading: Readers | list[int]) -> None:
    with pytest.raises(ValueError, match="expected a read-out that reads something"):
        with_readout(identity(N), reads=reading)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda: with_readout(identity(N), reads="some"),  # type: ignore[arg-type]
            ValueError,
            "expected reads to be one of 'all', 'none', got 'some'",
        ),
        (
            lambda: with_readout(identity(N), position="middle"),  # type: ignore[arg-type]
            ValueError,
            "expected position to be one of 'first', 'last', got 'middle'",
        ),
        (
            lambda: with_readout(identity(N), read_by=[N]),
            ValueError,
            "expected the indices in read_by in 0..4, got 5",
        ),
        (
            lambda: with_readout(identity(N), reads=0),  # type: ignore[arg-type]
            TypeError,
            "expected reads as a sequence of token indices, got 0",
        ),
        (
            lambda: with_readout(torch.ones(2, 3)),
            ValueError,
            "expected as many keys as queries, got a structure of shape (2, 3)",
        ),
    ],
)
def test_refusals(build: Callable[[], Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        build()
