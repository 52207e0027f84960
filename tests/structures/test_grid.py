"""Structures of grid cells against loops over pairs of cells."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior.structures import (
    check_structure,
    grid_decay,
    grid_neighbourhood,
    grid_offset,
    grid_offsets,
    identity,
    with_fallback_self,
)
from maskprior.structures.grid import Border, Metric

HEIGHT, WIDTH = 3, 5
CELLS = [(y, x) for y in range(HEIGHT) for x in range(WIDTH)]
METRICS: dict[Metric, Callable[[int, int], float]] = {
    "chebyshev": lambda dy, dx: max(abs(dy), abs(dx)),
    "manhattan": lambda dy, dx: abs(dy) + abs(dx),
    "euclidean": math.hypot,
}


def over_cells(value: Callable[[int, int, int, int], float]) -> Tensor:
    return torch.tensor([[float(value(y, x, v, u)) for v, u in CELLS] for y, x in CELLS])


def equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("radius", [0, 1, 1.5, 2, 2.5, 9])
def test_neighbourhood(metric: Metric, radius: float) -> None:
    distance = METRICS[metric]
    actual = grid_neighbourhood(HEIGHT, WIDTH, radius, metric)
    equal(actual, over_cells(lambda y, x, v, u: distance(v - y, u - x) <= radius))
    check_structure(actual, length=HEIGHT * WIDTH)
    equal(actual, actual.T)


def test_euclidean_radius_that_is_a_distance_is_included() -> None:
    assert grid_neighbourhood(4, 5, 5.0, "euclidean")[0, 3 * 5 + 4] == 1.0
    assert grid_neighbourhood(4, 5, 4.999, "euclidean")[0, 3 * 5 + 4] == 0.0


@pytest.mark.parametrize("sigma", [0.7, 1.0, 4.0])
def test_decay(sigma: float) -> None:
    actual = grid_decay(HEIGHT, WIDTH, sigma)
    expected = over_cells(lambda y, x, v, u: math.exp(-0.5 * (math.hypot(v - y, u - x) / sigma) ** 2))
    torch.testing.assert_close(actual, expected, rtol=2e-7, atol=1e-30)
    check_structure(actual, length=HEIGHT * WIDTH)


def test_decay_with_a_sigma_a_head() -> None:
    heads = grid_decay(HEIGHT, WIDTH, (1.0, 4.0))
    assert heads.shape == (2, 15, 15)
    equal(heads[0], grid_decay(HEIGHT, WIDTH, 1.0))
    equal(heads[1], grid_decay(HEIGHT, WIDTH, 4.0))


def target(y: int, x: int, dy: int, dx: int, border: Border) -> tuple[int, int] | None:
    y2, x2 = y + dy, x + dx
    if (y2, x2) in CELLS:
        return y2, x2
    if border == "clamp":
        return min(max(y2, 0), HEIGHT - 1), min(max(x2, 0), WIDTH - 1)
    return (y, x) if border == "self" else None


@given(st.integers(-6, 6), st.integers(-6, 6), st.sampled_from(["clamp", "self", "empty"]))
def test_offset(dy: int, dx: int, border: Border) -> None:
    actual = grid_offset(HEIGHT, WIDTH, dy, dx, border=border)
    equal(actual, over_cells(lambda y, x, v, u: target(y, x, dy, dx, border) == (v, u)))
    if border != "empty":
        check_structure(actual)


@given(st.integers(-3, 3), st.integers(-3, 3))
def test_border_self_is_the_fallback_of_border_empty(dy: int, dx: int) -> None:
    empty = grid_offset(HEIGHT, WIDTH, dy, dx, border="empty")
    equal(grid_offset(HEIGHT, WIDTH, dy, dx, border="self"), with_fallback_self(empty))
    equal(empty.T, grid_offset(HEIGHT, WIDTH, -dy, -dx, border="empty"))


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_offsets_go_through_the_kernel_row_by_row(kernel_size: int) -> None:
    heads = grid_offsets(HEIGHT, WIDTH, kernel_size)
    assert heads.shape == (kernel_size**2, 15, 15)
    half = (kernel_size - 1) // 2
    for head, structure in enumerate(heads):
        row, column = divmod(head, kernel_size)
        equal(structure, grid_offset(HEIGHT, WIDTH, row - half, column - half))
    equal(heads[kernel_size**2 // 2], identity(15))


def test_offsets_together_are_the_neighbourhood() -> None:
    impulses = grid_offsets(HEIGHT, WIDTH, 3, border="empty")
    equal(impulses.amax(dim=0), grid_neighbourhood(HEIGHT, WIDTH, 1))
    image = torch.randn(1, 1, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
    kernel = torch.randn(1, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    mixed = torch.einsum("h,hqk,k->q", kernel.flatten(), impulses, image.flatten())
    convolved = torch.nn.functional.conv2d(image, kernel, padding=1).flatten()
    torch.testing.assert_close(mixed, convolved)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: grid_neighbourhood(0, 5, 1), "expected height ≥ 1, got 0"),
        (lambda: grid_decay(3, -1, 1.0), "expected width ≥ 1, got -1"),
        (lambda: grid_neighbourhood(3, 5, -1), "expected a finite radius ≥ 0, got -1"),
        (lambda: grid_neighbourhood(3, 5, math.nan), "expected a finite radius ≥ 0, got nan"),
        (
            lambda: grid_neighbourhood(3, 5, 1, "cosine"),  # type: ignore[arg-type]
            "expected metric to be one of 'chebyshev', 'manhattan', 'euclidean', got 'cosine'",
        ),
        (
            lambda: grid_offset(3, 5, 0, 1, border="wrap"),  # type: ignore[arg-type]
            "expected border to be one of 'clamp', 'self', 'empty', got 'wrap'",
        ),
        (lambda: grid_decay(3, 5, 0.0), "expected sigma finite and > 0, got 0.0"),
        (lambda: grid_offsets(3, 5, 4), "expected an odd kernel_size, got 4"),
        (lambda: grid_offsets(3, 5, 0), "expected kernel_size ≥ 1, got 0"),
    ],
)
def test_refusals(build: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_refuses_fractions_of_cells() -> None:
    with pytest.raises(TypeError, match=re.escape("expected dy as an integer, got 0.5")):
        grid_offset(3, 5, 0.5, 0)  # type: ignore[arg-type]
