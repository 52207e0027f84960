"""How figures look: fonts, one colour a prior, the bytes of a finished figure.

Colours are told apart by colour-blind readers (Okabe, Ito, "Color Universal Design", 2008).
"""

import io
import zlib
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from maskprior.experiments.files import write_atomically

PRIOR_COLORS = {
    "vanilla": "#5c5c5c",
    "qk_svd": "#e69f00",
    "qk_optimize": "#009e73",
    "mask": "#0072b2",
    "mimetic": "#cc79a7",
    "impulse": "#d55e00",
}
OTHER_COLORS = ("#56b4e9", "#000000", "#8c564b")
LINE_STYLES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)))
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "svg.hashsalt": "maskprior",
    "pdf.fonttype": 42,
}

styled = matplotlib.rc_context(_STYLE)
"""Decorator of functions that draw: they see this style, and leave matplotlib's as it was."""


def prior_color(prior: str) -> str:
    """The colour of a prior, the same in every figure; of an unknown one, by its name."""
    return PRIOR_COLORS.get(prior) or OTHER_COLORS[zlib.crc32(prior.encode()) % len(OTHER_COLORS)]


def lighten(color: str, share: float) -> str:
    """The colour mixed with a share of white in [0, 1], at most 0.8 of it."""
    red, green, blue = (channel + (1 - channel) * min(share, 0.8) for channel in to_rgb(color))
    return to_hex((red, green, blue))


@styled
def render(figure: Figure, form: str = "png") -> bytes:
    """The figure as PNG (150 dpi), SVG or PDF; the same bytes each time.

    Raises:
        ValueError: another format.
    """
    metadata: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    if form not in metadata:
        raise ValueError(f"expected a format among {', '.join(metadata)}, got {form!r}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=150, metadata=metadata[form])
    return buffer.getvalue()


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix, all or nothing.

    Raises:
        ValueError: the suffix is none of .png, .svg, .pdf.
        OSError: the folder can't be made or written.
    """
    write_atomically(path, render(figure, path.suffix.removeprefix(".")))
