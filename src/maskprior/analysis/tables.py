"""From records to tables: who may be compared with whom, and statistics over seeds.

A *panel* is one task at one preset. Its *variants* (a prior, or a variation of one) are the rows of its
table, each a mean over seeds. Only runs that differ in nothing but the seed are averaged.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskprior.experiments.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

PRIOR_ORDER = ("vanilla", "qk_svd", "qk_optimize", "mask")
HEADLINE_METRICS = (
    "accuracy",
    "sequence_accuracy",
    "top1",
    "test_perplexity",
    "accuracy_unseen",
    "sequence_accuracy_unseen",
    "digit_accuracy",
    "token_accuracy",
    "top5",
    "word_perplexity",
    "validation_perplexity",
    "loss",
    "loss_unseen",
    "test_loss",
    "mdi_distance",
)
"""Boolean, arithmetic, vision and language tasks; what a task is judged by comes before the rest."""


@dataclass(frozen=True)
class Panel:
    """Runs that stand side by side.

    Attributes:
        task: name of the task.
        preset: name of the preset.
        variants: records by file, by variant, in the order of tables.
    """

    task: str
    preset: str
    variants: Mapping[str, Mapping[Path, RunRecord]]

    @property
    def name(self) -> str:
        """As part of a file's name."""
        return f"{self.task}-{self.preset}"

    @property
    def title(self) -> str:
        """As a heading."""
        return f"{self.task} ({self.preset})"

    def records(self) -> list[RunRecord]:
        """All records, variant by variant."""
        return [record for runs in self.variants.values() for record in runs.values()]


