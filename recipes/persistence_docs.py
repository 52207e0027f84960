"""Published persistence tables, written into docs/persistence.md from the committed records and logs.

python -m recipes.persistence_docs
"""

import csv
import io
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from maskprior.analysis.formatting import TextTable, format_percent, to_markdown
from maskprior.analysis.persistence import Target
from maskprior.analysis.persistence_log import Log
from maskprior.analysis.persistence_tables import (
    Persistence,
    describe_half_life,
    panel_logs,
    summarise_logs,
    with_worst,
)
from maskprior.analysis.tables import Panel, make_panels, summarise
from maskprior.experiments.record import RunRecord, read_records
from maskprior.tasks.gotu import BOOLEAN_TASKS
from recipes.blocks import fill_file
from recipes.boolean_tables import origin
from recipes.persistence import PARTS, TASKS, part_folder
from recipes.persistence_causes import CAUSES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "persistence"
Records = Mapping[Path, RunRecord]


def blocks(results: Path = RESULTS) -> dict[str, str]:
    """Block name → Markdown."""
    folders = {part: read_records(part_folder(results, part)) for part in PARTS}
    causes = results.with_name(f"{results.name}-causes") / "causes.csv"
    return {
        **{
            f"persistence-{part}": to_markdown(kept_table(folders[part]))
            for part in ("main", "optimizers", "scale")
        },
        "persistence-wrong": to_markdown(wrong_table(folders["main"], folders["wrong"])),
        "persistence-causes": to_markdown(causes_table(causes.read_text())),
        "persistence-origin": origin([r for records in folders.values() for r in records.values()]),
    }


def _panels(records: Records) -> list[Panel]:
    return sorted(make_panels(records), key=lambda panel: TASKS.index(panel.task))


def _persistence(records: Records) -> Iterator[tuple[Panel, Persistence]]:
    for panel in _panels(records):
        for variant, logs in panel_logs(panel).items():
            yield panel, summarise_logs(variant, logs)


def kept_table(records: Records) -> TextTable:
    """One row a task and variant: what was learned, what was kept."""
    accuracy = {
        (panel.task, row.variant): row.metrics["accuracy_unseen"]
        for panel in _panels(records)
        for row in summarise(panel, ["accuracy_unseen"])
    }
    lines = []
    for panel, found in _persistence(records):
        ends = [f"{100 * statistics.fmean(values):.1f}" for values in zip(*found.suppressed, strict=True)]
        lines.append(
            (
                panel.task,
                found.variant,
                format_percent(accuracy[panel.task, found.variant].mean),
                f"{100 * statistics.fmean(found.start):.0f}",
                with_worst(found.prior),
                with_worst(found.attention),
                describe_half_life(found),
                " → ".join(ends),
            )
        )
    header = (
        *("task", "prior", "accuracy on unseen (%)", "structure at the start (%)", "prior kept (%)"),
        *("attention kept (%)", "half gone by step", "attention on suppressed pairs (%)"),
    )
    return TextTable(header, tuple(lines), labels=2)


def towards(log: Log, target: Target, index: int) -> float:
    """Advantage of a frame over uniform attention, towards another structure, in parts of the limit."""
    frames = [probe.frames["attention"] for probe in log.probes if "attention" in probe.frames]
    return statistics.fmean(target.measure(layer)["advantage"] for layer in frames[index]) / target.limit


def wrong_table(right: Records, wrong: Records) -> TextTable:
    """What a wrong prior costs, beside the right one; and whether attention finds the right structure."""
    measured = ["accuracy", "accuracy_unseen", "loss_seen"]
    rows = {
        (panel.task, row.variant): row.metrics
        for records in (right, wrong)
        for panel in _panels(records)
        for row in summarise(panel, measured)
    }
    lines = []
    for panel in _panels(wrong):
        target = Target.of_structure(BOOLEAN_TASKS[panel.task]().structure())
        for variant, logs in panel_logs(panel).items():
            plain, found = variant.removesuffix("-wrong"), summarise_logs(variant, logs)
            ends = [
                statistics.fmean(towards(log, target, index) for log in logs.values()) for index in (0, -1)
            ]
            lines.append(
                (
                    panel.task,
                    plain,
                    *(
                        f"{format_percent(rows[panel.task, plain][name].mean)} → "
                        f"{format_percent(rows[panel.task, variant][name].mean)}"
                        for name in measured[:2]
                    ),
                    f"{rows[panel.task, variant]['loss_seen'].mean:.3g}",
                    with_worst(found.prior),
                    with_worst(found.attention),
                    " → ".join(f"{100 * end:.0f}" for end in ends),
                )
            )
    header = (
        *("task", "prior", "accuracy, right → wrong (%)", "unseen only (%)", "loss on seen, wrong"),
        *("wrong prior kept (%)", "wrong attention kept (%)", "towards the right structure (%)"),
    )
    return TextTable(header, tuple(lines), labels=2)


def causes_table(text: str) -> TextTable:
    """Mean over seeds of what attention keeps, by what has moved."""
    groups: dict[tuple[str, str], list[list[float]]] = {}
    for line in csv.DictReader(io.StringIO(text)):
        values = [float(line[cause]) for cause in CAUSES]
        groups.setdefault((line["task"], line["variant"]), []).append(values)
    lines = [
        (*name, *(f"{100 * statistics.fmean(column):.0f}" for column in zip(*values, strict=True)))
        for name, values in groups.items()
    ]
    header = ("task", "prior", "both moved (%)", "W_Q, W_K moved (%)", "what they read moved (%)")
    return TextTable(header, tuple(lines), labels=2)


def main() -> None:
    """Rewrite the blocks."""
    fill_file(ROOT / "docs" / "persistence.md", blocks())


if __name__ == "__main__":
    main()
