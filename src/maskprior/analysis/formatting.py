"""Numbers and tables as people read them: in the terminal, in Markdown, in LaTeX."""

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from maskprior.analysis.tables import Panel, Row, Statistics, metric_values, summarise, telling_monomials

MISSING = "–"
MONOMIALS = 12


@dataclass(frozen=True)
class TextTable:
    """Finished cells.

    Attributes:
        header: names of the columns.
        rows: as long as the header each.
        labels: how many columns from the left hold words rather than numbers.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int


def is_share(metric: str) -> bool:
    """Whether a metric lies in [0, 1] and is shown in percent: accuracies and ``top1``."""
    return re.search(r"accuracy|(?<![a-z])top\d", metric) is not None


def is_lower_better(metric: str) -> bool:
    """Whether a smaller value is a better one: losses and perplexities."""
    return re.search(r"loss|perplexity", metric) is not None


def format_percent(share: float) -> str:
    """Percent with two decimals, or as many as it takes not to round to 0 or 100 what is neither."""
    for decimals in range(2, 17):
        text = f"{100 * share:.{decimals}f}"
        if float(text) not in (0, 100) or share in (0, 1):
            return text
    return text


def format_number(value: float) -> str:
    """Four significant digits."""
    return f"{value:#.4g}"


def format_coefficient(value: float) -> str:
    """Three decimals, without a negative zero."""
    return f"{round(value, 3) + 0.0:.3f}"


def _format(value: float, form: Callable[[float], str]) -> str:
    return MISSING if math.isnan(value) else form(value)


def format_statistics(values: Statistics, form: Callable[[float], str]) -> str:
    """mean ± standard deviation; the mean alone of one seed."""
    mean = _format(values.mean, form)
    return mean if math.isnan(values.std) else f"{mean} ± {_spread(values, form)}"


def _spread(values: Statistics, form: Callable[[float], str]) -> str:
    # Two digits say all about a standard deviation of ten seeds.
    return f"{values.std:.2g}" if form is format_number else form(values.std)


def metric_format(metric: str) -> Callable[[float], str]:
    """How a metric's values are written."""
    return format_percent if is_share(metric) else format_number


def metric_label(metric: str) -> str:
    """``accuracy_unseen`` → ``accuracy unseen (%)``."""
    words = metric.replace("mdi", "MDI").replace("_", " ").replace("*", "·")
    words = re.sub(r"(?<![a-z])top(\d)", r"top-\1", words)
    return f"{words} (%)" if is_share(metric) else words


def summary_caption(metrics: Sequence[str]) -> str:
    """What the headline table shows, and which way its first metric is good if that is downwards."""
    caption = "Mean ± standard deviation over seeds."
    if not metrics or not is_lower_better(metrics[0]):
        return caption
    return f"{caption} Lower {metric_label(metrics[0])} is better."


def summary_table(rows: Sequence[Row], metrics: Sequence[str], *, several_panels: bool) -> TextTable:
    """The headline table: a variant a row, mean ± std of the metrics, least and greatest of the first.

    Args:
        rows: from :func:`~maskprior.analysis.tables.summarise`.
        metrics: the columns, the most important first.
        several_panels: with task and preset as first columns.
    """
    panel_header = ("task", "preset") if several_panels else ()
    header = [*panel_header, "variant", "seeds"]
    for metric in metrics:
        header += [metric_label(metric), *(("min", "max") if metric == metrics[0] else ())]
    lines = []
    for row in rows:
        line = [row.task, row.preset] if several_panels else []
        line += [row.variant, str(len(row.runs))]
        for metric in metrics:
            values, form = row.metrics[metric], metric_format(metric)
            line.append(format_statistics(values, form))
            line += [_format(end, form) for end in (values.low, values.high) if metric == metrics[0]]
        lines.append((*line, f"{row.seconds.mean:.1f}"))
    return TextTable((*header, "s/run"), tuple(lines), labels=len(panel_header) + 1)


