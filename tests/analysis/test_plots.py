"""Figures: what is drawn is what was measured, and can be read."""

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from maskprior.analysis.plots import (
    draw_structure,
    pattern_pictures,
    plot_coefficients,
    plot_learning_curves,
    plot_patterns,
    plot_scores,
    variant_styles,
)
from maskprior.analysis.style import lighten, prior_color, render, save_figure
from maskprior.analysis.tables import Panel, make_panels
from maskprior.experiments.record import RunRecord

MakeRecord = Callable[..., RunRecord]
ReadPng = Callable[[bytes], np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]

LAYERS, HEADS, TOKENS = 2, 3, 5
NAMES = ["[CLS]", "x0", "x1", "x2", "x3"]


@pytest.fixture
def panel(boolean_record: MakeRecord) -> Panel:
    runs = {
        Path(f"{prior}{seed}"): boolean_record(prior, seed)
        for prior in ("vanilla", "qk_svd", "mask")
        for seed in (0, 1, 2)
    }
    return make_panels(runs)[0]


def patterns() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (LAYERS, HEADS, TOKENS, TOKENS)
    logits = torch.randn((2, *shape), generator=generator)
    return {
        "attention_start": logits[0].softmax(-1),
        "attention_end": logits[1].softmax(-1),
        "mask_logits_start": logits[0, :, :1],
        "mask_logits_end": logits[1],
    }


def texts(figure: Figure) -> Iterator[Text]:
    """Visible words of a figure once it is laid out."""
    figure.draw_without_rendering()
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_visible() and text.get_text():
            yield text


def words(figure: Figure) -> set[str]:
    return {text.get_text() for text in texts(figure)}


def all_figures(panel: Panel) -> list[Figure]:
    found = [plot_scores([panel], "accuracy"), plot_learning_curves(panel), plot_coefficients(panel)]
    figures = [figure for figure in found if figure is not None]
    return [*figures, plot_patterns(patterns(), NAMES, "title"), draw_structure(torch.eye(TOKENS), NAMES)]


def lines(figure: Figure, color: str, width: float, axes: int = 0) -> list[Line2D]:
    return [
        line
        for line in figure.axes[axes].get_lines()
        if to_hex(line.get_color()) == color and line.get_linewidth() == width
    ]


def test_png_files_have_the_figures_size_and_are_not_blank(
    panel: Panel, tmp_path: Path, read_png: ReadPng
) -> None:
    for index, figure in enumerate(all_figures(panel)):
        path = tmp_path / f"{index}.png"
        save_figure(figure, path)
        pixels = read_png(path.read_bytes())
        width, height = figure.get_size_inches() * 150
        assert pixels.shape == (int(height), int(width), 3)
        assert 0.005 < (pixels != 255).any(axis=-1).mean() < 0.9
        assert (pixels[:2] == 255).all()  # nothing runs over the edge
        assert (pixels[:, -2:] == 255).all()


def test_words_are_at_least_nine_points(panel: Panel) -> None:
    for figure in all_figures(panel):
        assert min(float(text.get_fontsize()) for text in texts(figure)) >= 9


def test_rendering_is_deterministic_in_every_format(panel: Panel) -> None:
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        first = render(plot_scores([panel], "accuracy"), form)
        assert first.startswith(start)
        assert render(plot_scores([panel], "accuracy"), form) == first


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a format among png, svg, pdf, got 'gif'"):
        save_figure(draw_structure(torch.eye(3)), tmp_path / "a.gif")


def test_drawing_leaves_matplotlib_as_it_was(panel: Panel) -> None:
    before = dict(matplotlib.rcParams)
    for figure in all_figures(panel):
        render(figure)
    assert dict(matplotlib.rcParams) == before


