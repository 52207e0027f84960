"""Progress of a sweep in the terminal: a bar for all, a line for each finished run."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from typing_extensions import Self

from maskprior.experiments.config import AnyRunConfig
from maskprior.experiments.record import RunRecord

SHOWN = {
    "loss_train": "loss {:.4g}",
    "accuracy_seen": "seen {:.1%}",
    "accuracy_unseen": "unseen {:.1%}",
    "top1_validation": "validation {:.1%}",
    "perplexity_validation": "perplexity {:.4g}",
}
"""Curves named beside a run in progress, where the task has them."""


class SilentReporter:
    """Says nothing."""

    def begin(self, total: int, done: int) -> None:
        """Ignored."""

    def step(self, config: AnyRunConfig, step: int, point: dict[str, float]) -> None:
        """Ignored."""

    def finish(self, config: AnyRunConfig, record: RunRecord) -> None:
        """Ignored."""


class ProgressReporter:
    """Draws a bar for the sweep, one for each run in progress, and a line for each finished run.

    Args:
        console: where to draw; without a terminal only the lines appear.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[line]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._console = console
        self._all: TaskID | None = None
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bars."""
        self._progress.stop()

    def begin(self, total: int, done: int) -> None:
        """``total`` runs in all, ``done`` of them already recorded."""
        self._all = self._progress.add_task("all runs", total=total, completed=done, line="")
        if done:
            self._console.print(f"{done} of {total} runs are recorded already", highlight=False)

    def step(self, config: AnyRunConfig, step: int, point: dict[str, float]) -> None:
        """Move the run's bar and show its newest figures."""
        name = describe(config)
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=config.training.steps, line="")
        line = "  ".join(text.format(point[curve]) for curve, text in SHOWN.items() if curve in point)
        self._progress.update(self._bars[name], completed=step, line=line)

    def finish(self, config: AnyRunConfig, record: RunRecord) -> None:
        """Replace the run's bar by a line with its result."""
        name = describe(config)
        if name in self._bars:
            self._progress.remove_task(self._bars.pop(name))
        if self._all is not None:
            self._progress.advance(self._all)
        figures = "  ".join(
            f"{key} {value:.2%}" if "accuracy" in key or "top1" in key else f"{key} {value:.3g}"
            for key, value in record.metrics.items()
            if isinstance(value, float)
        )
        line = f"{name:<34} {figures}  ({record.seconds:.0f} s)"
        self._console.print(line, highlight=False, soft_wrap=True)


def describe(config: AnyRunConfig) -> str:
    """The run in a few words."""
    return f"{config.task.name} {config.label} seed {config.seed}"
