"""Figures from records and tensors.

Each function returns a new :class:`matplotlib.figure.Figure`, drawn without pyplot, so that nothing global
changes. A prior has the same colour everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from maskprior.analysis.curves import curve, mean_curve, measured_parts
from maskprior.analysis.formatting import (
    is_lower_better,
    is_share,
    metric_format,
    metric_label,
    monomial_label,
)
from maskprior.analysis.style import LINE_STYLES, lighten, prior_color, styled
from maskprior.analysis.tables import Panel, Statistics, first_object, metric_values, telling_monomials

MONOMIALS = 8
MANY_VARIANTS = 6
LABELLED_TOKENS = 24
NEARLY_ALL = 90  # percent: from here on, an axis of accuracies goes up to 100
TARGET_LINE: dict[str, Any] = {"color": "black", "linestyle": (0, (5, 3)), "linewidth": 1.2}


def variant_styles(panel: Panel) -> dict[str, dict[str, Any]]:
    """Colour by prior; line style, then a lighter shade, by place among the variants of that prior.

    Lines get thinner from variant to variant, so that one that is drawn over another does not hide it.
    """
    seen: dict[str, int] = {}
    styles = {}
    for index, (variant, runs) in enumerate(panel.variants.items(), start=1):
        prior = next(iter(runs.values())).prior
        place = seen[prior] = seen.get(prior, -1) + 1
        shade, line = divmod(place, len(LINE_STYLES))
        styles[variant] = {
            "color": lighten(prior_color(prior), 0.4 * shade),
            "linestyle": LINE_STYLES[line],
            "linewidth": min(1.6 + 0.6 * (len(panel.variants) - index), 4.0),
        }
    return styles


@styled
def plot_scores(panels: Sequence[Panel], metric: str) -> Figure:
    """Final metric of every run: a dot a seed, a bar at the mean, the mean in figures; one axes a panel.

    Raises:
        ValueError: no panel.
    """
    if not panels:
        raise ValueError("expected at least one panel, got none")
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    tallest = max(len(panel.variants) for panel in panels)
    figure = Figure(figsize=(0.8 + 3.6 * columns, lines * (0.9 + 0.36 * tallest)), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_scores(axes, panel, metric)
        axes.set_xlabel(metric_label(metric))
    return figure


def _draw_scores(axes: Axes, panel: Panel, metric: str) -> None:
    scale = 100 if is_share(metric) else 1
    for y, runs in enumerate(panel.variants.values()):
        values = [metric_values(record).get(metric, math.nan) for record in runs.values()]
        color = prior_color(next(iter(runs.values())).prior)
        spread = torch.linspace(-0.26, 0.26, len(values)) if len(values) > 1 else torch.zeros(1)
        axes.scatter(
            [scale * v for v in values], (y + spread).tolist(), s=22, color=color, alpha=0.75, linewidth=0
        )
        mean = Statistics.of(values).mean
        axes.plot([scale * mean] * 2, [y - 0.38, y + 0.38], color=color, linewidth=2.5)
        text = "–" if math.isnan(mean) else metric_format(metric)(mean)
        axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    right = axes.get_yaxis_transform()
    axes.text(1.02, -0.62, "mean", transform=right, va="bottom", fontsize=9, color="#666666")
    axes.set_yticks(range(len(panel.variants)), list(panel.variants))
    axes.set_ylim(len(panel.variants) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    axes.set_title(panel.title, loc="left")
    low, high = axes.get_xlim()
    if is_share(metric) and high > NEARLY_ALL:
        axes.set_xlim(min(low, 98.9), max(high, 100.4))


@styled
def plot_learning_curves(panel: Panel) -> Figure | None:
    """Loss and accuracy during training: a row a quantity, a column a part of the data ("seen", "unseen").

    A thick line is the mean, a thin one a seed (left out where there are more than six variants). None where
    no record has such curves.
    """
    quantities, parts = measured_parts(panel)
    if not quantities:
        return None
    figure = Figure(figsize=(0.8 + 3.6 * len(parts), 0.8 + 2.4 * len(quantities)), layout="constrained")
    grid = figure.subplots(len(quantities), len(parts), squeeze=False, sharex=True, sharey="row")
    for line, quantity in zip(grid, quantities, strict=True):
        line[0].set_ylabel(metric_label(quantity))
        if is_lower_better(quantity):
            line[0].set_yscale("log")
        for axes, part in zip(line, parts, strict=True):
            _draw_curves(axes, panel, f"{quantity}_{part}", 100 if is_share(quantity) else 1)
            axes.set_title(part)
            axes.set_visible(axes.has_data())
    _finish_curves(figure, grid, panel)
    return figure


@styled
def plot_coefficients(panel: Panel) -> Figure | None:
    """Fourier coefficients during training, an axes a monomial; the target's is a dashed line.

    Those that tell the target from its shortcut, at most eight. None where no record has such curves.
    """
    curves = {name for record in panel.records() for name in record.curves}
    monomials = [m for m in telling_monomials(panel, limit=99) if f"coefficient.{m}" in curves][:MONOMIALS]
    if not monomials:
        return None
    target = first_object((record.metrics for record in panel.records()), "target_coefficients")
    columns = min(4, len(monomials))
    lines = math.ceil(len(monomials) / columns)
    figure = Figure(figsize=(0.8 + 2.6 * columns, 0.8 + 2.2 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes, name in zip(grid.flat, monomials, strict=False):
        _draw_curves(axes, panel, f"coefficient.{name}", 1)
        axes.set_title(monomial_label(name))
        if name in target:
            axes.axhline(target[name], **TARGET_LINE)
    for axes in grid.flat[len(monomials) :]:
        axes.set_visible(False)
    for line in grid:
        line[0].set_ylabel("coefficient")
    _finish_curves(figure, grid, panel, Line2D([], [], label="target", **TARGET_LINE))
    return figure


def _draw_curves(axes: Axes, panel: Panel, name: str, scale: float) -> None:
    for variant, style in variant_styles(panel).items():
        records = panel.variants[variant].values()
        thin = {"color": style["color"], "linewidth": 0.6, "alpha": 0.35}
        lines = [(curve(record, name), thin) for record in records if len(panel.variants) <= MANY_VARIANTS]
        lines.append((mean_curve(records, name), style))
        for (steps, values), look in lines:
            if steps:
                axes.plot(steps, [scale * value for value in values], **look)


def _finish_curves(figure: Figure, grid: Any, panel: Panel, *extra: Line2D) -> None:
    """Steps below the lowest axes of each column, and a legend above all."""
    for column in grid.T:
        for axes in [axes for axes in column if axes.get_visible()][-1:]:
            axes.set_xlabel("training step")
            axes.tick_params(labelbottom=True)
    handles = [Line2D([], [], label=variant, **style) for variant, style in variant_styles(panel).items()]
    handles += extra
    inches = 0.65 + 0.08 * max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(figure.get_figwidth() / inches)))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)


@styled
def plot_patterns(
    tensors: Mapping[str, Tensor], token_names: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Attention and, with a mask prior, σ(M) before and after training: a row a layer, heads averaged.

    Args:
        tensors: ``attention_start`` and ``attention_end`` ``[layers, heads, query, key]``, and perhaps
            ``mask_logits_start`` and ``mask_logits_end`` ``[layers, 1 or heads, query, key]``.
        token_names: one a token; None numbers them.
        title: what the figure shows.

    Raises:
        ValueError: attention is missing, or a tensor has other dimensions.
    """
    pictures = pattern_pictures(tensors)
    maps = torch.stack(list(pictures.values()), dim=1)
    layers = [f"layer {index + 1}" for index in range(len(maps))]
    figure, mesh = _draw_maps(maps, layers, list(pictures), token_names, title)
    ticks = [0, 0.05, 0.25, 0.5, 1]
    figure.colorbar(mesh, ax=figure.axes, label="weight", shrink=min(1.0, 2 / len(maps)), ticks=ticks)
    return figure


