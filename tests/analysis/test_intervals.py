"""Intervals of means, against the definition of Student's t."""

import math
import statistics

import pytest
import torch

from maskprior.analysis.intervals import mean_interval, paired_interval


@pytest.mark.parametrize("count", [2, 3, 5, 10, 21])
def test_the_interval_covers_95_percent_of_students_distribution(count: int) -> None:
    # Of the values 0, …, n − 1, t = half · √n / s; integrate Student's density up to it.
    values = list(map(float, range(count)))
    mean, half = mean_interval(values)
    assert mean == statistics.fmean(values)
    t = half * math.sqrt(count) / statistics.stdev(values)
    degrees = count - 1
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    x = torch.linspace(0, t, 200_001, dtype=torch.float64)
    density = scale * (1 + x.square() / degrees) ** (-(degrees + 1) / 2)
    assert 2 * float(torch.trapezoid(density, x)) == pytest.approx(0.95, abs=1e-6)


def test_one_value_has_no_interval() -> None:
    mean, half = mean_interval([3.0])
    assert mean == 3.0
    assert math.isnan(half)


def test_pairs_are_subtracted_first() -> None:
    values, others = [3.0, 5.0, 8.0], [2.0, 4.0, 7.0]
    assert paired_interval(values, others) == (1.0, 0.0)
    with pytest.raises(ValueError, match="zip"):
        paired_interval(values, others[:2])


def test_too_many_values_are_refused() -> None:
    with pytest.raises(ValueError, match="from 1 to 21 values, got 22"):
        mean_interval([1.0] * 22)
    with pytest.raises(ValueError, match="got 0"):
        mean_interval([])
