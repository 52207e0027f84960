"""Impulse initialisation: the impulse is where it should be, with the strength that was asked for."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from maskprior.priors.impulse import draw_impulses, impulse_
from maskprior.structures import grid_offset
from maskprior.vision.model import VitConfig, VitModel

GRID = (3, 5)
# As wide as there are patches, and heads as wide as the model: nothing is truncated.
WHOLE = VitConfig(image_size=(6, 10), patch_size=2, classes=5, width=44, depth=2, heads=1)
NARROW = replace(WHOLE, width=60, heads=3)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def position_scores(model: VitModel) -> list[Tensor]:
    """Scores P W_Qᵀ W_K Pᵀ / √d of the patches' positions in each layer, ``[heads, patches, patches]``."""
    found = []
    for attention, positions in model.layer_positions():
        patches = positions[1:].double()
        query = torch.einsum("nw,hdw->hnd", patches, attention.query_weight().double())
        key = torch.einsum("nw,hdw->hnd", patches, attention.key_weight().double())
        found.append(query @ key.transpose(1, 2) / math.sqrt(query.shape[-1]))
    return found


def gap(scores: Tensor, target: Tensor) -> float:
    wanted = target.bool()
    return float((scores[wanted].mean() - scores[~wanted].mean()).detach())


def test_the_impulse_is_at_its_offset_exactly_where_nothing_is_truncated() -> None:
    structure = torch.ones(16, 16)
    structure[1:, 1:] = grid_offset(*GRID, 0, 1, border="self")
    model = VitModel(WHOLE, seeded(0))
    # Learned positions of 15 patches in 44 channels: independent.
    impulse_(model, structure, seeded(1), kernel_size=0, strength=7.0, tolerance=1e-5, sinusoidal=False)
    for (scores,) in position_scores(model):
        torch.testing.assert_close(scores, 7.0 * structure[1:, 1:].double(), atol=2e-3, rtol=0)


@pytest.mark.parametrize("sinusoidal", [True, False])
def test_the_mean_gap_is_the_strength(sinusoidal: bool) -> None:
    model = VitModel(NARROW, seeded(0))
    impulse_(model, torch.ones(16, 16), seeded(1), strength=3.0, sinusoidal=sinusoidal)
    drawing = seeded(1)
    for scores in position_scores(model):
        targets = draw_impulses(GRID, 3, 3, drawing)
        for head, target in zip(scores, targets, strict=True):
            assert gap(head, target) == pytest.approx(3.0, rel=1e-3)


def test_truncated_heads_still_peak_at_the_offset() -> None:
    model = VitModel(NARROW, seeded(0))
    impulse_(model, torch.ones(16, 16), seeded(1), sinusoidal=False)
    drawing = seeded(1)
    for scores in position_scores(model):
        for head, target in zip(scores, draw_impulses(GRID, 3, 3, drawing), strict=True):
            rows = target.any(1)
            right = head.argmax(1)[rows] == target.argmax(1)[rows]
            assert float(right.float().mean()) == 1


def test_impulses_are_drawn_from_the_filter() -> None:
    drawn = draw_impulses(GRID, 500, 3, seeded(2))
    taps = torch.stack([grid_offset(*GRID, dy, dx, border="empty") for dy in (-1, 0, 1) for dx in (-1, 0, 1)])
    which = torch.tensor([next(i for i, tap in enumerate(taps) if torch.equal(tap, head)) for head in drawn])
    counts = which.bincount(minlength=9)
    assert bool(((counts > 30) & (counts < 90)).all())  # 55.6 each, deviation 7


def test_class_tokens_are_left_alone() -> None:
    model = VitModel(NARROW, seeded(0))
    impulse_(model, torch.ones(16, 16), seeded(1))
    attention, positions = next(model.layer_positions())
    query = torch.einsum("w,hdw->hd", positions[0], attention.query_weight())
    assert float(query.detach().abs().max()) < 1e-5  # the class token's position is 0, and so is its query


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 2}, "odd kernel_size, or 0 for the structure, got 2"),
        ({"strength": 0.0}, "finite strength > 0"),
        ({"tolerance": math.inf}, "finite tolerance > 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        impulse_(VitModel(NARROW, seeded(0)), torch.ones(16, 16), seeded(1), **options)  # type: ignore[arg-type]


def test_equal_positions_are_refused() -> None:
    model = VitModel(NARROW, seeded(0))
    with torch.no_grad():
        model.position_embedding().copy_(model.position_embedding()[:1].clone().expand(16, -1))
    with pytest.raises(ValueError, match="tell the patches apart"):
        impulse_(model, torch.ones(16, 16), seeded(1), sinusoidal=False)
