"""Figures from records and tensors.

Each function returns a new :class:`matplotlib.figure.Figure`, drawn without pyplot, so that nothing global
changes. A prior has the same colour everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from maskprior.analysis.curves import curve, mean_curve, measured_parts
from maskprior.analysis.formatting import is_share, metric_format, metric_label, monomial_label
from maskprior.analysis.style import LINE_STYLES, prior_color, styled
from maskprior.analysis.tables import Panel, Statistics, first_object, metric_values, telling_monomials

MONOMIALS = 8
LABELLED_TOKENS = 24


def _variant_styles(panel: Panel) -> dict[str, dict[str, Any]]:
    """Colour by prior; line style by place among the variants of that prior."""
    seen: dict[str, int] = {}
    styles = {}
    for variant, runs in panel.variants.items():
        prior = next(iter(runs.values())).prior
        place = seen[prior] = seen.get(prior, -1) + 1
        styles[variant] = {"color": prior_color(prior), "linestyle": LINE_STYLES[place % len(LINE_STYLES)]}
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
    if is_share(metric):
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 98.9), max(high, 100.4))


@styled
def plot_learning_curves(panel: Panel) -> Figure | None:
    """Loss and accuracy during training: a row a quantity, a column a part of the data ("seen", "unseen").

    A thin line a seed, a thick one their mean. None where no record has such curves.
    """
    quantities, parts = measured_parts(panel)
    if not quantities:
        return None
    figure = Figure(figsize=(0.8 + 3.6 * len(parts), 0.8 + 2.4 * len(quantities)), layout="constrained")
    grid = figure.subplots(len(quantities), len(parts), squeeze=False, sharex=True, sharey="row")
    for line, quantity in zip(grid, quantities, strict=True):
        line[0].set_ylabel(metric_label(quantity))
        if quantity.endswith("loss"):
            line[0].set_yscale("log")
        for axes, part in zip(line, parts, strict=True):
            _draw_curves(axes, panel, f"{quantity}_{part}", 100 if is_share(quantity) else 1)
            axes.set_title(part)
            axes.set_visible(axes.has_data())
    _finish_curves(figure, grid[-1], panel)
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
            axes.axhline(target[name], color="black", linestyle=(0, (5, 3)), linewidth=1.2)
    for axes in grid.flat[len(monomials) :]:
        axes.remove()
    for line in grid:
        line[0].set_ylabel("coefficient")
    _finish_curves(
        figure, grid[-1], panel, Line2D([], [], color="black", linestyle=(0, (5, 3)), label="target")
    )
    return figure


def _draw_curves(axes: Axes, panel: Panel, name: str, scale: float) -> None:
    for variant, style in _variant_styles(panel).items():
        records = panel.variants[variant].values()
        thin = {"color": style["color"], "linewidth": 0.6, "alpha": 0.35}
        lines = [(curve(record, name), thin) for record in records]
        lines.append((mean_curve(records, name), {**style, "linewidth": 2.2}))
        for (steps, values), look in lines:
            if steps:
                axes.plot(steps, [scale * value for value in values], **look)


def _finish_curves(figure: Figure, bottom: Sequence[Axes], panel: Panel, *extra: Line2D) -> None:
    for axes in bottom:
        axes.set_xlabel("training step")
    handles = [
        Line2D([], [], linewidth=2.2, label=variant, **style)
        for variant, style in _variant_styles(panel).items()
    ]
    handles += extra
    figure.legend(handles=handles, loc="outside upper center", ncols=min(5, len(handles)), frameon=False)


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
    layers = len(next(iter(pictures.values())))
    side = _side(pictures["attention, start"][0])
    figure = Figure(figsize=(1.3 + side * len(pictures), 0.9 + side * layers), layout="constrained")
    grid = figure.subplots(layers, len(pictures), squeeze=False, sharex=True, sharey=True)
    for column, (name, maps) in zip(grid.T, pictures.items(), strict=True):
        column[0].set_title(name)
        for axes, values in zip(column, maps, strict=True):
            mesh = _draw_map(axes, values, token_names)
        column[-1].set_xlabel("key")
    for layer, axes in enumerate(grid[:, 0]):
        axes.set_ylabel(f"layer {layer + 1}\nquery")
    ticks = [0, 0.05, 0.25, 0.5, 1]
    figure.colorbar(mesh, ax=grid, label="weight", shrink=min(1.0, 2 / layers), ticks=ticks)
    figure.suptitle(title, fontsize=11)
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
            if values.dim() != 4 or values.shape[0] != tensors["attention_start"].shape[0]:
                raise ValueError(f"expected `{name}` [layers, heads, query, key], got {list(values.shape)}")
            pictures[title] = (values.sigmoid() if name.startswith("mask") else values).mean(dim=1)
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
    side = _side(maps[0, 0])
    figure = Figure(figsize=(1.0 + side * heads, 0.9 + side * layers), layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for layer, head in torch.cartesian_prod(torch.arange(layers), torch.arange(heads)).tolist():
        axes = grid[layer, head]
        _draw_map(axes, maps[layer, head], token_names)
        axes.set_title(", ".join([f"layer {layer + 1}"] * (layers > 1) + [f"head {head + 1}"] * (heads > 1)))
    for axes in grid[-1]:
        axes.set_xlabel("key")
    for axes in grid[:, 0]:
        axes.set_ylabel("query")
    figure.suptitle(title, fontsize=11)
    return figure


def _side(values: Tensor) -> float:
    """Inches of one map: enough for a label a token."""
    return max(1.6, min(4.0, 0.5 + 0.15 * max(values.shape)))


def _draw_map(axes: Axes, values: Tensor) -> QuadMesh:
    """Values in [0, 1] by query (down) and key (right); the root scale keeps small ones visible."""
    mesh = axes.pcolormesh(
        values.numpy(), cmap="Blues", norm=PowerNorm(0.5, 0, 1), edgecolors="#dddddd", linewidth=0.4
    )
    axes.set(aspect="equal", ylim=(values.shape[0], 0), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(True)
    return mesh


def _name_tokens(grid: Any, shape: Sequence[int], token_names: Sequence[str] | None) -> None:
    """Queries left of a grid of maps, keys below it, and not in between, where they would take room."""
    for axis, length in (*((axes.yaxis, shape[0]) for axes in grid[:, 0]), *((axes.xaxis, shape[1]) for axes in grid[-1])):
        labels = list(token_names or ())
        if len(labels) != length:
            labels = [str(index) for index in range(length)]
        stride = math.ceil(length / LABELLED_TOKENS)
        axis.set_ticks([index + 0.5 for index in range(0, length, stride)], labels[::stride])
    for axes in grid[-1]:
        axes.set_xlabel("key")
        axes.tick_params(axis="x", rotation=90, length=0)
    for axes in grid[:, 0]:
        axes.tick_params(axis="y", length=0)
