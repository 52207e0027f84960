"""From persistence logs to curves over seeds, a table and a verdict in plain words."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maskprior.analysis.formatting import MISSING, TextTable, format_percent
from maskprior.analysis.persistence import time_until
from maskprior.analysis.persistence_log import Log, log_path, read_log
from maskprior.analysis.recorded_run import mean_curve, retained_curve
from maskprior.analysis.tables import Panel
from maskprior.experiments.files import RecordError

KEPT = 0.9
"""What counts as persistent: this share of the initial advantage over uniform attention."""
HALF = 0.5

Logs = Mapping[int, Log]
"""The logs of one variant by seed."""


@dataclass(frozen=True)
class Band:
    """A curve over seeds: mean, lowest and highest value at each step that all seeds have."""

    steps: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]

    @classmethod
    def of(cls, curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> "Band | None":
        """Band of (steps, values) pairs; gaps (NaN) are left out. None where no step is shared."""
        found = [{s: v for s, v in zip(*curve, strict=True) if not math.isnan(v)} for curve in curves]
        steps = sorted(set.intersection(*map(set, found))) if found else []
        if not steps:
            return None
        columns = [[values[step] for values in found] for step in steps]
        means = [statistics.fmean(column) for column in columns]
        return cls(steps, means, [min(column) for column in columns], [max(column) for column in columns])


def panel_logs(panel: Panel) -> dict[str, Logs]:
    """Logs that lie beside the records, by variant and seed; variants without any are left out.

    Raises:
        RecordError: a log is corrupt, or holds nothing but its header.
    """
    found = {
        variant: {
            record.seed: _read_probes(log_path(path))
            for path, record in runs.items()
            if log_path(path).exists()
        }
        for variant, runs in panel.variants.items()
    }
    return {variant: logs for variant, logs in found.items() if logs}


def _read_probes(path: Path) -> Log:
    log = read_log(path)
    if not log.probes:
        raise RecordError(f"{path}: expected probes after the header, got none; run it again")
    return log


def measure_band(logs: Logs, name: str) -> Band | None:
    """A measure, mean over layers, over seeds; None where it was not taken."""
    curves = []
    for log in logs.values():
        probes = [probe for probe in log.probes if name in probe.measures]
        layers = [[v for v in probe.measures[name] if not math.isnan(v)] for probe in probes]
        pairs = [(float(p.step), statistics.fmean(v)) for p, v in zip(probes, layers, strict=True) if v]
        curves.append(([step for step, _ in pairs], [value for _, value in pairs]))
    return Band.of(curves)


def retained_band(logs: Logs, kind: str) -> Band | None:
    """Share of the structure that is left, "attention" or "prior", over seeds that have such a curve."""
    curves = [(log.steps, retained_curve(log, kind)) for log in logs.values()]
    return Band.of([(steps, values) for steps, values in curves if values is not None])


@dataclass(frozen=True)
class Persistence:
    """What training left of a prior, one value a seed.

    Attributes:
        variant: of the runs.
        seeds: how many.
        last_step: of the training.
        start: share of all possible advantage that the attention had at the start; NaN if not followed.
        prior: share that the prior's own pattern kept; empty without a mask prior.
        attention: share that the model's attention kept; empty where it had next to nothing.
        half_life: step at which half was gone (of the prior, or else of the attention); None: never.
        suppressed: attention on suppressed pairs at the start and at the end.
    """

    variant: str
    seeds: int
    last_step: float
    start: Sequence[float]
    prior: Sequence[float]
    attention: Sequence[float]
    half_life: Sequence[float | None]
    suppressed: Sequence[tuple[float, float]]

    @property
    def has_prior_pattern(self) -> bool:
        """Whether the prior is a mask, whose own pattern can be looked at."""
        return bool(self.prior)

    @property
    def judged(self) -> Sequence[float]:
        """What the verdict is about: the mask's own pattern, and the attention of other priors."""
        return self.prior or self.attention


def summarise_logs(variant: str, logs: Logs) -> Persistence:
    """Figures of one variant."""
    kinds = {kind: [retained_curve(log, kind) for log in logs.values()] for kind in ("prior", "attention")}
    judged = kinds["prior" if any(kinds["prior"]) else "attention"]
    return Persistence(
        variant=variant,
        seeds=len(logs),
        last_step=max(log.steps[-1] for log in logs.values()),
        start=[_start(log) for log in logs.values()],
        prior=[curve[-1] for curve in kinds["prior"] if curve],
        attention=[curve[-1] for curve in kinds["attention"] if curve],
        half_life=[
            time_until(log.steps, curve, HALF)
            for log, curve in zip(logs.values(), judged, strict=True)
            if curve
        ],
        suppressed=[_ends(log) for log in logs.values() if log.header.attention_limit],
    )


