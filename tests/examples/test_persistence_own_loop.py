"""The example of a loop of one's own runs, and adds no more than five lines."""

import importlib.util
from pathlib import Path

from maskprior.experiments.record import read_records

EXAMPLE = Path(__file__).parents[2] / "examples" / "persistence_own_loop.py"


def test_it_makes_a_page(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("persistence_own_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.main(tmp_path, steps=60)
    words = page.read_text()
    assert "of its structure in the prior’s own pattern" in words
    assert "Attention over time" in words
    (record,) = read_records(tmp_path).values()
    assert record.metrics["prior_retained"] > 0.9
    assert record.curves["loss_train"][-1] < 0.7 * record.curves["loss_train"][1]


def test_it_adds_at_most_five_lines() -> None:
    marked = [line for line in EXAMPLE.read_text().splitlines() if line.endswith("# ←") or "# ← if" in line]
    assert 1 <= len(marked) <= 5
    assert all("persistence_probe" in line or "probe" in line or "html" in line for line in marked)
