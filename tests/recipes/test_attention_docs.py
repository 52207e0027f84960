"""The published attention tables are those of the committed rows."""

import pytest

from recipes import attention_docs
from recipes.blocks import fill_blocks


def test_published_tables_are_those_of_the_rows() -> None:
    text = attention_docs.PAGE.read_text()
    filled = fill_blocks(text, attention_docs.blocks())
    assert filled == text, "run `python -m recipes.attention_docs`"
    readme = attention_docs.README.read_text()
    assert fill_blocks(readme, attention_docs.readme_blocks()) == readme


@pytest.mark.parametrize("threads", list(attention_docs.FILES))
def test_rows_are_of_float32_wall_time_on_the_stated_threads(threads: int) -> None:
    rows = attention_docs.read_rows(threads)
    assert {(row["threads"], row["dtype"], row["clock"]) for row in rows} == {(threads, "float32", "wall")}
    shapes = set(attention_docs.by_shape(rows))
    assert {shape for targets in attention_docs.TARGETS.values() for shape in targets} <= shapes


def test_a_missed_target_is_said() -> None:
    shapes = {shape for targets in attention_docs.TARGETS.values() for shape in targets}
    common = {"ratio_to_no_mask": 1.0, "product_gflops": 100, "total_ms": 500}
    rows = [
        {"shape": list(shape), "method": method, **common}
        for shape in shapes
        for method in (*attention_docs.TARGETS, "sdpa_no_mask")
    ]
    lines = {line[:2]: line[2:] for line in attention_docs.target_table({1: rows}).rows}
    assert lines["native", "(8, 8, 512, 64)"] == ("0.30", "≤ 0.95", "1.00 missed")
    assert lines["native", "(2, 8, 1024, 64)"] == ("0.30", "≤ 1.30", "1.00 met")
