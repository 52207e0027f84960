"""Measures of drift: laws, extremes, row shifts, and the half-life."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior import functional, structures
from maskprior.analysis.persistence import (
    Target,
    jensen_shannon,
    retained,
    suppressed_share,
    time_until,
    total_variation,
)

HEADS, QUERIES, KEYS = 3, 5, 7


def pattern(seed: int, spread: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(HEADS, QUERIES, KEYS, generator=generator, dtype=torch.float64)
    return (spread * scores).softmax(dim=-1)


def structure(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.rand(QUERIES, KEYS, generator=generator, dtype=torch.float64) < 0.4).double()
    drawn[:, 0] = 1
    return drawn


def test_distances_against_sums() -> None:
    p, q = pattern(1), pattern(2)
    for place in [(0, 0), (2, 4), (1, 3)]:
        a, b = p[place].tolist(), q[place].tolist()
        middle = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
        variation = sum(max(0.0, x - y) for x, y in zip(a, b, strict=True))
        divergence = sum(
            (x * math.log2(x / m) + y * math.log2(y / m)) / 2 for x, y, m in zip(a, b, middle, strict=True)
        )
        assert float(total_variation(p, q)[place]) == pytest.approx(variation, abs=1e-14)
        assert float(jensen_shannon(p, q)[place]) == pytest.approx(divergence, abs=1e-14)


@given(seed=st.integers(0, 999), spread=st.floats(0, 60))
def test_distances_are_symmetric_bounded_and_zero_only_for_equals(seed: int, spread: float) -> None:
    p, q = pattern(seed, spread), pattern(seed + 1, spread)
    for distance in (total_variation, jensen_shannon):
        assert torch.equal(distance(p, p), torch.zeros(HEADS, QUERIES, dtype=p.dtype))
        assert torch.allclose(distance(p, q), distance(q, p), atol=1e-15)
        assert bool((distance(p, q) <= 1 + 1e-12).all())
    # Lin 1991, theorem 3; and Pinsker's inequality for each half.
    assert bool((jensen_shannon(p, q) <= total_variation(p, q) + 1e-12).all())
    assert bool((total_variation(p, q) ** 2 <= 2 * math.log(2) * jensen_shannon(p, q) + 1e-12).all())


def test_distributions_without_overlap_are_at_distance_one() -> None:
    rows = torch.eye(2, dtype=torch.float64)
    assert total_variation(rows[0], rows[1]).item() == 1
    assert jensen_shannon(rows[0], rows[1]).item() == pytest.approx(1)


def test_suppressed_share_counts_what_is_not_wanted() -> None:
    p, wanted = pattern(3), structure()
    expected = sum(p[..., key] * (1 - wanted[:, key]) for key in range(KEYS))
    assert torch.allclose(suppressed_share(p, wanted), torch.as_tensor(expected), atol=1e-15)
    assert float(suppressed_share(functional.structure_pattern(wanted), wanted).max()) == 0


def test_the_reference_has_the_whole_advantage_and_uniform_attention_none() -> None:
    target = Target.of_structure(structure())
    odds = (1 + math.exp(10)) / (1 + math.exp(-4))  # σ(4) / σ(−10)
    expected = 1 + (odds - 1) * structure()
    assert torch.allclose(target.reference, expected / expected.sum(-1, keepdim=True), atol=1e-12)
    perfect = target.measure(target.reference)
    assert perfect["variation"] == perfect["divergence"] == 0
    assert perfect["advantage"] == target.limit
    uniform = target.measure(torch.full((HEADS, QUERIES, KEYS), 1 / KEYS, dtype=torch.float64))
    assert uniform["advantage"] == pytest.approx(0, abs=1e-15)
    # 1 − k/N for rows with k wanted keys, up to what suppression leaks.
    assert target.limit == pytest.approx(float((1 - structure().sum(-1) / KEYS).mean()), abs=1e-3)


def test_a_pattern_off_the_structure_is_worse_than_uniform() -> None:
    wanted = torch.eye(KEYS, dtype=torch.float64)
    found = Target.of_structure(wanted).measure(wanted.roll(1, dims=1))
    assert found["suppressed"] == 1
    assert found["variation"] == pytest.approx(1, abs=1e-3)
    assert found["advantage"] < 0


@pytest.mark.parametrize(("allowed_logit", "suppressed_logit"), [(4.0, -10.0), (2.0, -3.0)])
def test_logits_tell_the_structure_that_they_were_made_of(
    allowed_logit: float, suppressed_logit: float
) -> None:
    logits = functional.structure_to_logits(
        structure(), allowed_logit=allowed_logit, suppressed_logit=suppressed_logit
    )
    read, given = (
        Target.of_logits(logits),
        Target.of_structure(structure(), allowed_logit=allowed_logit, suppressed_logit=suppressed_logit),
    )
    assert torch.allclose(read.structure, given.structure, atol=1e-15)
    assert torch.equal(read.reference, given.reference)


def test_equal_logits_suppress_nothing_and_leave_nothing_to_keep() -> None:
    target = Target.of_logits(torch.full((QUERIES, KEYS), -2.5))
    assert target.limit == 0
    assert target.measure(pattern(0))["suppressed"] == 0


@given(seed=st.integers(0, 99), shift=st.floats(-30, 30))
def test_row_shifts_of_the_bias_change_nothing(seed: int, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    bias = functional.logits_to_bias(torch.randn(QUERIES, KEYS, generator=generator, dtype=torch.float64))
    shifts = shift * torch.randn(QUERIES, 1, generator=generator, dtype=torch.float64)
    target = Target.of_structure(structure())
    assert target.measure((bias + shifts).softmax(-1)) == pytest.approx(
        target.measure(bias.softmax(-1)), abs=1e-9
    )


def test_forbidden_keys_count_for_nothing() -> None:
    """Causal: uniform attention is uniform over the past, and the reference wants nothing of the future."""
    side = 5
    allowed = structures.causal(side).bool()
    target = Target.of_structure(structures.window(side, 1, 1).double(), allowed=allowed)
    assert float((target.reference * ~allowed).sum()) == 0
    assert torch.allclose(target.reference.sum(-1), torch.ones(side, dtype=torch.float64))
    past = allowed.double() / allowed.sum(-1, keepdim=True)
    assert target.measure(past)["advantage"] == pytest.approx(0, abs=1e-12)


def test_a_query_that_may_attend_to_nothing_counts_as_zeros() -> None:
    allowed = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    allowed[2] = False
    target = Target.of_structure(structure(), allowed=allowed)
    assert torch.equal(target.reference[2], torch.zeros(KEYS, dtype=torch.float64))
    assert math.isfinite(target.measure(pattern(0))["advantage"])


def test_a_pattern_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pattern of \[5, 7\] queries and keys.* got \[3, 7, 5\]"):
        Target.of_structure(structure()).measure(pattern(0).mT)


def test_heads_may_have_structures_of_their_own() -> None:
    wanted = torch.stack([structure(seed) for seed in range(HEADS)])
    found = Target.of_structure(wanted).measure(pattern(0))
    each = [Target.of_structure(wanted[head]).measure(pattern(0)[head]) for head in range(HEADS)]
    for name, value in found.items():
        assert value == pytest.approx(sum(one[name] for one in each) / HEADS)


def test_retained_is_relative_to_the_start() -> None:
    assert retained([0.8, 0.4, 0.0, -0.2], limit=0.9) == pytest.approx([1, 0.5, 0, -0.25])
    assert retained([0.01, 0.3], limit=0.9) is None  # nothing there to lose
    assert retained([-0.2, 0.3], limit=0.9) is None
    assert retained([], limit=0.9) is None
    assert retained([0.0, 0.0], limit=0.0) is None  # a structure of ones: uniform is perfect


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([1, 0.75, 0.25, 0.9], 15.0),
        ([1, 0.5, 0.6, 0.1], 10.0),
        ([1, 0.9, 0.8, 0.51], None),
        ([0.5, 0.4, 0.3, 0.2], 0.0),
        ([1, -1, 0, 0], 2.5),
    ],
)
def test_half_life_is_interpolated(shares: list[float], expected: float | None) -> None:
    steps = [0, 10, 20, 30]
    assert time_until(steps, shares, 0.5) == expected
