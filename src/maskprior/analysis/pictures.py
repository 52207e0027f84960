"""Which figures a report shows, with their names and captions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from maskprior.analysis.formatting import is_lower_better, metric_label
from maskprior.analysis.plots import plot_coefficients, plot_learning_curves, plot_patterns, plot_scores
from maskprior.analysis.tables import Panel, headline_metrics
from maskprior.experiments.files import RecordError, read_tensors
from maskprior.experiments.record import RunRecord, patterns_path


@dataclass(frozen=True)
class Picture:
    """A figure with its file's stem and a caption."""

    name: str
    caption: str
    figure: Figure


def score_pictures(panels: Sequence[Panel]) -> list[Picture]:
    """Final metric of every run: one figure for all panels with the same headline metric."""
    by_metric: dict[str, list[Panel]] = {}
    for panel in panels:
        for metric in headline_metrics(panel.records())[:1]:
            by_metric.setdefault(metric, []).append(panel)
    return [
        Picture(
            f"scores-{metric}",
            f"Final {metric_label(metric)}: a dot a seed, a bar at the mean."
            + " Lower is better." * is_lower_better(metric),
            plot_scores(group, metric),
        )
        for metric, group in by_metric.items()
    ]


def training_pictures(panel: Panel) -> list[Picture]:
    """Learning curves and Fourier coefficients, as far as the records have them."""
    drawn = {
        ("curves", "Training curves: thick, the mean over seeds; thin, each seed."): plot_learning_curves(
            panel
        ),
        ("coefficients", "Fourier coefficients during training; dashed: the target's."): plot_coefficients(
            panel
        ),
    }
    return [
        Picture(f"{name}-{panel.name}", caption, figure)
        for (name, caption), figure in drawn.items()
        if figure is not None
    ]


def pattern_pictures(panel: Panel) -> list[Picture]:
    """Attention and σ(M) of each variant, of the first seed whose tensors are still there.

    Raises:
        RecordError: the tensors are corrupt, or not those of a run; names the file.
    """
    pictures = []
    for variant, runs in panel.variants.items():
        kept = [(path, record) for path, record in runs.items() if patterns_path(path).exists()]
        for path, record in kept[:1]:
            title = f"{panel.title}, {variant}, seed {record.seed}"
            figure = _draw_patterns(patterns_path(path), record, title)
            pictures.append(Picture(f"patterns-{panel.name}-{variant}", title, figure))
    return pictures


def _draw_patterns(path: Path, record: RunRecord, title: str) -> Figure:
    task = record.config.get("task")
    tokens = task.get("tokens") if isinstance(task, dict) else None
    tensors = read_tensors(path)
    try:
        return plot_patterns(tensors, tokens, title)
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from error
