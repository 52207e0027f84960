"""Numbers and tables as text, cell by cell."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskprior.analysis.formatting import (
    TextTable,
    brief_table,
    coefficient_table,
    escape_latex,
    format_coefficient,
    format_number,
    format_percent,
    format_statistics,
    metric_label,
    runs_table,
    summary_caption,
    summary_table,
    to_latex,
    to_markdown,
)
from maskprior.analysis.tables import Statistics, make_panels, summarise
from maskprior.experiments.record import RunRecord

MakeRecord = Callable[..., RunRecord]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100.00"),
        (0.9998, "99.98"),
        (0.99994, "99.99"),
        (0.99996, "99.996"),
        (1 - 1 / 32768, "99.997"),
        (1 - 1 / 2**20, "99.9999"),
        (0.75, "75.00"),
        (0.0, "0.00"),
        (0.00001, "0.001"),
        (0.00123, "0.12"),
    ],
)
def test_percent(share: float, text: str) -> None:
    assert format_percent(share) == text


@given(st.floats(1e-13, 1 - 1e-13))
def test_percent_is_neither_0_nor_100_unless_it_is(share: float) -> None:
    text = format_percent(share)
    assert 0 < float(text) < 100
    assert float(text) == pytest.approx(100 * share, abs=0.00501)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0029, "0.002900"), (1.0, "1.000"), (2.30412e-5, "2.304e-05"), (-12.34567, "-12.35"), (0.0, "0.000")],
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(("value", "text"), [(-0.0004, "0.000"), (-0.5, "-0.500"), (0.99951, "1.000")])
def test_coefficients_have_three_decimals_and_no_negative_zero(value: float, text: str) -> None:
    assert format_coefficient(value) == text


def test_statistics_show_what_there_is() -> None:
    assert format_statistics(Statistics(0.9998, 0.0002, 0.9993, 1.0), format_percent) == "99.98 ± 0.02"
    assert format_statistics(Statistics(1.25e-5, 3.14e-6, 1e-5, 2e-5), format_number) == "1.250e-05 ± 3.1e-06"
    assert format_statistics(Statistics(0.75, math.nan, 0.75, 0.75), format_percent) == "75.00"
    assert format_statistics(Statistics.of([0.5, math.nan]), format_percent) == "–"


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("accuracy_unseen", "accuracy unseen (%)"),
        ("mdi_distance", "MDI distance"),
        ("coefficients.x0*x1", "coefficients.x0·x1"),
        ("top1", "top-1 (%)"),
        ("stop1", "stop1"),
        ("test_perplexity", "test perplexity"),
    ],
)
def test_labels(metric: str, label: str) -> None:
    assert metric_label(metric) == label


@pytest.fixture
def records(make_record: MakeRecord) -> dict[Path, RunRecord]:
    """vanilla: accuracy 0.5 and 0.75; mask: 1.0 and, without a record of seed 1, seed 4: 0.9998."""
    values = [("vanilla", 0, 0.5), ("vanilla", 1, 0.75), ("mask", 0, 1.0), ("mask", 4, 0.9998)]
    return {
        Path(f"runs/{prior}{seed}.json"): make_record(
            prior=prior, seed=seed, metrics={"accuracy": accuracy, "loss": 1 - accuracy}, seconds=seed + 1
        )
        for prior, seed, accuracy in values
    }


def test_summary_table_by_hand(records: dict[Path, RunRecord]) -> None:
    (panel,) = make_panels(records)
    metrics = ["accuracy", "loss"]
    table = summary_table(summarise(panel, metrics), metrics, several_panels=True)
    assert table == TextTable(
        header=("task", "preset", "variant", "seeds", "accuracy (%)", "min", "max", "loss", "s/run"),
        rows=(
            ("2parity", "cpu", "vanilla", "2", "62.50 ± 17.68", "50.00", "75.00", "0.3750 ± 0.18", "1.5"),
            ("2parity", "cpu", "mask", "2", "99.99 ± 0.01", "99.98", "100.00", "0.0001000 ± 0.00014", "3.0"),
        ),
        labels=3,
    )
    alone = summary_table(summarise(panel, metrics), metrics, several_panels=False)
    assert alone.header == table.header[2:]
    assert alone.rows == tuple(row[2:] for row in table.rows)


def test_brief_table_by_hand(records: dict[Path, RunRecord]) -> None:
    (panel,) = make_panels(records)
    table = brief_table(summarise(panel, ["accuracy", "loss"]), ["accuracy", "loss"])
    assert table.header == ("variant", "seeds", "accuracy (%)", "min", "loss", "s/run")
    assert table.rows[0] == ("vanilla", "2", "62.50", "50.00", "0.3750", "1.5")


def test_the_worst_seed_is_the_highest_where_lower_is_better(make_record: MakeRecord) -> None:
    records = {
        Path(f"{seed}.json"): make_record(seed=seed, metrics={"test_perplexity": value})
        for seed, value in enumerate((17.0, 23.0))
    }
    (panel,) = make_panels(records)
    table = brief_table(summarise(panel, ["test_perplexity"]), ["test_perplexity"])
    assert table.header == ("variant", "seeds", "test perplexity", "max", "s/run")
    assert table.rows == (("mask", "2", "20.00", "23.00", "2.0"),)
    assert summary_caption(["test_perplexity"]).endswith("Lower test perplexity is better.")
    assert "better" not in summary_caption(["top1", "loss"])
    assert "better" not in summary_caption([])


def test_runs_table_links_every_record(records: dict[Path, RunRecord]) -> None:
    (panel,) = make_panels(records)
    table = runs_table(panel, "accuracy", Path("runs/report"))
    assert table.header == ("accuracy (%)", "seed 0", "seed 1", "seed 4")
    assert table.rows == (
        ("vanilla", "[50.00](../vanilla0.json)", "[75.00](../vanilla1.json)", "–"),
        ("mask", "[100.00](../mask0.json)", "–", "[99.98](../mask4.json)"),
    )


def test_coefficient_table_by_hand(boolean_record: MakeRecord) -> None:
    records = {
        Path(f"{prior}{seed}"): boolean_record(prior, seed)
        for prior in ("vanilla", "mask")
        for seed in (0, 1)
    }
    table = coefficient_table(make_panels(records)[0])
    assert table == TextTable(
        header=("monomial", "target", "MDI", "vanilla", "mask"),
        rows=(
            ("x0·x1", "1.000", "0.000", "0.005 ± 0.007", "1.005 ± 0.007"),
            ("constant", "0.000", "-1.000", "-0.995 ± 0.007", "0.005 ± 0.007"),
            ("x0", "0.000", "1.000", "1.005 ± 0.007", "0.005 ± 0.007"),
            ("x1", "0.000", "1.000", "1.005 ± 0.007", "0.005 ± 0.007"),
        ),
        labels=1,
    )


def test_no_coefficients_no_table(make_record: MakeRecord) -> None:
    assert coefficient_table(make_panels({Path("a"): make_record()})[0]) is None


TABLE = TextTable(("name", "x (%)"), (("a|b_c", "75.00 ± 0.00"), ("d", "–")), labels=1)


def test_markdown_is_a_padded_pipe_table() -> None:
    assert to_markdown(TABLE) == (
        "| name   |        x (%) |\n"
        "| ------ | -----------: |\n"
        "| a\\|b_c | 75.00 ± 0.00 |\n"
        "| d      |            – |\n"
    )


def test_latex_is_a_booktabs_tabular() -> None:
    assert to_latex(TABLE) == (
        "\\begin{tabular}{lr}\n"
        "\\toprule\n"
        "name & x (\\%) \\\\\n"
        "\\midrule\n"
        "a|b\\_c & 75.00 $\\pm$ 0.00 \\\\\n"
        "d & -- \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
    )


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("2.304e-05 ± 3e+06", r"$2.304\cdot10^{-5}$ $\pm$ $3\cdot10^{6}$"),
        ("-0.5", "$-$0.5"),
        ("mask-lr5e-4", "mask-lr5e-4"),
        ("mask-2", "mask-2"),
        ("x0·x1", r"x0$\cdot$x1"),
        (
            "50 % of {a}_b & #1 $ ~ ^ \\",
            r"50 \% of \{a\}\_b \& \#1 \$ \textasciitilde{} \textasciicircum{} \textbackslash{}",
        ),
    ],
)
def test_latex_escapes(text: str, latex: str) -> None:
    assert escape_latex(text) == latex
