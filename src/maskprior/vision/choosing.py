"""Which images are trained on and which are held out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from maskprior.vision.source import DataError


def choose_rows(
    labels: Tensor, classes: int, per_class: Sequence[int], generator: torch.Generator
) -> list[Tensor]:
    """Disjoint balanced groups of rows, drawn at random: ``per_class[g]`` rows of each class in group g.

    Returns:
        Row numbers of each group, sorted.

    Raises:
        DataError: a class has too few images.
    """
    groups: list[list[Tensor]] = [[] for _ in per_class]
    for label in range(classes):
        rows = (labels == label).nonzero()[:, 0]
        if len(rows) < sum(per_class):
            raise DataError(
                f"expected {' + '.join(map(str, per_class))} images of class {label}, got {len(rows)}"
            )
        rows = rows[torch.randperm(len(rows), generator=generator)]
        for group, part in zip(groups, rows[: sum(per_class)].split(list(per_class)), strict=True):
            group.append(part)
    return [torch.cat(group).sort().values for group in groups]
