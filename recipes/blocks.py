"""Generated blocks of a Markdown file: the only way in which published numbers get into README and docs.

A block stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; what is between is rewritten.
"""

import re
from collections.abc import Mapping
from pathlib import Path


def fill_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """The text with the blocks of these names rewritten; other blocks stay as they are.

    Raises:
        ValueError: the text does not have one of the blocks exactly once.
    """
    for name, content in blocks.items():
        pattern = re.compile(
            rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.S
        )
        if len(pattern.findall(text)) != 1:
            raise ValueError(
                f"expected one block <!-- begin {name} --> … <!-- end {name} -->, got another number"
            )
        text = pattern.sub(lambda found, content=content: f"{found[1]}{content}\n{found[2]}", text)  # type: ignore[misc]
    return text


def fill_file(path: Path, blocks: Mapping[str, str]) -> None:
    """Rewrite the blocks of a file."""
    path.write_text(fill_blocks(path.read_text(), blocks))
