"""Top-1 accuracy with its interval."""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from maskprior.tasks.base import Predict

Z = 1.959963984540054
"""Two-sided 95 %."""


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share k / n:

        (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

    Raises:
        ValueError: not 0 ≤ correct ≤ total, total ≥ 1.

    Source: Wilson 1927.
    """
    if not 0 <= correct <= total or total < 1:
        raise ValueError(f"expected 0 ≤ correct ≤ total and total ≥ 1, got {correct} of {total}")
    share, spread = correct / total, Z**2 / total
    half = Z * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return (share + spread / 2 - half) / (1 + spread), (share + spread / 2 + half) / (1 + spread)


def classify(predict: Predict, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[int, int, float]:
    """Number of right answers, of images, and the mean cross-entropy (nats) of (images, labels)."""
    correct = total = 0
    loss = 0.0
    for images, labels in batches:
        logits = predict(images)
        correct += int((logits.argmax(-1) == labels).sum())
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        total += len(labels)
    return correct, total, loss / total


def top1_metrics(predict: Predict, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """``top1`` with its 95 % interval ``top1_low`` to ``top1_high``, ``images`` and ``loss``."""
    correct, total, loss = classify(predict, batches)
    low, high = wilson_interval(correct, total)
    return {"top1": correct / total, "top1_low": low, "top1_high": high, "images": total, "loss": loss}


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of −Σ_c t_c log softmax(logits)_c."""
    return torch.mean(-(targets * logits.log_softmax(-1)).sum(-1))
