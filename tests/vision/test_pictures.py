"""Pictures of attention in images, of σ(M) and of accuracy."""

import math

import numpy as np
import pytest
import torch

from maskprior.analysis.style import render
from maskprior.experiments.record import RunRecord
from maskprior.vision.pictures import draw_attention_maps, draw_bands, draw_prior_grids, draw_sizes


def record(prior: str, seed: int, top1: float) -> RunRecord:
    return RunRecord(
        task="cifar10",
        prior=prior,
        preset="cpu",
        seed=seed,
        config={"variant": prior},
        versions={},
        commit="unknown",
        dirty=False,
        hardware={},
        seconds=1.0,
        metrics={"top1": top1},
        curves={"step": [0, 5], "loss_train": [math.nan, 1.0], "top1_validation": [0.1, top1]},
    )


def test_a_head_is_shown_as_seen_from_the_patch() -> None:
    maps = torch.zeros(1, 2, 7, 7)
    maps[0, 1, 1 + 4, 1 + 2] = 1.0  # from patch (1, 1) to patch (0, 2) of a 2 × 3 grid behind a class token
    figure = draw_attention_maps(torch.zeros(1, 3, 4, 6, dtype=torch.uint8), maps, (1, 1), (2, 3), "heads")
    image, first, second = figure.axes
    assert second.images[0].get_array().tolist() == [[0, 0, 1], [0, 0, 0]]  # type: ignore[union-attr]
    assert not first.images[0].get_array().any()  # type: ignore[union-attr]
    (frame,) = image.patches
    assert frame.get_xy() == (1.5, 1.5)  # type: ignore[attr-defined]
    assert render(figure).startswith(b"\x89PNG")


def test_a_patch_off_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="a patch on it, got"):
        draw_attention_maps(torch.zeros(1, 1, 4, 6), torch.zeros(1, 2, 7, 7), (2, 0), (2, 3))


def test_priors_are_grids_at_start_and_end() -> None:
    start, end = torch.full((2, 3, 7, 7), -50.0), torch.full((2, 3, 7, 7), 50.0)
    figure = draw_prior_grids(start, end, (0, 0), (2, 3))
    assert len(figure.axes) == 12
    shown = [axes.images[0].get_array().mean() for axes in figure.axes]  # type: ignore[union-attr]
    assert shown[:6] == pytest.approx([0.0] * 3 + [1.0] * 3)
    assert figure.axes[3].get_ylabel() == "1, end"
    with pytest.raises(ValueError, match="one shape"):
        draw_prior_grids(start, end[:1], (0, 0), (2, 3))


def test_bands_are_means_with_their_intervals() -> None:
    runs = {"mask": [record("mask", 0, 0.4), record("mask", 1, 0.6)], "vanilla": [record("vanilla", 0, 0.3)]}
    (axes,) = draw_bands(runs, "top1_validation", "held-out top-1 (%)").axes
    assert [list(line.get_ydata()) for line in axes.lines] == [  # type: ignore[arg-type]
        pytest.approx([10, 50]),
        pytest.approx([10, 30]),
    ]
    half = 100 * 12.706205 * 0.1
    heights = [float(y) for path in axes.collections[0].get_paths() for y in np.asarray(path.vertices)[:, 1]]
    low, high = min(heights), max(heights)
    assert (high - low) / 2 == pytest.approx(half, rel=1e-3)


def test_sizes_are_on_the_axis() -> None:
    sizes = {100: {"mask": [record("mask", 0, 0.2)]}, 1000: {"mask": [record("mask", 0, 0.4)]}}
    (axes,) = draw_sizes(sizes, "test top-1 (%)").axes
    (line,) = axes.lines
    assert list(line.get_xdata()) == [100, 1000]  # type: ignore[arg-type]
    assert list(line.get_ydata()) == pytest.approx([20, 40])  # type: ignore[arg-type]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["100", "1,000"]
