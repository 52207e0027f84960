"""Pictures: where heads look in real images, σ(M) as grids, curves and sizes with bands."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from maskprior.analysis.intervals import mean_interval
from maskprior.analysis.style import prior_color, styled
from maskprior.experiments.record import RunRecord


@styled
def draw_attention_maps(
    images: Tensor, maps: Tensor, query: tuple[int, int], grid: tuple[int, int], title: str = ""
) -> Figure:
    """Where each head of one layer looks from one patch: a row an image, the image first, a column a head.

    Args:
        images: uint8 ``[images, channels, height, width]``.
        maps: attention ``[images, heads, N, N]``, prefix tokens first.
        query: row and column of the patch that looks, framed in the image.
        grid: rows and columns of patches.
        title: what the figure shows.

    Raises:
        ValueError: the maps have fewer tokens than the grid, or the patch is not on it.
    """
    rows, columns = grid
    prefix = maps.shape[-1] - rows * columns
    if prefix < 0 or not (0 <= query[0] < rows and 0 <= query[1] < columns):
        raise ValueError(f"expected maps of a {rows} × {columns} grid and a patch on it, got {query}")
    seen = maps[:, :, prefix + query[0] * columns + query[1], prefix:].unflatten(-1, grid)
    heads = maps.shape[1]
    figure = Figure(figsize=(1.1 * (heads + 1), 1.15 * len(images) + 0.5), layout="constrained")
    axes = figure.subplots(len(images), heads + 1, squeeze=False)
    for line, image, weights in zip(axes, images, seen, strict=True):
        _draw_image(line[0], image, query, grid)
        for place, head in zip(line[1:], weights, strict=True):
            place.imshow(head.numpy(), cmap="viridis", vmin=0, vmax=float(head.max()))
            _bare(place)
    for index, place in enumerate(axes[0][1:]):
        place.set_title(f"head {index}")
    figure.suptitle(title)
    return figure


def _draw_image(axes: Axes, image: Tensor, query: tuple[int, int], grid: tuple[int, int]) -> None:
    pixels = image.permute(1, 2, 0).numpy()
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255)
    height, width = image.shape[1] / grid[0], image.shape[2] / grid[1]
    corner = (query[1] * width - 0.5, query[0] * height - 0.5)
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="#d55e00", linewidth=1.5))
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


@styled
def draw_prior_grids(
    start: Tensor, end: Tensor, query: tuple[int, int], grid: tuple[int, int], title: str = ""
) -> Figure:
    """σ(M) of each head, as seen from one patch, at the start and at the end: two rows a layer.

    Args:
        start: M ``[layers, heads, N, N]`` at the start, prefix tokens first.
        end: M at the end.
        query: row and column of the patch.
        grid: rows and columns of patches.
        title: what the figure shows.

    Raises:
        ValueError: M at the end has another shape.
    """
    if start.shape != end.shape:
        raise ValueError(f"expected M of one shape, got {list(start.shape)} and {list(end.shape)}")
    rows, columns = grid
    prefix = start.shape[-1] - rows * columns
    layers, heads = start.shape[:2]
    figure = Figure(figsize=(1.0 * heads + 1.2, 2.0 * layers + 0.5), layout="constrained")
    axes = figure.subplots(2 * layers, heads, squeeze=False)
    for layer in range(layers):
        for moment, (name, logits) in enumerate((("start", start), ("end", end))):
            line = axes[2 * layer + moment]
            line[0].set_ylabel(f"{layer + 1}, {name}")
            for place, head in zip(line, logits[layer], strict=True):
                values = head[prefix + query[0] * columns + query[1], prefix:].sigmoid().unflatten(0, grid)
                place.imshow(values.numpy(), cmap="viridis", vmin=0, vmax=1)
                _bare(place)
    for head, place in enumerate(axes[0]):
        place.set_title(f"head {head}")
    figure.suptitle(title)
    return figure


@styled
def draw_bands(runs: Mapping[str, Sequence[RunRecord]], curve: str, label: str) -> Figure:
    """A curve of each prior over the steps: mean over seeds in percent, with its 95 % interval as a band."""
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, records in runs.items():
        steps = records[0].curves["step"]
        points = [mean_interval(values) for values in zip(*(r.curves[curve] for r in records), strict=True)]
        _band(axes, steps, points, records[0].prior, name)
    axes.set_xlabel("update")
    axes.set_ylabel(label)
    axes.legend()
    return figure


@styled
def draw_sizes(sizes: Mapping[int, Mapping[str, Sequence[RunRecord]]], label: str) -> Figure:
    """Final top-1 of each prior over the number of training images: mean and 95 % interval over seeds."""
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.subplots()
    for name in next(iter(sizes.values())):
        found = [(size, runs[name]) for size, runs in sorted(sizes.items()) if name in runs]
        points = [mean_interval([record.metrics["top1"] for record in records]) for _, records in found]
        _band(axes, [size for size, _ in found], points, found[0][1][0].prior, name)
    axes.set_xscale("log")
    ticks = sorted(sizes)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("training images")
    axes.set_ylabel(label)
    axes.legend()
    return figure


def _band(
    axes: Axes, places: Sequence[float], points: Sequence[tuple[float, float]], prior: str, name: str
) -> None:
    color, style = prior_color(prior), "-" if name == prior else "--"  # a variant has its prior's colour
    means = [100 * mean for mean, _ in points]
    halves = [0.0 if math.isnan(half) else 100 * half for _, half in points]
    axes.plot(places, means, style, color=color, marker="o", markersize=3, label=name)
    axes.fill_between(
        places,
        [mean - half for mean, half in zip(means, halves, strict=True)],
        [mean + half for mean, half in zip(means, halves, strict=True)],
        color=color,
        alpha=0.15,
        linewidth=0,
    )
