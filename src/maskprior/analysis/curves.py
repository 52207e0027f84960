"""Training curves of a panel: which there are, and their means over seeds."""

import math
import re
import statistics
from collections.abc import Collection

from maskprior.analysis.tables import Panel
from maskprior.experiments.record import RunRecord

QUANTITIES = ("loss", "perplexity", "accuracy")
PARTS = ("seen", "unseen", "train", "validation", "test")
_MEASURED = re.compile(r"(\w*(?:loss|accuracy|perplexity)|top\d+)_([a-zA-Z0-9]+)")

Points = tuple[list[float], list[float]]


def measured_parts(panel: Panel) -> tuple[list[str], list[str]]:
    """Quantities and parts of the data of all curves named like ``loss_unseen``, each once.

    Loss, perplexity and accuracy come first, then other quantities by name; likewise the known parts.
    A quantity need not be there for every part. The batches' own "train" is left out beside "seen".
    """
    names = {name for record in panel.records() for name in record.curves}
    matches = [match for match in map(_MEASURED.fullmatch, names) if match]
    parts = {match[2] for match in matches}
    if "seen" in parts:
        parts.discard("train")
    return _in_order({match[1] for match in matches if match[2] in parts}, QUANTITIES), _in_order(
        parts, PARTS
    )


def _in_order(names: Collection[str], first: tuple[str, ...]) -> list[str]:
    return [name for name in first if name in names] + sorted(set(names) - set(first))


def curve(record: RunRecord, name: str) -> Points:
    """Steps and values of one curve without its gaps (NaN); both empty where the record lacks it."""
    pairs = zip(record.curves["step"], record.curves.get(name, ()), strict=False)
    points = [(step, value) for step, value in pairs if not math.isnan(value)]
    return [step for step, _ in points], [value for _, value in points]


def mean_curve(records: Collection[RunRecord], name: str) -> Points:
    """Mean over the records at the steps where each of them has a value."""
    found = [dict(zip(*curve(record, name), strict=True)) for record in records]
    steps = sorted(set.intersection(*(set(values) for values in found)))
    return steps, [statistics.fmean(values[step] for values in found) for step in steps]