@dataclass(frozen=True)
class Statistics:
    """Over seeds; all NaN where a value is missing or not finite, as a failed run must not be skipped.

    Attributes:
        mean: arithmetic mean.
        std: standard deviation of the sample (divided by n − 1); NaN for one value.
        low: least value.
        high: greatest value.
    """

    mean: float
    std: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Statistics":
        """Statistics of at least one value."""
        if not all(map(math.isfinite, values)):
            return cls(math.nan, math.nan, math.nan, math.nan)
        std = statistics.stdev(values) if len(values) > 1 else math.nan
        return cls(statistics.fmean(values), std, min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One variant of a panel over its seeds."""

    task: str
    preset: str
    prior: str
    variant: str
    runs: Mapping[Path, RunRecord]
    seconds: Statistics
    metrics: Mapping[str, Statistics]


def prior_rank(prior: str) -> tuple[int, str]:
    """Sort key: vanilla, qk_svd, qk_optimize, mask, then the others by name."""
    return (PRIOR_ORDER.index(prior) if prior in PRIOR_ORDER else len(PRIOR_ORDER), prior)


def make_panels(records: Mapping[Path, RunRecord]) -> list[Panel]:
    """Sort records into panels by task and preset, variants by prior, plain ones first, runs by seed.

    Raises:
        ValueError: runs of one variant differ in more than the seed, or one is there twice; names the files.
    """

    def place(run: tuple[Path, RunRecord]) -> tuple[Any, ...]:
        path, record = run
        plain_first = record.variant != record.prior
        key = (record.task, record.preset, prior_rank(record.prior), plain_first, record.variant)
        return (*key, record.seed, str(path))

    panels: dict[tuple[str, str], dict[str, dict[Path, RunRecord]]] = {}
    for path, record in sorted(records.items(), key=place):
        variants = panels.setdefault((record.task, record.preset), {})
        runs = variants.setdefault(record.variant, {})
        if runs:
            _check_comparable(*list(runs.items())[-1], path, record)
        runs[path] = record
    return [Panel(task, preset, variants) for (task, preset), variants in panels.items()]


def _check_comparable(path: Path, record: RunRecord, other_path: Path, other: RunRecord) -> None:
    label = f"{path} and {other_path} are both {record.task} ({record.preset}), {record.variant}"
    first = flatten({"prior": record.prior, "config": record.config})
    second = flatten({"prior": other.prior, "config": other.config})
    for key in sorted(first.keys() | second.keys()):
        if first.get(key) != second.get(key):
            raise ValueError(
                f"{label}, but differ in {key}: {first.get(key)} and {second.get(key)}; "
                "give one of them a variant or a folder of its own"
            )
    if record.seed == other.seed:
        raise ValueError(f"{label}, seed {record.seed}; remove one of them")


def flatten(value: object, name: str = "") -> dict[str, Any]:
    """Nested objects and lists as one level, names joined by dots."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[object, object]] = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return {name: value}
    flat: dict[str, Any] = {}
    for key, item in items:
        flat |= flatten(item, f"{name}.{key}" if name else str(key))
    return flat


def metric_values(record: RunRecord) -> dict[str, float]:
    """All numbers among a record's metrics by dotted name: ``coefficients.x0*x1``, ``degree_profile.2``."""
    return {
        name: float(value)
        for name, value in flatten(record.metrics).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def headline_metrics(records: Iterable[RunRecord]) -> list[str]:
    """Those of the known metrics that some record has, or else all that are not nested, by name."""
    there = {
        name for record in records for name, value in metric_values(record).items() if not math.isnan(value)
    }
    known = [name for name in HEADLINE_METRICS if name in there]
    return known or sorted(name for name in there if "." not in name)


def first_object(metrics: Iterable[Mapping[str, Any]], name: str) -> dict[str, float]:
    """The metric of that name of the first run in which it is an object; else an empty one."""
    return next((found[name] for found in metrics if isinstance(found.get(name), dict)), {})


def telling_monomials(panel: Panel, limit: int) -> list[str]:
    """Monomials whose coefficient tells the target from the shortcut (the MDI), the target's own first.

    Without a known MDI, those of the target; without a target, the reported ones that grew largest.
    """
    metrics = [record.metrics for record in panel.records()]
    target = first_object(metrics, "target_coefficients")
    mdi = first_object(metrics, "mdi_coefficients")
    weights = {name: round(abs(value - mdi.get(name, 0.0)), 9) for name, value in target.items()}
    if not target:
        for found in metrics:
            for name, value in found.get("coefficients", {}).items():
                weights[name] = max(weights.get(name, 0.0), abs(value))
    chosen = [name for name, weight in weights.items() if weight > 0]
    chosen.sort(
        key=lambda name: (target.get(name, 1) == 0, -weights[name], name.count("*"), name != "1", name)
    )
    return chosen[:limit]


def summarise(panel: Panel, metrics: Iterable[str]) -> list[Row]:
    """Statistics over seeds of each variant; a metric that a record lacks counts as NaN."""
    rows = []
    for variant, runs in panel.variants.items():
        values = [metric_values(record) for record in runs.values()]
        rows.append(
            Row(
                task=panel.task,
                preset=panel.preset,
                prior=next(iter(runs.values())).prior,
                variant=variant,
                runs=runs,
                seconds=Statistics.of([record.seconds for record in runs.values()]),
                metrics={
                    name: Statistics.of([flat.get(name, math.nan) for flat in values]) for name in metrics
                },
            )
        )
    return rows


def records_frame(records: Mapping[Path, RunRecord]) -> "pd.DataFrame":
    """One row a record, in the order of tables: what it is, seconds, file, and each metric in a column."""
    import pandas as pd

    return pd.DataFrame(
        {
            "task": panel.task,
            "preset": panel.preset,
            "prior": record.prior,
            "variant": variant,
            "seed": record.seed,
            "seconds": record.seconds,
            "file": path.name,
            **metric_values(record),
        }
        for panel in make_panels(records)
        for variant, runs in panel.variants.items()
        for path, record in runs.items()
    )


def summary_frame(rows: Iterable[Row]) -> "pd.DataFrame":
    """One row a variant, unrounded: for each metric ``…_mean``, ``…_std``, ``…_min``, ``…_max``."""
    import pandas as pd

    def spread(name: str, values: Statistics) -> dict[str, float]:
        return {
            f"{name}_mean": values.mean,
            f"{name}_std": values.std,
            f"{name}_min": values.low,
            f"{name}_max": values.high,
        }

    lines = []
    for row in rows:
        line: dict[str, Any] = {
            "task": row.task,
            "preset": row.preset,
            "prior": row.prior,
            "variant": row.variant,
            "seeds": len(row.runs),
        }
        for name, values in row.metrics.items():
            line |= spread(name, values)
        lines.append(line | spread("seconds", row.seconds))
    return pd.DataFrame(lines)