def test_pyplot_and_its_global_state_are_not_used() -> None:
    code = (
        "import sys, torch; from maskprior.analysis import pictures, plots, style;"
        "style.render(plots.draw_structure(torch.eye(3))); sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_scores_show_every_seed_and_the_mean(panel: Panel) -> None:
    figure = plot_scores([panel, panel], "loss")
    for axes in figure.axes:
        dots = [np.asarray(cloud.get_offsets()) for cloud in axes.collections]
        assert [len(cloud) for cloud in dots] == [3, 3, 3]
        np.testing.assert_allclose(dots[0][:, 0], [1.0, 1.1, 1.2])
        assert len(set(dots[0][:, 1])) == 3  # side by side, or equal seeds would hide each other
        means = [float(np.asarray(line.get_xdata())[0]) for line in axes.get_lines()]
        np.testing.assert_allclose(means, [1.1, 1.1, 1e-4])
        assert [label.get_text() for label in axes.get_yticklabels()] == ["vanilla", "qk_svd", "mask"]
    assert {"2parity (cpu)", "1.100", "0.0001000", "mean", "loss"} <= words(figure)


def test_scores_are_in_percent_with_room_for_100(panel: Panel) -> None:
    figure = plot_scores([panel], "accuracy")
    (axes,) = figure.axes
    assert np.asarray(axes.collections[0].get_offsets())[0, 0] == 75
    assert axes.get_xlim()[1] > 100
    assert {"75.00", "100.00", "accuracy (%)"} <= words(figure)


def test_scores_of_seven_panels_and_of_failed_runs(make_record: MakeRecord) -> None:
    panels = make_panels(
        {Path(f"{i}"): make_record(task=f"t{i}", metrics={"loss": math.nan}) for i in range(7)}
    )
    figure = plot_scores(panels, "loss")
    assert len(figure.axes) == 7
    assert "–" in words(figure)


def test_scores_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one panel, got none"):
        plot_scores([], "accuracy")


def test_learning_curves_draw_each_seed_and_the_mean(panel: Panel) -> None:
    figure = plot_learning_curves(panel)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["seen", "unseen"] * 2
    assert {"loss", "accuracy (%)", "training step", "vanilla", "qk_svd", "mask"} <= words(figure)
    blue = prior_color("mask")
    (mean,) = lines(figure, blue, width=1.6, axes=1)
    np.testing.assert_allclose(np.asarray(mean.get_ydata()), [2.0, 1.5, 4e-4])
    np.testing.assert_array_equal(np.asarray(mean.get_xdata()), [0, 7, 20])
    seeds = [np.asarray(line.get_ydata())[-1] for line in lines(figure, blue, width=0.6, axes=1)]
    np.testing.assert_allclose(seeds, [2e-4, 4e-4, 6e-4])
    assert figure.axes[1].get_yscale() == "log"
    np.testing.assert_allclose(
        np.asarray(lines(figure, blue, width=1.6, axes=3)[0].get_ydata()), [50, 60, 100]
    )


def test_lines_get_thinner_so_that_none_is_hidden(panel: Panel) -> None:
    widths = [style["linewidth"] for style in variant_styles(panel).values()]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 3


def test_an_empty_corner_is_left_out_and_the_axes_above_gets_the_steps(make_record: MakeRecord) -> None:
    curves = {"step": [0, 1], "loss_train": [2, 1], "loss_test": [2, 1], "accuracy_test": [0, 1]}
    figure = plot_learning_curves(make_panels({Path("a"): make_record(curves=curves)})[0])
    assert figure is not None
    assert [axes.get_visible() for axes in figure.axes] == [True, True, False, True]
    assert [axes.get_xlabel() for axes in figure.axes] == ["training step", "", "", "training step"]


def test_many_variants_of_a_prior_are_told_apart_and_seeds_left_out(make_record: MakeRecord) -> None:
    curves = {"step": [0, 1], "loss_seen": [2, 1]}
    records = {
        Path(f"{index}"): make_record(variant=f"mask-{index}", curves=curves, training={"i": index})
        for index in range(9)
    }
    (panel,) = make_panels(records)
    figure = plot_learning_curves(panel)
    assert figure is not None
    assert len(figure.axes[0].get_lines()) == 9
    assert len({str(style) for style in variant_styles(panel).values()}) == 9


def test_figures_without_curves_are_none(make_record: MakeRecord) -> None:
    bare = make_panels({Path("a"): make_record()})[0]
    assert plot_learning_curves(bare) is None
    assert plot_coefficients(bare) is None


def test_coefficients_have_an_axes_a_monomial_and_the_targets_line(panel: Panel) -> None:
    figure = plot_coefficients(panel)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["x0·x1", "constant", "x0", "x1"]
    targets = [
        float(np.asarray(line.get_ydata())[0])
        for axes in range(4)
        for line in lines(figure, "#000000", 1.2, axes)
    ]
    assert targets == [1.0, 0.0, 0.0, 0.0]
    assert all(line.is_dashed() for line in lines(figure, "#000000", 1.2))
    (mean,) = lines(figure, prior_color("mask"), 1.6)
    np.testing.assert_allclose(np.asarray(mean.get_ydata()), [0, 0.505, 1.01])
    assert "target" in words(figure)


def test_coefficients_without_a_target_have_no_line(make_record: MakeRecord) -> None:
    record = make_record(
        metrics={"coefficients": {"x0": 0.5}}, curves={"step": [0, 1], "coefficient.x0": [0, 0.5]}
    )
    figure = plot_coefficients(make_panels({Path("a"): record})[0])
    assert figure is not None
    assert lines(figure, "#000000", 1.2) == []


def test_patterns_are_means_over_heads_and_the_sigmoid_of_the_logits() -> None:
    tensors = patterns()
    figure = plot_patterns(tensors, NAMES, "2parity, mask, seed 0")
    maps = [axes for axes in figure.axes if axes.get_ylabel() != "weight"]
    assert len(maps) == LAYERS * 4
    expected = [
        tensors["attention_start"].mean(1),
        tensors["attention_end"].mean(1),
        tensors["mask_logits_start"].sigmoid().mean(1),
        tensors["mask_logits_end"].sigmoid().mean(1),
    ]
    for index, axes in enumerate(maps):
        layer, column = divmod(index, 4)
        drawn = np.asarray(axes.collections[0].get_array()).reshape(TOKENS, TOKENS)
        np.testing.assert_allclose(drawn, expected[column][layer].numpy(), rtol=1e-6)
        assert axes.get_ylim() == (TOKENS, 0)  # the first query is on top
    titles = ["attention, start", "attention, end", "σ(M), start", "σ(M), end"]
    assert [axes.get_title() for axes in maps[:4]] == titles
    assert {*NAMES, "layer 1\nquery", "layer 2\nquery", "key", "2parity, mask, seed 0"} <= words(figure)


def test_patterns_without_a_mask_prior_have_two_columns_and_numbered_tokens() -> None:
    tensors = {name: tensor for name, tensor in patterns().items() if name.startswith("attention")}
    figure = plot_patterns(tensors, ["too", "few"])
    assert len(figure.axes) == LAYERS * 2 + 1
    assert {"0", "4"} <= words(figure)
    assert "too" not in words(figure)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"attention_end": None},
            "expected attention_end [layers, heads, query, key], got ['attention_start'",
        ),
        (
            {"mask_logits_end": torch.ones(LAYERS, TOKENS, TOKENS)},
            "expected `mask_logits_end` [layers, heads, ",
        ),
        (
            {"attention_end": torch.ones(7, 1, TOKENS, TOKENS)},
            "expected the same [layers, query, key] of all",
        ),
        ({"attention_start": torch.ones(LAYERS, 1, TOKENS, 7)}, "got [[2, 5, 7], [2, 5, 5]"),
    ],
)
def test_wrong_patterns_are_refused(change: dict[str, torch.Tensor | None], message: str) -> None:
    tensors = {name: tensor for name, tensor in {**patterns(), **change}.items() if tensor is not None}
    with pytest.raises(ValueError, match=re.escape(message)):
        pattern_pictures(tensors)


