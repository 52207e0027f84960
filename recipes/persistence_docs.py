"""Published persistence tables, written into docs/persistence.md from the committed records and logs.

python -m recipes.persistence_docs
"""

import csv
import io
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from maskprior.analysis.formatting import MISSING, TextTable, format_percent, to_markdown
from maskprior.analysis.persistence import Target
from maskprior.analysis.persistence_log import Log
from maskprior.analysis.persistence_tables import (
    KEPT,
    Persistence,
    describe_half_life,
    panel_logs,
    summarise_logs,
    verdict,
    with_worst,
)
from maskprior.analysis.tables import Panel, make_panels, summarise
from maskprior.experiments.record import RunRecord, read_records
from maskprior.tasks.gotu import BOOLEAN_TASKS
from recipes.blocks import fill_file
from recipes.persistence import PARTS, TASKS
from recipes.persistence_causes import CAUSES
from recipes.reproduce import part_folder

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "persistence.md"
RESULTS = ROOT / "results" / "persistence"
Records = Mapping[Path, RunRecord]


def blocks(results: Path = RESULTS) -> dict[str, str]:
    """Block name → Markdown."""
    folders = {part: read_records(part_folder(results, part)) for part in PARTS}
    causes = results.with_name(f"{results.name}-causes") / "causes.csv"
    vanilla = {p: r for p, r in read_records(results.with_name("boolean")).items() if r.prior == "vanilla"}
    return {
        "persistence-verdict": verdict_list(folders["main"]),
        "persistence-cost": cost_sentence((results.with_name("benchmarks") / "probes.json").read_text()),
        "persistence-exceptions": exceptions_list(folders),
        **{
            f"persistence-{part}": to_markdown(kept_table(folders[part]))
            for part in ("main", "optimizers", "scale")
        },
        "persistence-wrong": to_markdown(wrong_table(folders["main"], folders["wrong"], vanilla)),
        "persistence-causes": to_markdown(causes_table(causes.read_text())),
        "persistence-origin": origin([r for records in folders.values() for r in records.values()]),
    }


def _panels(records: Records) -> list[Panel]:
    return sorted(make_panels(records), key=lambda panel: TASKS.index(panel.task))


def _persistence(records: Records) -> Iterator[tuple[Panel, Persistence]]:
    for panel in _panels(records):
        for variant, logs in panel_logs(panel).items():
            yield panel, summarise_logs(variant, logs)


def verdict_list(records: Records) -> str:
    """What the report's page says of each task."""
    lines = []
    for panel in _panels(records):
        found = [summarise_logs(variant, logs) for variant, logs in panel_logs(panel).items()]
        lines += [f"- **{panel.task}**: {' '.join(verdict(found))}"]
    return "\n".join(lines)


def cost_sentence(text: str) -> str:
    """The benchmark's figures."""
    cost = json.loads(text)
    probe, step = cost["probe_ms"], cost["step_ms"]
    default, own = cost["percent_at_default_interval"], cost["percent_in_own_runs"]
    return (
        f"One probe takes {probe:.1f} ms where a training step takes {step:.1f} ms (2parity at the `cpu` "
        f"preset, one core): {default:.2g} % of the training at the default interval of 100 steps, {own:.2g} "
        "% in the runs below, which are probed more often (`benchmarks/probes.py`)."
    )


def exceptions_list(folders: Mapping[str, Records]) -> str:
    """Every mask prior, of all parts, whose own pattern fell below 90 % with some seed."""
    lines = [
        f"- `{found.variant}` on {panel.task}: {with_worst(found.prior)} %, half gone by step "
        f"{describe_half_life(found)}"
        for records in folders.values()
        for panel, found in _persistence(records)
        if found.prior and min(found.prior) < KEPT
    ]
    return "\n".join(lines) or "None."


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


def origin(records: Sequence[RunRecord]) -> str:
    """Runs, time, hardware, commits and versions behind the tables."""
    hours = math.fsum(record.seconds for record in records) / 3600
    commits = sorted({f"`{r.commit[:10]}`{' with changes' if r.dirty else ''}" for r in records})
    machines = sorted({str(r.hardware["cpu"]) for r in records})
    torch = sorted({r.versions["torch"] for r in records})
    return (
        f"{len(records)} runs of one thread each, {hours:.1f} hours of wall-clock time on a 2-core machine "
        f"that other work kept busy; processor {', '.join(machines)}; torch {', '.join(torch)}; commits "
        f"{', '.join(commits)}."
    )


def towards(log: Log, target: Target, index: int) -> float:
    """Advantage of a frame over uniform attention, towards another structure, in parts of the limit."""
    frames = [probe.frames["attention"] for probe in log.probes if "attention" in probe.frames]
    return statistics.fmean(target.measure(layer)["advantage"] for layer in frames[index]) / target.limit


def wrong_table(right: Records, wrong: Records, vanilla: Records) -> TextTable:
    """What a wrong prior costs, beside the right one and none; and whether attention finds the right one."""
    measured = ["accuracy", "accuracy_unseen", "loss_seen"]
    rows = {
        (panel.task, row.variant): row.metrics
        for records in (right, wrong, vanilla)
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
        none = rows[panel.task, "vanilla"]
        shares = [format_percent(none[name].mean) for name in measured[:2]]
        lines.append((panel.task, "none", *shares, f"{none['loss_seen'].mean:.3g}", *[MISSING] * 3))
    header = (
        *("task", "prior", "accuracy, right → wrong (%)", "unseen only (%)", "loss on seen"),
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
    fill_file(PAGE, blocks())


if __name__ == "__main__":
    main()
