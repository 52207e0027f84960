"""Published Boolean tables, written into README.md and docs/boolean.md from the committed records.

python -m recipes.boolean_tables
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maskprior.analysis.formatting import (
    TextTable,
    format_coefficient,
    format_number,
    format_percent,
    format_statistics,
    to_markdown,
)
from maskprior.analysis.tables import Panel, Row, make_panels, prior_rank, summarise
from maskprior.experiments.record import RunRecord, read_records
from recipes.blocks import fill_file
from recipes.boolean import GRID_LEARNING_RATES, GRID_POSITION_STDS, PARTS, TASKS
from recipes.reproduce import part_folder

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "boolean"
TELLING = {"2parity": ("x0*x1", "x0"), "majority3": ("x0*x1*x2", "x0*x2"), "cyclic3": ("x0*x1*x2", "x0*x1")}
"""Of each task, a monomial of the target and one of its minimum-degree interpolator (the shortcut)."""

Records = Mapping[Path, RunRecord]


def blocks(results: Path = RESULTS) -> dict[str, dict[str, str]]:
    """File name → block name → Markdown."""
    main, grid, ablation, budget = (read_records(part_folder(results, part)) for part in PARTS)
    rows = [row for panel in make_panels(main) for row in _rows(panel)]
    rows.sort(key=lambda row: (TASKS.index(row.task), prior_rank(row.prior)))
    return {
        "README.md": {"boolean-main": to_markdown(headline_table(rows))},
        "docs/boolean.md": {
            "boolean-main": to_markdown(main_table(rows)),
            "boolean-grid": to_markdown(grid_table(main, grid)),
            "boolean-cells": to_markdown(cells_table(main, grid)),
            "boolean-ablation": to_markdown(ablation_table(main, ablation)),
            "boolean-budget": to_markdown(main_table([r for p in make_panels(budget) for r in _rows(p)])),
            "boolean-origin": origin([*main.values(), *grid.values(), *ablation.values(), *budget.values()]),
        },
    }


def _rows(panel: Panel) -> list[Row]:
    coefficients = [f"coefficients.{name}" for name in TELLING[panel.task]]
    return summarise(
        panel, ["accuracy", "accuracy_unseen", "loss", "loss_seen", "mdi_distance", *coefficients]
    )


def headline_table(rows: Sequence[Row]) -> TextTable:
    """One row a task, one column a prior: full-cube accuracy, mean (least)."""
    priors = list(dict.fromkeys(row.prior for row in rows))
    cells = {(row.task, row.prior): row.metrics["accuracy"] for row in rows}
    lines = [
        (
            task,
            *(
                f"{format_percent(cells[task, prior].mean)} ({format_percent(cells[task, prior].low)})"
                for prior in priors
            ),
            format_number(next(r for r in rows if (r.task, r.prior) == (task, "mask")).metrics["loss"].mean),
        )
        for task in TASKS
    ]
    return TextTable(("task", *priors, "loss of mask"), tuple(lines), labels=1)


def main_table(rows: Sequence[Row]) -> TextTable:
    """Everything that the records say of each prior."""
    header = (
        *("task", "prior", "seeds", "accuracy (%)", "min", "max", "unseen only (%)", "loss", "loss on seen"),
        *("true coefficient", "shortcut's", "distance from MDI", "s/run"),
    )
    return TextTable(header, tuple(_main_line(row) for row in rows), labels=2)


def _main_line(row: Row) -> tuple[str, ...]:
    metrics = row.metrics
    true, shortcut = (metrics[f"coefficients.{name}"] for name in TELLING[row.task])
    return (
        row.task,
        row.variant,
        str(len(row.runs)),
        format_statistics(metrics["accuracy"], format_percent),
        format_percent(metrics["accuracy"].low),
        format_percent(metrics["accuracy"].high),
        format_statistics(metrics["accuracy_unseen"], format_percent),
        format_statistics(metrics["loss"], format_number),
        format_number(metrics["loss_seen"].mean),
        f"{TELLING[row.task][0]}: {format_coefficient(true.mean)}".replace("*", "·"),
        f"{TELLING[row.task][1]}: {format_coefficient(shortcut.mean)}".replace("*", "·"),
        format_statistics(metrics["mdi_distance"], format_number),
        f"{row.seconds.mean:.0f}",
    )


@dataclass(frozen=True)
class Cell:
    """One setting of the grid for one prior, over seeds 0, 1, 2."""

    task: str
    prior: str
    learning_rate: float
    position_std: float
    row: Row


def grid_cells(main: Records, grid: Records, seeds: int = 3) -> list[Cell]:
    """All cells, those of the main table among them with their first seeds."""
    shared = {path: record for path, record in main.items() if record.seed < seeds}
    panels = [*make_panels(shared), *make_panels(grid)]
    return [_cell(row) for panel in panels for row in _rows(panel)]


def _cell(row: Row) -> Cell:
    config = next(iter(row.runs.values())).config
    return Cell(
        row.task,
        row.prior,
        config["training"]["learning_rate"],
        config["model"]["position_std"],
        row,
    )


def grid_table(main: Records, grid: Records) -> TextTable:
    """Each prior at its own best cell, chosen by mean accuracy on the whole cube, then by loss."""
    cells = grid_cells(main, grid)
    lines = []
    for task in TASKS:
        for prior in sorted({cell.prior for cell in cells}, key=prior_rank):
            best = min(
                (cell for cell in cells if (cell.task, cell.prior) == (task, prior)),
                key=lambda cell: (-cell.row.metrics["accuracy"].mean, cell.row.metrics["loss"].mean),
            )
            metrics = best.row.metrics
            lines.append(
                (
                    task,
                    prior,
                    f"{best.learning_rate:g}",
                    f"{best.position_std:g}",
                    format_statistics(metrics["accuracy"], format_percent),
                    format_percent(metrics["accuracy"].low),
                    format_statistics(metrics["accuracy_unseen"], format_percent),
                    format_number(metrics["loss"].mean),
                    format_number(metrics["loss_seen"].mean),
                )
            )
    header = (
        *("task", "prior", "learning rate", "position std", "accuracy (%)", "min", "unseen only (%)"),
        *("loss", "loss on seen"),
    )
    return TextTable(header, tuple(lines), labels=2)


def cells_table(main: Records, grid: Records) -> TextTable:
    """Mean accuracy on the whole cube in every cell."""
    settings = [(rate, std) for rate in GRID_LEARNING_RATES for std in GRID_POSITION_STDS]
    cells = {
        (c.task, c.prior, c.learning_rate, c.position_std): c.row.metrics["accuracy"]
        for c in grid_cells(main, grid)
    }
    names = sorted(
        {(task, prior) for task, prior, *_ in cells}, key=lambda n: (TASKS.index(n[0]), prior_rank(n[1]))
    )
    lines = [
        (*name, *(format_percent(cells[(*name, *s)].mean) if (*name, *s) in cells else "–" for s in settings))
        for name in names
    ]
    header = ("task", "prior", *(f"lr {rate:g}, position {std:g}" for rate, std in settings))
    return TextTable(header, tuple(lines), labels=2)


def ablation_table(main: Records, ablation: Records) -> TextTable:
    """The mask prior of each task, then one change at a time."""
    whole = {path: record for path, record in main.items() if record.prior == "mask" and record.seed < 2}
    rows = [row for panel in [*make_panels(whole), *make_panels(ablation)] for row in _rows(panel)]
    rows.sort(key=lambda row: (TASKS.index(row.task), row.variant))
    lines = [
        (
            row.task,
            row.variant,
            format_statistics(row.metrics["accuracy"], format_percent),
            format_percent(row.metrics["accuracy"].low),
            format_number(row.metrics["loss"].mean),
            format_number(row.metrics["loss_seen"].mean),
        )
        for row in rows
    ]
    return TextTable(
        ("task", "variant", "accuracy (%)", "min", "loss", "loss on seen"), tuple(lines), labels=2
    )


def origin(records: Sequence[RunRecord]) -> str:
    """Runs, time, hardware, commits and versions behind the tables."""
    hours = math.fsum(record.seconds for record in records) / 3600
    commits = sorted({f"`{r.commit[:10]}`{' with changes' if r.dirty else ''}" for r in records})
    machines = sorted({str(r.hardware["cpu"]) for r in records})
    torch = sorted({r.versions["torch"] for r in records})
    return (
        f"{len(records)} runs, {hours:.1f} hours of single-threaded worker time, two workers at a time on a "
        f"shared 2-core machine; processor {', '.join(machines)}; torch {', '.join(torch)}; "
        f"commits {', '.join(commits)}."
    )


def main() -> None:
    """Rewrite the blocks."""
    for name, filled in blocks().items():
        fill_file(ROOT / name, filled)


if __name__ == "__main__":
    main()
