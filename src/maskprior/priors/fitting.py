"""What the two query-key priors share: the inputs they are fitted on, and when they cannot be fitted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from maskprior.priors.protocol import PriorModel
from maskprior.priors.targets import centred_scores

# Positions nearer than this, relative to the size of a token's features, are equal up to rounding.
_SAME = 1e-5


@contextmanager
def evaluating(model: PriorModel) -> Iterator[None]:
    """Without gradients and in evaluation mode (dropout would draw from the global generator)."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def balanced_inputs(model: PriorModel, samples: int, generator: torch.Generator) -> Tensor:
    """At least ``samples`` random sequences in which every position sees the same tokens equally often.

    All cyclic shifts of some random sequences, so that what differs between the mean features of two
    positions comes from the positions, never from the draw of the tokens.

    Raises:
        ValueError: ``samples`` is not positive.
    """
    if samples < 1:
        raise ValueError(f"expected samples ≥ 1, got {samples}")
    drawn = model.sample_inputs(samples, generator)
    length = drawn.shape[1]
    drawn = drawn[: -(-samples // length)]
    return torch.cat([drawn.roll(shift, dims=1) for shift in range(length)])


def check_positions(model: PriorModel, inputs: Tensor, targets: Sequence[Tensor]) -> None:
    """Raise unless some layer can tell apart the positions that the structure treats differently.

    Query and key weights see positions through the tokens' features alone. Where two positions have the same
    mean features, no such weights can give them different rows or columns of the pattern.

    Raises:
        ValueError: in every layer two such positions have equal mean features.
    """
    nearest = []
    for (_, x), target in zip(model.layer_inputs(inputs), targets, strict=True):
        differ = _treated_differently(centred_scores(target))
        if bool(differ.any()):
            nearest.append(float(_separation(x)[differ].amin()))
    if nearest and max(nearest) <= _SAME:
        raise ValueError(
            "expected position features that tell apart the positions which the structure treats "
            f"differently, got two that differ by {max(nearest):.1g} of a token's size or less in every "
            "layer; give the model position embeddings (position_std > 0) or use mask_, which needs none"
        )


def _separation(x: Tensor) -> Tensor:
    """Distances between the mean features of positions, ``[N, N]``, relative to a token's size."""
    features = x.cpu().double()
    size = features.square().sum(dim=-1).mean().sqrt()
    mean = features.mean(dim=0)
    return torch.cdist(mean, mean, compute_mode="donot_use_mm_for_euclid_dist") / size


def _treated_differently(scores: Tensor) -> Tensor:
    """Bool ``[N, N]``: pairs of positions whose row or column of the scores differs in some head."""
    rows = torch.cdist(scores, scores, p=float("inf"))
    columns = torch.cdist(scores.mT, scores.mT, p=float("inf"))
    return torch.maximum(rows, columns).amax(dim=0) > _SAME
