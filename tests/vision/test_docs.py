"""The code in docs/vision.md runs as it stands, but for fewer updates."""

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

DOCS = Path(__file__).parents[2] / "docs" / "vision.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
BUDGET = "steps=200, warmup_steps=20)"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for split, count in (("train", 30), ("test", 2)):
        for shade, name in enumerate(("cat", "dog", "owl")):
            (tmp_path / "animals" / split / name).mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (48, 32), (80 * shade, number, 0))
                image.save(tmp_path / "animals" / split / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_runs(here: Path) -> None:
    names: dict[str, Any] = {}
    layout, own = BLOCKS
    exec(compile(layout, str(DOCS), "exec"), names)  # noqa: S102 -- our own documentation
    assert names["structure"].shape == (12, 3, 65, 65)
    assert len(names["convolution"].heads) == 9
    assert BUDGET in own
    short = own.replace(BUDGET, "steps=5, warmup_steps=1)").replace("range(3)", "range(1)")
    exec(compile(short, str(DOCS), "exec"), names)  # noqa: S102 -- our own documentation
    found = {path.name.rsplit("-", maxsplit=2)[0] for path in (here / "runs").glob("*.json")}
    assert found == {"animals-vanilla", "animals-mimetic", "animals-impulse", "animals-mask"}
