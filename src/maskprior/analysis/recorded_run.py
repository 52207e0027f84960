"""A run record for training that is not this package's, made from its persistence log."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskprior.analysis.persistence import retained
from maskprior.analysis.persistence_log import Log, log_path, read_log
from maskprior.experiments.record import RunRecord, provenance, run_path, write_record


@dataclass(frozen=True)
class RunLabel:
    """What a training is called in tables and file names; the same label is the same run.

    Attributes:
        task: what is learned.
        prior: what the structure is put in by; it decides the colour.
        seed: of the training.
        variant: row of the table; the prior's name unless given.
        preset: settings that are compared with each other.
    """

    task: str = "training"
    prior: str = "mask"
    seed: int = 0
    variant: str = ""
    preset: str = "own"

    def config(self) -> dict[str, Any]:
        """The ``config`` field of the record."""
        return {"variant": self.variant or self.prior, "task": {"name": self.task}}

    def path(self, folder: Path) -> Path:
        """Where the record lies.

        Raises:
            RecordError: a name that cannot be part of a file's name.
        """
        return run_path(
            folder, task=self.task, prior=self.prior, preset=self.preset, seed=self.seed, config=self.config()
        )


def write_run(folder: Path, label: RunLabel, seconds: float, device: str = "cpu") -> Path:
    """Write the record of the training whose log lies beside it; its notes become the curves.

    Raises:
        RecordError: the log is corrupt.
        OSError: the log is missing or the record cannot be written.
    """
    path = label.path(folder)
    log = read_log(log_path(path))
    record = RunRecord(
        task=label.task,
        prior=label.prior,
        preset=label.preset,
        seed=label.seed,
        config=label.config(),
        **provenance(device),
        seconds=seconds,
        metrics=final_shares(log),
        curves={"step": log.steps, **_noted(log)},
    )
    write_record(path, record)
    return path


def _noted(log: Log) -> dict[str, list[float]]:
    names = dict.fromkeys(name for probe in log.probes for name in probe.notes)
    return {name: [probe.notes.get(name, math.nan) for probe in log.probes] for name in names}


def final_shares(log: Log) -> dict[str, float]:
    """What is left of the structure at the end, mean over layers: "attention_retained", "prior_retained"."""
    shares = {kind: retained_curve(log, kind) for kind in ("attention", "prior")}
    return {f"{kind}_retained": values[-1] for kind, values in shares.items() if values}


def retained_curve(log: Log, kind: str) -> list[float] | None:
    """Share of the structure that is left at each probe, mean over layers.

    Args:
        log: of one training.
        kind: "attention" (what the model does) or "prior" (what M alone would do).

    Returns:
        Mean advantage over the layers at each probe, over that of the first; None where it was not followed
        or began with next to nothing.
    """
    limits = log.header.attention_limit if kind == "attention" else log.header.prior_limit
    if not limits:
        return None
    return retained(mean_curve(log.curve(f"{kind}_advantage")), statistics.fmean(limits))


def mean_curve(values: Iterable[Iterable[float]]) -> list[float]:
    """Mean over layers at each probe."""
    return [statistics.fmean(layers) for layers in values]
