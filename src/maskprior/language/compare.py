"""Comparing priors: intervals over seeds, paired bootstrap over documents, steps to a loss."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

# Student's t, 97.5 %, for 1, 2, … degrees of freedom (any table of the distribution).
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
_NORMAL = 1.96


def seed_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean over seeds by Student's t, as (mean, half of its width).

    Raises:
        ValueError: fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"expected at least two seeds for an interval, got {len(values)}")
    freedom = len(values) - 1
    t = _T[freedom - 1] if freedom <= len(_T) else _NORMAL
    return statistics.fmean(values), t * statistics.stdev(values) / len(values) ** 0.5


def paired_bootstrap(
    nll: npt.NDArray[np.float64],
    baseline: npt.NDArray[np.float64],
    tokens: npt.NDArray[np.float64],
    generator: torch.Generator,
    draws: int = 2000,
) -> tuple[float, float]:
    """95 % interval of the difference in loss a token, documents drawn anew with replacement.

        Δ = Σ_d (nll_d − baseline_d) / Σ_d tokens_d,   d over the drawn documents, the same for both

    Args:
        nll: of each document, ``[documents]`` or ``[seeds, documents]`` (then means over seeds are compared).
        baseline: the same of the other model.
        tokens: of each document.
        generator: of the draws.
        draws: how many.

    Returns:
        The 2.5 % and 97.5 % quantiles of Δ in nats; both negative: better than the baseline.

    Raises:
        ValueError: shapes that do not fit.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13.
    """
    if nll.shape != baseline.shape or nll.shape[-1:] != tokens.shape:
        raise ValueError(
            f"expected losses of the same documents, got {nll.shape}, {baseline.shape} and {tokens.shape}"
        )
    difference = (nll - baseline).reshape(-1, len(tokens)).mean(0)
    drawn = torch.randint(len(tokens), (draws, len(tokens)), generator=generator).numpy()
    deltas = difference[drawn].sum(1) / tokens[drawn].sum(1)
    low, high = np.quantile(deltas, (0.025, 0.975))
    return float(low), float(high)


def steps_to_reach(steps: Sequence[float], losses: Sequence[float], target: float) -> float | None:
    """First step at which a curve, straight between its points, is at the target or below; None: never."""
    if losses[0] <= target:
        return steps[0]
    points = zip(steps, losses, strict=True)
    for (before, high), (after, low) in pairwise(points):
        if low <= target:
            return before + (after - before) * (high - target) / (high - low)
    return None


def read_numbers(text: str) -> npt.NDArray[np.float64]:
    """The metrics ``document_nll`` and ``document_tokens`` as an array."""
    return np.array(text.split(), dtype=np.float64)
