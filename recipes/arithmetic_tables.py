"""Published arithmetic tables and curves, made for README.md and docs/arithmetic.md from committed records.

python -m recipes.arithmetic_tables
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from maskprior.analysis.formatting import (
    MISSING,
    TextTable,
    format_number,
    format_percent,
    format_statistics,
    to_markdown,
)
from maskprior.analysis.tables import Row, Statistics, make_panels, prior_rank, summarise
from maskprior.experiments.record import RunRecord, read_records
from maskprior.priors import PRIORS
from recipes.arithmetic import GRID_LEARNING_RATES, GRID_PAIRS, GRID_POSITION_STDS, PAIRS, PARTS
from recipes.blocks import fill_file
from recipes.boolean_tables import origin
from recipes.reproduce import part_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "arithmetic"
FIGURES = ROOT / "docs" / "figures"
METRICS = ("sequence_accuracy", "digit_accuracy", "loss")
SHOWN_STEPS = (100, 200, 300, 500, 750, 1000, 1500)
EXPERIMENTS = {
    "addition": "3 + 3 digits, 4,000 pairs, 400 steps",
    "decoder": "the same, decoder, 800 steps",
    "steps": "the same, encoder, 1,500 steps, each at its best",
    "3x1": "3 × 1 digits, 270 pairs",
    "2x2": "2 × 2 digits, 300 pairs",
    "3x3": "3 × 3 digits, 30,000 pairs",
}
"""Rows of the README's table; in the last two the mask has no positions beside it, see the page."""
NO_POSITIONS = "-no-positions"

Records = Mapping[Path, RunRecord]


def blocks(results: Path = RESULTS) -> dict[str, dict[str, str]]:
    """File name → block name → Markdown."""
    parts = {part: read_records(part_folder(results, part)) for part in PARTS}
    tables = {
        "addition": comparison(parts["addition"]),
        "carries": carries(parts["addition"]),
        "decoder": comparison(parts["decoder"]),
        "grid": grid(parts["grid"]),
        "steps": steps(parts["steps"]),
        "pairs": pairs(parts["pairs"]),
        "few": comparison(parts["few"]),
        "length": lengths(parts["length"]),
        "3x1": comparison(parts["3x1"]),
        "2x2": comparison(parts["2x2"]),
        "3x3": comparison(parts["3x3"]),
    }
    every = [record for records in parts.values() for record in records.values()]
    filled = {f"arithmetic-{name}": to_markdown(table) for name, table in tables.items()}
    return {
        "README.md": {"arithmetic-main": to_markdown(headline(parts))},
        "docs/arithmetic.md": filled | {"arithmetic-origin": origin(every)},
    }


def rows_of(records: Records, metrics: Sequence[str] = METRICS) -> list[Row]:
    """A row a variant, in the order of tables."""
    return [row for panel in make_panels(records) for row in summarise(panel, metrics)]


def headline(parts: Mapping[str, Records]) -> TextTable:
    """One row an experiment, one column a prior: mean sequence accuracy over seeds (worst seed)."""
    lines = []
    for part, label in EXPERIMENTS.items():
        rows = {row.variant: row.metrics["sequence_accuracy"] for row in rows_of(parts[part])}
        rows = {prior: rows.get(prior + NO_POSITIONS, rows.get(prior)) for prior in PRIORS}  # type: ignore[misc]
        lines.append((label, *(_with_worst(rows.get(prior)) for prior in PRIORS)))
    return TextTable(("experiment", *PRIORS), tuple(lines), labels=1)


def _with_worst(values: Statistics | None) -> str:
    if values is None:
        return MISSING
    return f"{format_percent(values.mean)} ({format_percent(values.low)})"


def comparison(records: Records) -> TextTable:
    """Everything of every variant: accuracy of whole answers and of digits, loss, time."""
    lines = [
        (
            row.variant,
            str(len(row.runs)),
            format_statistics(row.metrics["sequence_accuracy"], format_percent),
            format_percent(row.metrics["sequence_accuracy"].low),
            format_percent(statistics.fmean(_last(r, "sequence_accuracy_train") for r in row.runs.values())),
            format_statistics(row.metrics["digit_accuracy"], format_percent),
            format_number(row.metrics["loss"].mean),
            f"{row.seconds.mean:.0f}",
        )
        for row in rows_of(records)
    ]
    header = (
        "variant",
        "seeds",
        "answers (%)",
        "min",
        "on trained pairs (%)",
        "digits (%)",
        "loss",
        "s/run",
    )
    return TextTable(header, tuple(lines), labels=1)


def _last(record: RunRecord, curve: str) -> float:
    return record.curves[curve][-1]


def carries(records: Records) -> TextTable:
    """Whole answers right, by the longest run of columns that carry."""
    chains = sorted({key for r in records.values() for key in r.metrics["carry_chain_accuracy"]}, key=int)
    names = [f"carry_chain_accuracy.{chain}" for chain in chains]
    lines = [
        (row.variant, *(format_percent(row.metrics[name].mean) for name in names))
        for row in rows_of(records, names)
    ]
    return TextTable(("variant", *(f"chain of {chain} (%)" for chain in chains)), tuple(lines), labels=1)


def grid_cells(records: Records) -> dict[tuple[int, str, float, float], float]:
    """Sequence accuracy by pairs, prior, learning rate and position scale."""
    return {
        (
            record.config["task"]["pairs"],
            record.prior,
            record.config["training"]["learning_rate"],
            record.config["model"]["position_std"],
        ): record.metrics["sequence_accuracy"]
        for record in records.values()
    }


