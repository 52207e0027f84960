"""Pieces of HTML as strings, everything from outside escaped."""

import html
from collections.abc import Iterable, Sequence

from maskprior.analysis.formatting import TextTable

VOID = ("input", "link", "meta")


def element(tag: str, *children: str, **attributes: str) -> str:
    """``<tag a="…">children</tag>``; the children are HTML already, attribute values are escaped.

    A trailing underscore of an attribute's name falls away (``class_``), others become hyphens.
    """
    pairs = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items()
    )
    return f"<{tag}{pairs}>" if tag in VOID else f"<{tag}{pairs}>{''.join(children)}</{tag}>"


def text(words: str) -> str:
    """Plain words as HTML."""
    return html.escape(words, quote=False)


def paragraph(words: str) -> str:
    """A paragraph of plain words."""
    return element("p", text(words))


def table(content: TextTable, caption: str) -> str:
    """A table that scrolls sideways in a frame of its own where the page is narrow."""
    head = element("tr", *(_cell("th", name, index, content) for index, name in enumerate(content.header)))
    rows = (
        element("tr", *(_cell("td", cell, index, content) for index, cell in enumerate(row)))
        for row in content.rows
    )
    whole = element("table", element("thead", head), element("tbody", *rows))
    frame = element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return element("p", text(caption), class_="caption") + frame


def _cell(tag: str, words: str, index: int, content: TextTable) -> str:
    side = "words" if index < content.labels else "number"
    return element(tag, text(words), class_=side)


def bullets(items: Iterable[str]) -> str:
    """A list of HTML items."""
    return element("ul", *(element("li", item) for item in items))


def folded(title: str, *children: str) -> str:
    """Children behind a line that opens them."""
    return element("details", element("summary", text(title)), *children)


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """Names with a stroke each: (name, colour, SVG dash pattern)."""
    items = []
    for name, color, dash in entries:
        stroke = element(
            "line", x1="1", y1="6", x2="25", y2="6", stroke=color, stroke_width="3", stroke_dasharray=dash
        )
        swatch = element("svg", stroke, viewBox="0 0 26 12", class_="swatch", aria_hidden="true")
        items.append(element("li", swatch, text(name)))
    return element("ul", *items, class_="legend")
