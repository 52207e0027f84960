"""Intervals of means over seeds."""

import math
import statistics
from collections.abc import Sequence

# 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom.
_T = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval, t s / √n with the standard deviation s of the sample.

    The half width of one value is NaN.

    Raises:
        ValueError: no value, or more than 21.
    """
    if not 1 <= len(values) <= len(_T) + 1:
        raise ValueError(f"expected from 1 to {len(_T) + 1} values, got {len(values)}")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, _T[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))


def paired_interval(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """:func:`mean_interval` of the differences, seed by seed.

    Raises:
        ValueError: not as many of one as of the other.
    """
    return mean_interval([value - other for value, other in zip(values, others, strict=True)])