def best_cells(records: Records) -> dict[int, dict[str, tuple[float, float]]]:
    """By number of pairs and prior, the learning rate and position scale of the highest accuracy."""
    cells = grid_cells(records)
    settings = [(rate, std) for rate in GRID_LEARNING_RATES for std in GRID_POSITION_STDS]
    return {
        pairs: {prior: max(settings, key=lambda s: cells[(pairs, prior, *s)]) for prior in PRIORS}
        for pairs in GRID_PAIRS
    }


def grid(records: Records) -> TextTable:
    """Every cell of the grid."""
    cells = grid_cells(records)
    settings = [(rate, std) for rate in GRID_LEARNING_RATES for std in GRID_POSITION_STDS]
    lines = [
        (str(pairs), prior, *(format_percent(cells[(pairs, prior, *setting)]) for setting in settings))
        for pairs in GRID_PAIRS
        for prior in PRIORS
    ]
    header = ("pairs", "prior", *(f"lr {rate:g}, position {std:g}" for rate, std in settings))
    return TextTable(header, tuple(lines), labels=2)


def steps(records: Records) -> TextTable:
    """Sequence accuracy on the probe's held-out pairs during training, and on the test set at the end."""
    lines = []
    for row in rows_of(records):
        curves = [record.curves for record in row.runs.values()]
        means = {
            step: statistics.fmean(
                curve["sequence_accuracy_test"][curve["step"].index(step)] for curve in curves
            )
            for step in curves[0]["step"]
        }
        shown = [means[step] for step in shown_steps(records)]
        final = format_statistics(row.metrics["sequence_accuracy"], format_percent)
        lines.append((row.variant, *(format_percent(value) for value in shown), final))
    header = ("prior", *(f"step {step:g}" for step in shown_steps(records)), "test, at the end (%)")
    return TextTable(header, tuple(lines), labels=1)


def shown_steps(records: Records) -> list[float]:
    """Of the probed steps, those nearest to the ones worth a column."""
    probed = next(iter(records.values())).curves["step"]
    return list(dict.fromkeys(min(probed, key=lambda step: abs(step - wanted)) for wanted in SHOWN_STEPS))


def by_pairs(records: Records) -> dict[tuple[str, int], Row]:
    """Rows by prior and number of pairs."""
    found = {}
    for row in rows_of(records):
        record = next(iter(row.runs.values()))
        found[row.prior, record.config["task"]["pairs"]] = row
    return found


def pairs(records: Records) -> TextTable:
    """Sequence accuracy by number of training pairs."""
    rows = by_pairs(records)
    lines = [
        (
            prior,
            *(format_statistics(rows[prior, n].metrics["sequence_accuracy"], format_percent) for n in PAIRS),
        )
        for prior in PRIORS
    ]
    return TextTable(("prior", *(f"{n} pairs" for n in PAIRS)), tuple(lines), labels=1)


def lengths(records: Records) -> TextTable:
    """Sequence accuracy by the number of digits of the longer operand."""
    known = sorted({key for r in records.values() for key in r.metrics["length_accuracy"]}, key=int)
    names = [f"length_accuracy.{length}" for length in known]
    lines = [
        (
            row.variant,
            str(len(row.runs)),
            *(format_statistics(row.metrics[name], format_percent) for name in names),
        )
        for row in rows_of(records, names)
    ]
    return TextTable(("variant", "seeds", *(f"{n} digits (%)" for n in known)), tuple(lines), labels=1)


def figures(results: Path = RESULTS) -> "dict[str, Figure]":
    """Curves of accuracy over steps and over pairs, each with the band from the worst to the best seed."""
    from maskprior.analysis.style import styled

    drawn = styled(_figures)
    made: dict[str, Figure] = drawn(results)
    return made


def _figures(results: Path) -> "dict[str, Figure]":
    from maskprior.analysis.style import prior_color

    over_steps, axes = _axes("3-digit addition, 4,000 pairs", "step")
    for row in rows_of(read_records(part_folder(results, "steps"))):
        runs = [record.curves for record in row.runs.values()]
        seeds = [run["sequence_accuracy_test"] for run in runs]
        _band(axes, runs[0]["step"], seeds, row.prior, prior_color(row.prior))
    over_pairs, axes = _axes("3-digit addition", "training pairs")
    rows = by_pairs(read_records(part_folder(results, "pairs")))
    for prior in sorted(PRIORS, key=prior_rank):
        values = [[r.metrics["sequence_accuracy"] for r in rows[prior, n].runs.values()] for n in PAIRS]
        seeds = [list(of_seed) for of_seed in zip(*values, strict=True)]
        _band(axes, list(PAIRS), seeds, prior, prior_color(prior))
    axes.set(xscale="log")
    axes.set_xticks(PAIRS, [str(n) for n in PAIRS])
    axes.minorticks_off()
    for figure in (over_steps, over_pairs):
        figure.axes[0].legend()
    return {"arithmetic-steps": over_steps, "arithmetic-pairs": over_pairs}


def _axes(title: str, x: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure((6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x, ylabel="held-out answers right (%)", title=title)
    return figure, axes


def _band(axes: "Axes", x: Sequence[float], seeds: Sequence[Sequence[float]], name: str, color: str) -> None:
    """The mean over seeds, and a band from the worst to the best."""
    points = [[100 * value for value in at_x] for at_x in zip(*seeds, strict=True)]
    axes.fill_between(x, [*map(min, points)], [*map(max, points)], color=color, alpha=0.2, linewidth=0)
    axes.plot(x, [*map(statistics.fmean, points)], color=color, label=name)


def main() -> None:
    """Rewrite the blocks and draw the figures."""
    from maskprior.analysis.style import save_figure

    for name, filled in blocks().items():
        fill_file(ROOT / name, filled)
    for name, figure in figures().items():
        save_figure(figure, FIGURES / f"{name}.png")


if __name__ == "__main__":
    main()
