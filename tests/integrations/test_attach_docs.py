"""The code in docs/attach.md runs as it stands, block after block."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from maskprior.integrations import Attachment

DOCS = Path(__file__).parents[2] / "docs" / "attach.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in BLOCKS:
            exec(compile(block, str(DOCS), "exec"), names)  # noqa: S102 -- our own documentation
    assert len(BLOCKS) == 4
    assert names["text"].shape == (1, 10)
    assert Attachment.of(names["again"]).layers == ("layers.0.self_attn",)
    assert names["output"].shape == (2, 5, 32)


def test_relative_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", DOCS.read_text())
    assert links
    assert [link for link in links if not (DOCS.parent / link).exists()] == []