def pattern_pictures(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Maps ``[layers, query, key]`` in [0, 1] by title: mean over heads of attention and of σ(M).

    Raises:
        ValueError: attention is missing, or a tensor has other dimensions.
    """
    names = {
        "attention_start": "attention, start",
        "attention_end": "attention, end",
        "mask_logits_start": "σ(M), start",
        "mask_logits_end": "σ(M), end",
    }
    lacking = [name for name in ("attention_start", "attention_end") if name not in tensors]
    if lacking:
        raise ValueError(
            f"expected {' and '.join(lacking)} [layers, heads, query, key], got {sorted(tensors)}"
        )
    pictures = {}
    for name, title in names.items():
        if name in tensors:
            values = tensors[name].detach().float().cpu()
            if values.dim() != 4:
                raise ValueError(f"expected `{name}` [layers, heads, query, key], got {list(values.shape)}")
            pictures[title] = (values.sigmoid() if name.startswith("mask") else values).mean(dim=1)
    shapes = [list(picture.shape) for picture in pictures.values()]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"expected the same [layers, query, key] of all tensors, got {shapes}")
    return pictures


@styled
def draw_structure(structure: Tensor, token_names: Sequence[str] | None = None, title: str = "") -> Figure:
    """Who should interact: a cell is dark where the query (row) attends to the key (column).

    Args:
        structure: ``[query, key]``, ``[heads, query, key]`` or ``[layers, heads, query, key]`` in [0, 1]; a
            row of pictures a layer, a column a head.
        token_names: one a token; None numbers them.
        title: what the figure shows.

    Raises:
        ValueError: the structure has other dimensions.
    """
    if not 2 <= structure.dim() <= 4:
        raise ValueError(f"expected a structure of 2 to 4 dimensions, got {list(structure.shape)}")
    maps = structure.detach().float().cpu()
    maps = maps.reshape((1,) * (4 - maps.dim()) + maps.shape)
    layers, heads = maps.shape[:2]
    rows = [f"layer {index + 1}" if layers > 1 else "" for index in range(layers)]
    columns = [f"head {index + 1}" if heads > 1 else "" for index in range(heads)]
    return _draw_maps(maps, rows, columns, token_names, title)[0]


def _draw_maps(
    maps: Tensor,
    row_names: Sequence[str],
    column_names: Sequence[str],
    token_names: Sequence[str] | None,
    title: str,
) -> tuple[Figure, QuadMesh]:
    """A grid of maps ``[rows, columns, query, key]``, tokens named at its left and lower edge alone."""
    rows, columns, *shape = maps.shape
    side = max(1.6, min(4.0, 0.5 + 0.15 * max(shape)))  # inches: room for a label a token
    figure = Figure(figsize=(1.3 + side * columns, 0.9 + side * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        mesh = _draw_map(axes, maps.flatten(0, 1)[index])
    for axes, name in zip(grid[0], column_names, strict=True):
        axes.set_title(name)
    for axes, name in zip(grid[:, 0], row_names, strict=True):
        axes.set_ylabel(f"{name}\nquery".lstrip())
        _name_tokens(axes.yaxis, shape[0], token_names, rotation=0)
    for axes in grid[-1]:
        axes.set_xlabel("key")
        _name_tokens(axes.xaxis, shape[1], token_names, rotation=90)
    figure.suptitle(title, fontsize=11)
    return figure, mesh


def _draw_map(axes: Axes, values: Tensor) -> QuadMesh:
    """Values in [0, 1] by query (down) and key (right); the root scale keeps small ones visible."""
    width = 0.4 if max(values.shape) <= 2 * LABELLED_TOKENS else 0
    mesh = axes.pcolormesh(
        values.numpy(), cmap="Blues", norm=PowerNorm(0.5, 0, 1), edgecolors="#dddddd", linewidth=width
    )
    axes.set(aspect="equal", ylim=(values.shape[0], 0), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(True)
    return mesh


def _name_tokens(axis: Axis, length: int, token_names: Sequence[str] | None, rotation: int) -> None:
    labels = [str(name) for name in token_names or ()]
    if len(labels) != length:
        labels = [str(index) for index in range(length)]
    stride = math.ceil(length / LABELLED_TOKENS)
    axis.set_ticks([index + 0.5 for index in range(0, length, stride)], labels[::stride])
    axis.set_tick_params(length=0, labelrotation=rotation)