def brief_table(rows: Sequence[Row], metrics: Sequence[str]) -> TextTable:
    """The headline table for a terminal of 80 columns: means of four metrics, the worst seed of the first."""
    shown = list(metrics[:4])
    worst = "max" if shown and is_lower_better(shown[0]) else "min"
    header = ["variant", "seeds"]
    for metric in shown:
        header += [metric_label(metric), *((worst,) if metric == shown[0] else ())]
    lines = []
    for row in rows:
        line = [row.variant, str(len(row.runs))]
        for metric in shown:
            values, form = row.metrics[metric], metric_format(metric)
            end = values.high if worst == "max" else values.low
            line += [_format(values.mean, form), *([_format(end, form)] if metric == shown[0] else [])]
        lines.append((*line, f"{row.seconds.mean:.1f}"))
    return TextTable((*header, "s/run"), tuple(lines), labels=1)


def runs_table(panel: Panel, metric: str, links_from: Path) -> TextTable:
    """Every run's metric, a variant a row, a seed a column, each a Markdown link to its record.

    Args:
        panel: the runs.
        metric: shown in the cells.
        links_from: folder that the links are relative to.
    """
    seeds = sorted({record.seed for record in panel.records()})
    lines = []
    for variant, runs in panel.variants.items():
        cells = dict.fromkeys(seeds, MISSING)
        for path, record in runs.items():
            value = _format(metric_values(record).get(metric, math.nan), metric_format(metric))
            cells[record.seed] = f"[{value}]({Path(os.path.relpath(path, links_from)).as_posix()})"
        lines.append((variant, *cells.values()))
    return TextTable((metric_label(metric), *(f"seed {seed}" for seed in seeds)), tuple(lines), labels=1)


def coefficient_table(panel: Panel) -> TextTable | None:
    """Fourier coefficients that tell the target from its shortcut: target, MDI, mean ± std of each variant.

    None where the records have no coefficients.
    """
    monomials = telling_monomials(panel, MONOMIALS)
    if not monomials:
        return None
    flat = [metric_values(record) for record in panel.records()]
    rows = summarise(panel, [f"coefficients.{name}" for name in monomials])
    lines = []
    for name in monomials:
        known = [
            next((values[key] for values in flat if key in values), math.nan)
            for key in (f"target_coefficients.{name}", f"mdi_coefficients.{name}")
        ]
        cells = [_format(value, format_coefficient) for value in known]
        cells += [format_statistics(row.metrics[f"coefficients.{name}"], format_coefficient) for row in rows]
        lines.append((monomial_label(name), *cells))
    return TextTable(("monomial", "target", "MDI", *panel.variants), tuple(lines), labels=1)


def monomial_label(name: str) -> str:
    """``x0*x1`` → ``x0·x1``; ``1`` → ``constant``."""
    return "constant" if name == "1" else name.replace("*", "·")


def to_markdown(table: TextTable) -> str:
    """A pipe table, padded so that it reads well as plain text too."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (table.header, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    rule = [
        "-" * width if index < table.labels else "-" * (width - 1) + ":" for index, width in enumerate(widths)
    ]
    lines = [
        [
            cell.ljust(width) if index < table.labels else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in cells
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], rule, *lines[1:]))


_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "–": "--",
}


def escape_latex(text: str) -> str:
    """Text for LaTeX; numbers get a true minus and powers of ten."""
    text = "".join(_LATEX.get(sign, sign) for sign in text)
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d+)", lambda m: rf"${m[1]}\cdot10^{{{int(m[2])}}}$", text)
    return re.sub(r"(?<![\w^{-])-(?=[\d$])", "$-$", text)


def to_latex(table: TextTable) -> str:
    r"""A ``tabular`` for ``\usepackage{booktabs}``."""
    columns = "l" * table.labels + "r" * (len(table.header) - table.labels)
    header, *lines = (" & ".join(map(escape_latex, row)) + r" \\" for row in (table.header, *table.rows))
    body = [r"\toprule", header, r"\midrule", *lines, r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}", ""])