@pytest.mark.parametrize(
    ("shape", "titles"),
    [
        ((5, 7), [""]),
        ((3, 5, 5), ["head 1", "head 2", "head 3"]),
        ((2, 1, 5, 5), ["", ""]),
        ((2, 3, 5, 5), ["head 1", "head 2", "head 3", "", "", ""]),
    ],
)
def test_a_structure_is_drawn_by_layer_and_head(shape: tuple[int, ...], titles: list[str]) -> None:
    structure = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    figure = draw_structure(structure, NAMES, "task")
    assert [axes.get_title() for axes in figure.axes] == titles
    for axes, expected in zip(figure.axes, structure.reshape(-1, *shape[-2:]), strict=True):
        drawn = np.asarray(axes.collections[0].get_array()).reshape(shape[-2:])
        np.testing.assert_allclose(drawn, expected.numpy())
    assert {"query" if len(shape) < 4 else "layer 1\nquery", "key", "task", *NAMES} <= words(figure)


def test_a_bool_structure_of_many_tokens_names_some() -> None:
    figure = draw_structure(torch.eye(97, dtype=torch.bool), [f"t{index}" for index in range(97)])
    names = {word for word in words(figure) if word.startswith("t")}
    assert 10 < len(names) <= 24
    assert {"t0", "t5"} <= names


@pytest.mark.parametrize("shape", [(5,), (1, 2, 3, 5, 5)])
def test_a_structure_of_other_dimensions_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(f"2 to 4 dimensions, got {list(shape)}")):
        draw_structure(torch.ones(shape))


def test_priors_keep_their_colours() -> None:
    known = [
        prior_color(prior) for prior in ("vanilla", "qk_svd", "qk_optimize", "mask", "mimetic", "impulse")
    ]
    assert len(set(known)) == 6
    assert prior_color("new") == prior_color("new")
    assert prior_color("new") not in known


def test_colours_of_the_four_priors_are_told_apart_by_their_lightness_or_hue_without_red_and_green() -> None:
    # A deuteranope sees roughly (red + green) / 2 and blue.
    seen = []
    for prior in ("vanilla", "qk_svd", "qk_optimize", "mask"):
        red, green, blue = to_rgb(prior_color(prior))
        seen.append(((red + green) / 2, blue))
    distances = [math.dist(a, b) for i, a in enumerate(seen) for b in seen[:i]]
    assert min(distances) > 0.1


def test_lighter_shades() -> None:
    assert lighten("#0072b2", 0.0) == "#0072b2"
    assert lighten("#000000", 0.4) == "#666666"
    assert lighten("#000000", 3.0) == lighten("#000000", 0.8) == "#cccccc"
