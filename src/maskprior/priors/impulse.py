"""Impulse initialisation: each head's first attention is near that of one tap of a convolution."""

import torch
from torch import Tensor

from maskprior.priors.mimetic import shared_roots
from maskprior.priors.positions import set_sinusoidal_positions
from maskprior.priors.targets import layer_structures
from maskprior.priors.vision_protocol import ProjectedAttention, VisionPriorModel, vision_model
from maskprior.structures import grid_offset


def impulse_(
    model: VisionPriorModel,
    structure: Tensor,
    generator: torch.Generator,
    *,
    kernel_size: int = 3,
    strength: float = 8.0,
    tolerance: float = 0.1,
    sinusoidal: bool = True,
) -> None:
    """Query and key weights whose scores on the positions are an impulse at an offset of a k × k filter.

    P ``[patches, W]`` are the normalised position embeddings, H ``[patches, patches]`` the impulse of a head
    (1 at the patch at its offset, rows whose target is off the grid are 0), d the width of a head:

        W_Qᵀ W_K = P⁺ H P⁺ᵀ truncated to the d largest singular values, shared out as √S

    times the factor for which the mean of P W_Qᵀ W_K Pᵀ / √d over the targets lies ``strength`` above that
    over the other patches. Every head of every layer draws its offset. Class and register tokens have no
    target. The content of the patches is ignored, as is the structure unless ``kernel_size`` is 0.

    Args:
        model: the model to change in place.
        structure: checked against the model; with ``kernel_size=0`` its patches' part is H.
        generator: draws the offsets.
        kernel_size: k, odd; 0 takes H from the structure.
        strength: mean gap of the scores (nats) between targets and other patches.
        tolerance: singular values of P below this share of the largest count as 0.
        sinusoidal: first set the position embedding to sines and cosines.

    Raises:
        TypeError, ValueError: the structure is not one or does not fit, the model is not one of patches, an
            even kernel size, a strength or tolerance that is not positive, or positions that cannot be told
            apart.

    Source: Zheng, Li, Saratchandran, Lucey 2025, arXiv 2505.19985, section 4; the factor is ours.
    """
    host = vision_model(model, "impulse")
    structures = layer_structures(host, structure)
    _check(kernel_size, strength, tolerance)
    if sinusoidal:
        set_sinusoidal_positions(host)
    prefix = host.prefix_tokens
    for layer, (attention, positions) in zip(structures, host.layer_positions(), strict=True):
        heads = host.config.heads
        if kernel_size:
            targets = draw_impulses(host.grid, heads, kernel_size, generator)
        else:
            targets = layer[..., prefix:, prefix:].expand(heads, -1, -1)
        _set_query_key(attention, positions[prefix:].cpu().double(), targets.double(), strength, tolerance)


def _check(kernel_size: int, strength: float, tolerance: float) -> None:
    if kernel_size < 0 or (kernel_size and kernel_size % 2 == 0):
        raise ValueError(f"expected an odd kernel_size, or 0 for the structure, got {kernel_size}")
    for name, value in (("strength", strength), ("tolerance", tolerance)):
        if not 0 < value < float("inf"):
            raise ValueError(f"expected a finite {name} > 0, got {value}")


def draw_impulses(grid: tuple[int, int], heads: int, kernel_size: int, generator: torch.Generator) -> Tensor:
    """One impulse a head at a random offset of the k × k filter, ``[heads, patches, patches]``."""
    reach = kernel_size // 2
    drawn = torch.randint(kernel_size**2, (heads,), generator=generator, device=generator.device).tolist()
    offsets = [(place // kernel_size - reach, place % kernel_size - reach) for place in drawn]
    return torch.stack([grid_offset(*grid, dy, dx, border="empty") for dy, dx in offsets])


@torch.no_grad()
def _set_query_key(
    attention: ProjectedAttention, positions: Tensor, targets: Tensor, strength: float, tolerance: float
) -> None:
    inverse = torch.linalg.pinv(positions, rtol=tolerance)
    queries, keys = attention.query_weight(), attention.key_weight()
    rank = queries.shape[1]
    for query, key, target in zip(queries, keys, targets, strict=True):
        left, right = shared_roots(inverse @ target @ inverse.T, rank)
        gap = _gap((positions @ left) @ (positions @ right).T / rank**0.5, target)
        if not gap > 0:
            raise ValueError("expected position embeddings that tell the patches apart, got equal ones")
        factor = (strength / gap) ** 0.5
        query.copy_(factor * left.T)
        key.copy_(factor * right.T)


def _gap(scores: Tensor, target: Tensor) -> float:
    """Mean score of the targets, less that of the others."""
    wanted = (scores * target).sum() / target.sum()
    others = (scores * (1 - target)).sum() / (1 - target).sum()
    return float(wanted - others)
