"""Structures of positions against double loops over their formula in Python floats."""

import math
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior.structures import (
    causal,
    check_structure,
    cyclic_window,
    everything,
    geometric_half_lives,
    identity,
    linear_distance,
    relative_distance,
    window,
)

N = 7
positive = st.floats(0.05, 200.0)


def computed(value: Callable[[int, int], float], n: int = N) -> Tensor:
    return torch.tensor([[float(value(i, j)) for j in range(n)] for i in range(n)], dtype=torch.float32)


def equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_causal() -> None:
    equal(causal(N), computed(lambda i, j: j <= i))


@given(st.integers(0, N + 2), st.integers(0, N + 2))
def test_window(before: int, after: int) -> None:
    equal(window(N, before, after), computed(lambda i, j: i - before <= j <= i + after))
    equal(window(N, before, after).T, window(N, after, before))


def test_window_limits() -> None:
    equal(window(N, 0, 0), identity(N))
    equal(window(N, N, 0), causal(N))
    equal(window(N, N, N), everything(N))


@given(st.lists(st.integers(-3 * N, 3 * N), min_size=1))
def test_cyclic_window(offsets: list[int]) -> None:
    actual = cyclic_window(N, offsets)
    equal(actual, computed(lambda i, j: any((i + offset - j) % N == 0 for offset in offsets)))
    equal(actual.roll((1, 1), (0, 1)), actual)
    equal(cyclic_window(N, [-offset for offset in offsets]), actual.T)


@given(positive, st.booleans())
def test_relative_distance(half_life: float, one_sided: bool) -> None:
    actual = relative_distance(N, half_life, causal=one_sided)
    expected = computed(lambda i, j: 0 if one_sided and j > i else 0.5 ** (abs(i - j) / half_life))
    torch.testing.assert_close(actual, expected, rtol=2e-7, atol=1e-44)
    check_structure(actual, length=N)
    if not one_sided:
        equal(actual, actual.T)


def test_relative_distance_halves_at_its_half_life() -> None:
    first_row = relative_distance(N, 3)[0]
    assert first_row[0] == 1.0
    assert first_row[3] == 0.5
    assert first_row[6] == 0.25


@given(positive, st.booleans())
def test_linear_distance(reach: float, one_sided: bool) -> None:
    actual = linear_distance(N, reach, causal=one_sided)
    expected = computed(lambda i, j: 0 if one_sided and j > i else max(0.0, 1 - abs(i - j) / reach))
    equal(actual, expected)
    check_structure(actual, length=N)


@pytest.mark.parametrize("graded", [relative_distance, linear_distance])
def test_one_number_a_head(graded: Callable[..., Tensor]) -> None:
    scales = [0.5, 2.0, 11.0]
    heads = graded(N, scales, causal=True)
    assert heads.shape == (3, N, N)
    assert heads.dtype == torch.float32
    for head, scale in zip(heads, scales, strict=True):
        equal(head, graded(N, scale, causal=True))


@given(st.integers(2, 13), positive, st.floats(1.0, 100.0))
def test_geometric_half_lives(heads: int, shortest: float, ratio: float) -> None:
    half_lives = geometric_half_lives(heads, shortest, shortest * ratio)
    assert len(half_lives) == heads
    assert half_lives[0] == shortest
    assert half_lives[-1] == shortest * ratio
    step = ratio ** (1 / (heads - 1))
    for first, second in pairwise(half_lives):
        assert math.isclose(second / first, step, rel_tol=1e-12)


def test_one_half_life_is_the_geometric_mean() -> None:
    assert geometric_half_lives(1, 2.0, 32.0) == [pytest.approx(8.0, rel=1e-15)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: causal(0), "expected n ≥ 1, got 0"),
        (lambda: window(N, -1, 0), "expected before ≥ 0, got -1"),
        (lambda: window(N, 0, -2), "expected after ≥ 0, got -2"),
        (lambda: cyclic_window(N, []), "expected at least one offset, got none"),
        (lambda: cyclic_window(0, [1]), "expected n ≥ 1, got 0"),
        (lambda: relative_distance(-1, 1.0), "expected n ≥ 1, got -1"),
        (lambda: relative_distance(N, 0.0), "expected half_life finite and > 0, got 0.0"),
        (lambda: relative_distance(N, [1.0, -2.0]), "expected half_life finite and > 0, got [1.0, -2.0]"),
        (lambda: relative_distance(N, math.inf), "expected half_life finite and > 0, got inf"),
        (lambda: relative_distance(N, []), "expected half_life as a number or one number a head, got []"),
        (lambda: linear_distance(N, math.nan), "expected reach finite and > 0, got nan"),
        (lambda: geometric_half_lives(0, 1.0, 2.0), "expected heads ≥ 1, got 0"),
        (
            lambda: geometric_half_lives(2, 3.0, 2.0),
            "expected 0 < shortest ≤ longest < ∞, got shortest=3.0 and longest=2.0",
        ),
    ],
)
def test_refusals(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_refuses_what_is_no_number() -> None:
    with pytest.raises(TypeError, match="expected half_life as a number or one number a head, got 'long'"):
        relative_distance(N, "long")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=re.escape("expected offsets as an integer, got 0.5")):
        cyclic_window(N, [0.5])  # type: ignore[list-item]
