"""Composition: self, fallbacks, padding, heads and layers obey their laws."""

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
    everything,
    identity,
    padded,
    pairs,
    per_head,
    per_layer,
    with_fallback,
    with_fallback_self,
    with_self,
    without_self,
)

HEADS, N = 3, 5


@st.composite
def structures(draw: st.DrawFn) -> Tensor:
    """Graded structures with and without heads, in which empty rows are common."""
    leading = draw(st.sampled_from([(), (HEADS,), (2, HEADS)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.rand(*leading, N, N, generator=generator)
    kept = torch.rand(values.shape, generator=generator) < draw(st.sampled_from([0.1, 0.4, 1.0]))
    return values * kept


def equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@given(structures())
def test_self_in_and_out(structure: Tensor) -> None:
    diagonal = torch.eye(N, dtype=torch.bool).expand(structure.shape)
    inside, outside = with_self(structure), without_self(structure)
    assert bool((inside[diagonal] == 1).all())
    assert bool((outside[diagonal] == 0).all())
    equal(inside[~diagonal], structure[~diagonal])
    equal(outside[~diagonal], structure[~diagonal])
    equal(with_self(outside), inside)
    equal(without_self(inside), outside)
    equal(with_self(inside), inside)


@given(structures())
def test_fallback_self_fills_empty_rows_and_no_others(structure: Tensor) -> None:
    filled = with_fallback_self(structure)
    check_structure(filled, length=N)
    own = torch.eye(N)
    for row, before, i in zip(
        filled.reshape(-1, N),
        structure.reshape(-1, N),
        list(range(N)) * (structure.numel() // N**2),
        strict=True,
    ):
        equal(row, before if before.sum() > 0 else own[i])
    equal(with_fallback_self(filled), filled)


@given(structures())
def test_fallback_rows_come_from_the_fallback(structure: Tensor) -> None:
    fallback = without_self(everything(N))
    filled = with_fallback(structure, fallback)
    empty = structure.sum(dim=-1) == 0
    equal(filled[empty], fallback.expand(structure.shape)[empty])
    equal(filled[~empty], structure[~empty])
    equal(with_fallback(structure, fallback.expand(structure.shape)), filled)


@given(structures(), st.integers(0, 4))
def test_padding_keeps_the_corner_and_reads_itself(structure: Tensor, added: int) -> None:
    result = padded(structure, N + added)
    assert result.shape == (*structure.shape[:-2], N + added, N + added)
    equal(result[..., :N, :N], structure)
    equal(result[..., N:, N:], torch.eye(added).expand(*structure.shape[:-2], added, added))
    assert not result[..., :N, N:].any()
    assert not result[..., N:, :N].any()


def test_inputs_are_left_alone() -> None:
    structure = pairs(N, [(0, 1)])
    before = structure.clone()
    with_self(structure).zero_()
    with_fallback_self(structure).zero_()
    padded(structure, N).zero_()
    per_head([structure]).zero_()
    per_layer([structure]).zero_()
    equal(structure, before)


@pytest.mark.parametrize("transform", [with_self, without_self, with_fallback_self])
def test_bools_become_float32_and_float64_stays(transform: Callable[[Tensor], Tensor]) -> None:
    assert transform(causal(N).bool()).dtype == torch.float32
    assert transform(causal(N).half()).dtype == torch.float32
    assert transform(causal(N).double()).dtype == torch.float64


def test_per_head_stacks() -> None:
    heads = [identity(N), causal(N), everything(N)]
    stacked = per_head(heads)
    assert stacked.shape == (HEADS, N, N)
    for head, structure in zip(stacked, heads, strict=True):
        equal(head, structure)
    equal(per_head([*stacked]), stacked)


def test_per_layer_shares_what_has_no_heads() -> None:
    layers = per_layer([causal(N), per_head([identity(N)] * HEADS), identity(N).unsqueeze(0)])
    assert layers.shape == (3, HEADS, N, N)
    equal(layers[0], causal(N).expand(HEADS, N, N))
    equal(layers[1], identity(N).expand(HEADS, N, N))
    equal(layers[2], identity(N).expand(HEADS, N, N))


def test_per_layer_without_heads_has_one() -> None:
    layers = per_layer([causal(N), identity(N)])
    assert layers.shape == (2, 1, N, N)
    equal(layers[:, 0], per_head([causal(N), identity(N)]))


def test_per_head_and_per_layer_take_rectangles() -> None:
    assert per_head([torch.ones(2, 7)] * HEADS).shape == (HEADS, 2, 7)
    assert per_layer([torch.ones(HEADS, 2, 7)]).shape == (1, HEADS, 2, 7)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: per_head([]), "expected at least one structure in per_head, got none"),
        (lambda: per_layer([]), "expected at least one structure in per_layer, got none"),
        (
            lambda: per_head([torch.ones(HEADS, N, N)]),
            "expected per_head structures [query, key], got shapes [(3, 5, 5)]",
        ),
        (
            lambda: per_layer([torch.ones(1, HEADS, N, N)]),
            "expected per_layer structures [query, key] or [heads, query, key], got shapes [(1, 3, 5, 5)]",
        ),
        (
            lambda: per_head([causal(N), causal(7)]),
            "expected per_head structures with the same queries and keys, got shapes [(5, 5), (7, 7)]",
        ),
        (
            lambda: per_layer([torch.ones(2, N, N), torch.ones(HEADS, N, N)]),
            "expected per_layer structures with one number of heads, got [2, 3]",
        ),
        (
            lambda: with_self(torch.ones(N, 7)),
            "expected as many keys as queries, got a structure of shape (5, 7)",
        ),
        (
            lambda: without_self(torch.full((N, N), 2.0)),
            "expected structure values in [0, 1], got values from 2 to 2",
        ),
        (
            lambda: per_head([torch.full((N, N), torch.nan)]),
            "expected a finite structure, got nan at index [0, 0]",
        ),
        (lambda: padded(causal(N), 4), "expected n ≥ 5, got 4"),
        (
            lambda: with_fallback(causal(N), causal(7)),
            "expected a fallback of shape (5, 5) or (5, 5), got (7, 7)",
        ),
        (
            lambda: with_fallback(torch.ones(HEADS, N, N), torch.ones(2, N, N)),
            "expected a fallback of shape (3, 5, 5) or (5, 5), got (2, 5, 5)",
        ),
    ],
)
def test_refusals(build: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_refuses_integer_structures() -> None:
    with pytest.raises(
        TypeError, match=re.escape("expected a floating-point or bool structure, got torch.int64")
    ):
        with_self(torch.ones(N, N, dtype=torch.int64))
