"""A folder of records as a report: tables and figures of each panel, and where the numbers come from.

The report is made from the records (and, for the pictures of attention, the tensors beside them) alone, and
is the same, byte for byte, each time. What it says (:class:`Section`) is apart from how it is written
(Markdown here). Only writing one imports pandas and matplotlib; the summary in the terminal needs neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from maskprior.analysis.formatting import (
    TextTable,
    brief_table,
    coefficient_table,
    runs_table,
    summary_caption,
    summary_table,
    to_latex,
    to_markdown,
)
from maskprior.analysis.origins import describe_origins, describe_settings
from maskprior.analysis.tables import (
    Panel,
    headline_metrics,
    make_panels,
    records_frame,
    summarise,
    summary_frame,
)
from maskprior.experiments.files import prepare_folder, write_atomically
from maskprior.experiments.record import RunRecord, read_records

if TYPE_CHECKING:
    from maskprior.analysis.pictures import Picture


@dataclass(frozen=True)
class Section:
    """What is said of one panel.

    Attributes:
        title: heading.
        settings: sentences on what the runs share and where they differ.
        tables: (caption, table), the headline first.
        pictures: shown in full.
        patterns: pictures of attention, large, so folded away.
    """

    title: str
    settings: Sequence[str]
    tables: Sequence[tuple[str, TextTable]]
    pictures: Sequence["Picture"]
    patterns: Sequence["Picture"]


def write_report(folder: Path) -> list[Path]:
    """Read the folder's records and write ``report/`` in it; returns the files, ``report.md`` first.

    ``report.md`` has everything; ``table.md``, ``table.tex`` and ``table.csv`` (unrounded) have the headline
    table, ``runs.csv`` a row a run, and each figure is a PNG.

    Raises:
        RecordError: the folder has no records, or one of them or a file of patterns is corrupt.
        ValueError: runs that may not be averaged have the same variant.
        OSError: ``report/`` can't be written.
        ModuleNotFoundError: pandas or matplotlib is missing; says how to get them.
    """
    _check_extra()
    from maskprior.analysis.pictures import score_pictures
    from maskprior.analysis.style import save_figure

    records = read_records(folder)
    panels = make_panels(records)
    target = folder / "report"
    prepare_folder(target)
    scores = score_pictures(panels)
    sections = [make_section(panel, target) for panel in panels]
    pictures = [
        *scores,
        *(picture for section in sections for picture in (*section.pictures, *section.patterns)),
    ]
    texts = {
        "report.md": _to_document(folder, records, panels, scores, sections),
        **_headline_files(panels),
        "runs.csv": records_frame(records).to_csv(index=False),
    }
    for name, text in texts.items():
        write_atomically(target / name, text.encode())
    for picture in pictures:
        save_figure(picture.figure, target / f"{picture.name}.png")
    return [target / name for name in texts] + [target / f"{picture.name}.png" for picture in pictures]


def _check_extra() -> None:
    for name in ("matplotlib", "pandas"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"a report needs {name}: pip install 'maskprior[report]'", name=name)


def print_summary(records: Mapping[Path, RunRecord], console: Console) -> None:
    """Print the headline table of each panel, means over seeds, in 80 columns.

    Raises:
        ValueError: runs that may not be averaged have the same variant.
    """
    for panel in make_panels(records):
        metrics = headline_metrics(panel.records())
        table = brief_table(summarise(panel, metrics), metrics)
        shown = Table(title=panel.title, title_justify="left", box=box.SIMPLE, padding=0)
        for index, name in enumerate(table.header):
            side: Literal["left", "right"] = "left" if index < table.labels else "right"
            shown.add_column(Text(name), justify=side, overflow="fold")
        for row in table.rows:
            shown.add_row(*map(Text, row))
        console.print(shown)


def make_section(panel: Panel, target: Path) -> Section:
    """Tables and pictures of one panel, for a report in the folder ``target``."""
    from maskprior.analysis.pictures import pattern_pictures, training_pictures

    metrics = headline_metrics(panel.records())
    rows = summarise(panel, metrics)
    tables = [
        (
            summary_caption(metrics),
            summary_table(rows, metrics, several_panels=False),
        )
    ]
    tables += [
        ("Every run; a link to its record.", runs_table(panel, metric, target)) for metric in metrics[:1]
    ]
    coefficients = coefficient_table(panel)
    if coefficients is not None:
        tables.append(
            ("Fourier coefficients that tell the target from its shortcut (the MDI).", coefficients)
        )
    return Section(
        panel.title, describe_settings(panel), tables, training_pictures(panel), pattern_pictures(panel)
    )


def _headline_files(panels: Sequence[Panel]) -> dict[str, str]:
    metrics = headline_metrics(record for panel in panels for record in panel.records())
    rows = [row for panel in panels for row in summarise(panel, metrics)]
    table = summary_table(rows, metrics, several_panels=True)
    return {
        "table.md": to_markdown(table),
        "table.tex": to_latex(table),
        "table.csv": summary_frame(rows).to_csv(index=False),
    }


def _to_document(
    folder: Path,
    records: Mapping[Path, RunRecord],
    panels: Sequence[Panel],
    scores: Sequence["Picture"],
    sections: Sequence[Section],
) -> str:
    count = f"{len(records)} runs of {len(panels)} task{'s' * (len(panels) > 1)}"
    parts = [
        f"# Report of {folder.resolve().name}\n",
        f"{count}, read from the records in the folder above.\n",
    ]
    parts += map(_to_image, scores)
    for section in sections:
        parts += _to_markdown_section(section)
    parts += ["## Provenance\n", *describe_origins(panels)]
    return "\n".join(parts)


def _to_markdown_section(section: Section) -> list[str]:
    parts = [f"## {section.title}\n", *(f"{line}\n" for line in section.settings)]
    for caption, table in section.tables:
        parts += [f"{caption}\n", to_markdown(table)]
    parts += map(_to_image, section.pictures)
    if section.patterns:
        parts += [
            "<details>\n<summary>Attention and σ(M) before and after training</summary>\n",
            "Mean over heads; the colours follow the square root, so that small weights can be seen.\n",
            *map(_to_image, section.patterns),
            "</details>\n",
        ]
    return parts


def _to_image(picture: "Picture") -> str:
    return f"![{picture.caption}]({picture.name}.png)\n\n*{picture.caption}*\n"