def _start(log: Log) -> float:
    advantages, limits = log.curve("attention_advantage"), log.header.attention_limit
    return statistics.fmean(advantages[0]) / statistics.fmean(limits) if any(limits) else math.nan


def _ends(log: Log) -> tuple[float, float]:
    curve = mean_curve(log.curve("attention_suppressed"))
    return curve[0], curve[-1]


def persistence_table(found: Sequence[Persistence]) -> TextTable:
    """One row a variant: mean over seeds, and the worst seed in brackets."""
    header = (
        *("variant", "seeds", "structure at the start (%)", "prior kept (%)", "attention kept (%)"),
        *("half gone by step", "attention on suppressed pairs (%)"),
    )
    return TextTable(header, tuple(_row(one) for one in found), labels=1)


def _row(one: Persistence) -> tuple[str, ...]:
    ends = [f"{100 * statistics.fmean(values):.1f}" for values in zip(*one.suppressed, strict=True)]
    return (
        one.variant,
        str(one.seeds),
        MISSING if any(map(math.isnan, one.start)) else f"{100 * statistics.fmean(one.start):.0f}",
        with_worst(one.prior),
        with_worst(one.attention),
        describe_half_life(one),
        " → ".join(ends) or MISSING,
    )


def with_worst(shares: Sequence[float]) -> str:
    """``97.2 (96.8)``: mean and lowest, in percent."""
    return f"{100 * statistics.fmean(shares):.1f} ({100 * min(shares):.1f})" if shares else MISSING


def describe_half_life(one: Persistence) -> str:
    """Mean step, rounded up; how many seeds if not all got there."""
    reached = [step for step in one.half_life if step is not None]
    if not one.half_life:
        return MISSING
    if not reached:
        return "never"
    mean = f"{math.ceil(statistics.fmean(reached))}"
    return mean if len(reached) == len(one.half_life) else f"{mean} ({len(reached)} of {len(one.half_life)})"


def verdict(found: Sequence[Persistence]) -> list[str]:
    """Sentences: what each variant kept or lost, and whether the claim of persistence holds here."""
    return [*map(_sentence, found), *_conclusion(found)]


def _sentence(one: Persistence) -> str:
    if not one.judged:
        return f"{one.variant} began with next to no structure, so there was nothing to lose."
    worst = f" (worst of {one.seeds} seeds: {_percent(min(one.judged))})" if one.seeds > 1 else ""
    if one.has_prior_pattern:
        text = (
            f"{one.variant} kept {_percent(statistics.fmean(one.prior))} of its structure in the prior’s own "
        )
        text += f"pattern{worst}"
        if one.attention:
            text += (
                f" and {_percent(statistics.fmean(one.attention))} in the attention that the model really had"
            )
        return f"{text}, after {one.last_step:.0f} steps."
    kept = statistics.fmean(one.attention)
    if kept >= KEPT:
        return f"{one.variant} kept {_percent(kept)}{worst} of its structure after {one.last_step:.0f} steps."
    lost = "all of its structure and more" if kept < 0 else f"{_percent(1 - kept)} of its structure"
    half = describe_half_life(one)
    when = "" if half in ("never", MISSING) else f"; half was gone by step {half}"
    return f"{one.variant} lost {lost} by step {one.last_step:.0f}{when}."


def _conclusion(found: Sequence[Persistence]) -> list[str]:
    masks = [one for one in found if one.has_prior_pattern]
    others = [one for one in found if one.judged and not one.has_prior_pattern]
    sentences = []
    faded = [one.variant for one in masks if min(one.prior) < KEPT]
    if masks and not faded:
        sentences.append(f"Every mask prior kept at least {_percent(KEPT)} of its structure with every seed.")
    elif masks:
        sentences.append(f"Exception: below {_percent(KEPT)} with some seed fell {', '.join(faded)}.")
    overruled = [
        one.variant for one in masks if one.attention and min(one.attention) < KEPT <= min(one.prior)
    ]
    if overruled:
        sentences.append(
            f"But the prior is not all there is: scores outgrew it, and the attention fell below "
            f"{_percent(KEPT)} with some seed, in {', '.join(overruled)}."
        )
    kept = [one.variant for one in others if max(one.judged) >= KEPT]
    if others and not kept:
        sentences.append(f"No query-key prior kept {_percent(KEPT)} of its structure with any seed.")
    elif others:
        sentences.append(
            f"Exception: at least {_percent(KEPT)} with some seed was kept by {', '.join(kept)}."
        )
    return sentences


def _percent(share: float) -> str:
    """``97 %``; near all of it as many decimals as it takes not to say 100."""
    return f"{format_percent(share) if 0.995 <= share < 1 else f'{100 * share:.0f}'} %"
