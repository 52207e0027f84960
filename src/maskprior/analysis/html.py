"""A folder of records as one HTML page: no network, one file, legible on a phone.

Everything comes from the records and the persistence logs beside them.
"""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from maskprior.analysis.formatting import coefficient_table, summary_caption, summary_table
from maskprior.analysis.html_elements import bullets, element, folded, paragraph, table, text
from maskprior.analysis.html_sections import (
    degrees_section,
    learning_section,
    patterns_section,
    persistence_section,
    variant_looks,
    verdict_box,
)
from maskprior.analysis.origins import describe_origins, describe_settings
from maskprior.analysis.persistence_tables import panel_logs
from maskprior.analysis.tables import Panel, headline_metrics, make_panels, summarise
from maskprior.experiments.files import write_atomically
from maskprior.experiments.record import read_records

LARGEST_PAGE = 5_000_000
FRAMES = (7, 3, 2, 0)
"""Moments of training at which attention is pictured: the first of these with which the page fits."""


def write_html(folder: Path) -> Path:
    """Write ``report/report.html`` in a folder of records; the same bytes each time, less than 5 MB.

    Raises:
        RecordError: the folder has no records, or one of them or a log is corrupt.
        ValueError: runs that may not be averaged have the same variant, or there are too many for one page.
        OSError: the file cannot be written.
    """
    panels = make_panels(read_records(folder))
    pages = (make_page(folder.resolve().name, panels, frames).encode() for frames in FRAMES)
    page = next((page for page in pages if len(page) < LARGEST_PAGE), None)
    if page is None:
        raise ValueError(
            f"expected records whose page has less than {LARGEST_PAGE} bytes; report fewer at once"
        )
    path = folder / "report" / "report.html"
    write_atomically(path, page)
    return path


def make_page(name: str, panels: Sequence[Panel], frames: int = FRAMES[0]) -> str:
    """The whole document, with pictures of attention at so many moments of training.

    Raises:
        RecordError: a log is corrupt.
    """
    runs = sum(len(panel.records()) for panel in panels)
    count = f"{runs} runs of {len(panels)} task{'s' * (len(panels) > 1)}."
    links = (element("a", text(panel.title), href=f"#{_identity(panel)}") for panel in panels)
    body = element(
        "main",
        element("h1", text(f"Report of {name}")),
        element("p", text(count), class_="lead"),
        element("nav", bullets(links), aria_label="tasks") if len(panels) > 1 else "",
        *(_section(panel, frames) for panel in panels),
        element("h2", "Where the numbers come from"),
        element("div", bullets(map(_origin, filter(None, describe_origins(panels)))), class_="provenance"),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", text(f"maskprior: {name}")),
        element("link", rel="icon", href="data:,"),
        element("style", _asset("report.css")),
    )
    script = element("script", _asset("report.js"))
    return f"<!DOCTYPE html>\n{element('html', head, element('body', body, script), lang='en')}\n"


def _asset(name: str) -> str:
    return "\n" + files("maskprior.analysis").joinpath(name).read_text(encoding="utf-8")


def _identity(panel: Panel) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", panel.name)


def _origin(line: str) -> str:
    """A bullet of Markdown as HTML."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", text(line.removeprefix("- ")))


def _section(panel: Panel, frames: int) -> str:
    looks, logs = variant_looks(panel), panel_logs(panel)
    metrics = headline_metrics(panel.records())
    headline = summary_table(summarise(panel, metrics), metrics, several_panels=False)
    coefficients = coefficient_table(panel)
    parts = [
        verdict_box(logs),
        table(headline, f"Final metrics. {summary_caption(metrics)}"),
        learning_section(panel, looks),
        persistence_section(logs, looks),
        patterns_section(logs, _identity(panel), frames) if frames else "",
        degrees_section(panel),
        table(coefficients, "Fourier coefficients that tell the target from its shortcut (the MDI).")
        if coefficients
        else "",
        folded("Settings", *map(paragraph, describe_settings(panel))),
    ]
    return element("section", element("h2", text(panel.title)), *parts, id=_identity(panel))
