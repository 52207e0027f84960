"""Top-1 accuracy, its interval and the loss."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskprior.vision.metrics import Z, classify, soft_cross_entropy, top1_metrics, wilson_interval


@given(st.integers(1, 10**5).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_solves_the_score_equation(counts: tuple[int, int]) -> None:
    correct, total = counts
    share = correct / total
    low, high = wilson_interval(correct, total)
    assert low + 1e-12 >= 0
    assert low - 1e-12 <= share <= high + 1e-12
    assert high <= 1 + 1e-12
    for end in (low, high):  # |p − end| = z √(end (1 − end) / n)
        assert (share - end) ** 2 == pytest.approx(Z**2 * end * (1 - end) / total, abs=1e-9)


def test_the_interval_has_known_values() -> None:
    low, high = wilson_interval(5, 10)
    assert low == pytest.approx(0.2366, abs=1e-4)
    assert high == pytest.approx(0.7634, abs=1e-4)
    assert wilson_interval(0, 7)[0] == pytest.approx(0)


@pytest.mark.parametrize("counts", [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected 0 ≤ correct ≤ total"):
        wilson_interval(*counts)


def test_classification_counts_over_batches() -> None:
    logits = torch.tensor([[2.0, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 2], [0, 0, 2]])
    labels = torch.tensor([0, 1, 0, 2, 1])
    batches = list(zip(logits.split(2), labels.split(2), strict=True))
    correct, total, loss = classify(lambda x: x, batches)
    assert Fraction(correct, total) == Fraction(3, 5)
    right, wrong = -math.log(math.e**2 / (math.e**2 + 2)), -math.log(1 / (math.e**2 + 2))
    assert loss == pytest.approx((3 * right + 2 * wrong) / 5)
    metrics = top1_metrics(lambda x: x, batches)
    assert metrics["top1"] == 0.6
    assert (metrics["top1_low"], metrics["top1_high"]) == wilson_interval(3, 5)
    assert metrics["images"] == 5


def test_the_loss_with_whole_targets_is_cross_entropy() -> None:
    logits = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(7) % 5
    whole = torch.nn.functional.one_hot(labels, 5).double()
    torch.testing.assert_close(
        soft_cross_entropy(logits, whole), torch.nn.functional.cross_entropy(logits, labels)
    )
    mixed = 0.3 * whole + 0.7 * whole.roll(1, 0)
    expected = -(mixed * torch.log(torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True))).sum() / 7
    torch.testing.assert_close(soft_cross_entropy(logits, mixed), expected)
