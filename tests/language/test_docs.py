"""The code in docs/language.md runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

from maskprior.cli import main

DOCS = Path(__file__).parents[2] / "docs" / "language.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)


def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    texts = (f"Once there were {number} cats and {number % 7} dogs." for number in range(300))
    (tmp_path / "texts" / "stories.txt").write_text("\n\n".join(texts))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MASKPRIOR_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, str(DOCS), "exec"), names)  # noqa: S102 -- our own documentation
    assert len(BLOCKS) == 2
    assert names["logits"].shape == (1, 256, 512)
    (run,) = (tmp_path / "runs").glob("mine-toeplitz-*.json")
    capsys.readouterr()
    assert main(["generate", str(run), "Once", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("Once")
