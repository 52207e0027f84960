"""Intervals and steps, against values worked out by hand."""

import numpy as np
import pytest
import torch

from maskprior.language.compare import paired_bootstrap, read_numbers, seed_interval, steps_to_reach


def test_interval_over_three_seeds() -> None:
    """Mean 2, standard deviation 1: 4.303 / √3."""
    mean, half = seed_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(2.4843, abs=1e-4)


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(ValueError, match="expected at least two seeds for an interval, got 1"):
        seed_interval([1.0])


def test_bootstrap_of_a_constant_gain_has_no_width() -> None:
    tokens = np.array([3.0, 7.0, 11.0, 2.0])
    baseline = np.array([9.0, 20.0, 31.0, 8.0])
    low, high = paired_bootstrap(baseline - 0.5 * tokens, baseline, tokens, torch.Generator().manual_seed(0))
    assert low == pytest.approx(-0.5)
    assert high == pytest.approx(-0.5)


def test_bootstrap_covers_the_normal_interval() -> None:
    """Equal lengths, independent gains: mean ± 1.96 σ / √n."""
    gains = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64).numpy()
    tokens = np.full(400, 5.0)
    low, high = paired_bootstrap(gains, np.zeros(400), tokens, torch.Generator().manual_seed(2))
    spread = 1.96 * gains.std() / 20 / 5
    assert low == pytest.approx(gains.mean() / 5 - spread, abs=0.003)
    assert high == pytest.approx(gains.mean() / 5 + spread, abs=0.003)


def test_bootstrap_averages_seeds_first() -> None:
    tokens = np.array([2.0, 3.0, 5.0])
    nll = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    both = paired_bootstrap(nll, np.zeros((2, 3)), tokens, torch.Generator().manual_seed(3))
    mean = paired_bootstrap(nll.mean(0), np.zeros(3), tokens, torch.Generator().manual_seed(3))
    assert both == mean


def test_losses_of_other_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="expected losses of the same documents"):
        paired_bootstrap(np.zeros(3), np.zeros(4), np.ones(3), torch.Generator())


@pytest.mark.parametrize(
    ("target", "steps"), [(6.0, 0.0), (5.0, 0.0), (4.5, 5.0), (3.0, 15.0), (2.0, 20.0), (1.9, None)]
)
def test_steps_to_a_loss_between_points(target: float, steps: float | None) -> None:
    assert steps_to_reach([0, 10, 20, 30], [5.0, 4.0, 2.0, 2.5], target) == steps


def test_numbers_from_a_metric() -> None:
    assert read_numbers("1.5 20 3e-3").tolist() == [1.5, 20.0, 0.003]
