"""Tables from records: order, comparability, and statistics against hand-computed ones."""

import math
import re
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskprior.analysis.tables import (
    Panel,
    Statistics,
    flatten,
    headline_metrics,
    make_panels,
    metric_values,
    records_frame,
    summarise,
    summary_frame,
    telling_monomials,
)
from maskprior.experiments.record import RunRecord

MakeRecord = Callable[..., RunRecord]


def by_path(*records: RunRecord) -> dict[Path, RunRecord]:
    return {Path(f"runs/{index}.json"): record for index, record in enumerate(records)}


def test_panels_variants_and_seeds_come_in_order(make_record: MakeRecord) -> None:
    shuffled = [
        ("mask", "mask-frozen"),
        ("zeta", "zeta"),
        ("qk_optimize", "qk_optimize"),
        ("mask", "mask"),
        ("vanilla", "vanilla"),
        ("alpha", "alpha"),
        ("qk_svd", "qk_svd"),
        ("mask", "alt-mask"),
    ]
    records = [
        make_record(task=task, prior=prior, variant=variant, seed=seed)
        for task in ("cyclic3", "2parity")
        for prior, variant in shuffled
        for seed in (11, 2)
    ]
    panels = make_panels(by_path(*records, make_record(preset="quick")))
    assert [panel.title for panel in panels] == ["2parity (cpu)", "2parity (quick)", "cyclic3 (cpu)"]
    assert panels[1].name == "2parity-quick"
    ordered = ["vanilla", "qk_svd", "qk_optimize", "mask", "alt-mask", "mask-frozen", "alpha", "zeta"]
    assert list(panels[0].variants) == list(panels[2].variants) == ordered
    assert [record.seed for record in panels[0].variants["mask"].values()] == [2, 11]
    assert len(panels[0].records()) == 16


def test_runs_that_differ_in_more_than_the_seed_are_not_averaged(make_record: MakeRecord) -> None:
    records = by_path(
        make_record(seed=0, training={"steps": 20, "rate": 0.5}),
        make_record(seed=1, training={"steps": 20, "rate": 0.25}),
    )
    with pytest.raises(
        ValueError,
        match=r"runs/0\.json and runs/1\.json are both 2parity \(cpu\), mask, but differ in "
        r"config\.training\.rate: 0\.5 and 0\.25; give one of them a variant or a folder of its own",
    ):
        make_panels(records)


def test_two_priors_under_one_variant_are_refused(make_record: MakeRecord) -> None:
    records = by_path(make_record(variant="best"), make_record(variant="best", prior="vanilla", seed=1))
    with pytest.raises(
        ValueError, match=r"both 2parity \(cpu\), best, but differ in prior: vanilla and mask"
    ):
        make_panels(records)


def test_a_run_that_is_there_twice_is_refused(make_record: MakeRecord) -> None:
    with pytest.raises(ValueError, match=r"0\.json and .*1\.json are both .*, mask, seed 3; remove one"):
        make_panels(by_path(make_record(seed=3), make_record(seed=3)))


def test_the_same_variant_may_differ_between_presets(make_record: MakeRecord) -> None:
    records = by_path(make_record(), make_record(preset="quick", training={"steps": 2}))
    assert len(make_panels(records)) == 2


def test_statistics_by_hand(make_record: MakeRecord) -> None:
    accuracies, seconds = (0.5, 0.75, 1.0, 0.75), (1.0, 2.0, 3.0, 6.0)
    records = [
        make_record(seed=seed, metrics={"accuracy": accuracy}, seconds=time)
        for seed, (accuracy, time) in enumerate(zip(accuracies, seconds, strict=True))
    ]
    (panel,) = make_panels(by_path(*records))
    (row,) = summarise(panel, ["accuracy"])
    # deviations −¼, 0, ¼, 0: variance (1/16 + 1/16) / 3
    assert astuple(row.metrics["accuracy"]) == pytest.approx((0.75, math.sqrt(1 / 24), 0.5, 1.0))
    # deviations −2, −1, 0, 3: variance 14 / 3
    assert astuple(row.seconds) == pytest.approx((3.0, math.sqrt(14 / 3), 1.0, 6.0))
    assert (row.task, row.preset, row.prior, row.variant, len(row.runs)) == (
        "2parity",
        "cpu",
        "mask",
        "mask",
        4,
    )


def test_one_seed_has_no_deviation() -> None:
    one = Statistics.of([0.25])
    assert (one.mean, one.low, one.high) == (0.25, 0.25, 0.25)
    assert math.isnan(one.std)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_failed_seed_is_not_skipped(bad: float) -> None:
    all_values = Statistics.of([0.25, bad, 0.75])
    assert all(map(math.isnan, (all_values.mean, all_values.std, all_values.low, all_values.high)))


def test_a_metric_that_a_record_lacks_counts_as_failed(make_record: MakeRecord) -> None:
    records = by_path(make_record(seed=0), make_record(seed=1, metrics={"loss": 1.0}))
    (row,) = summarise(make_panels(records)[0], ["accuracy"])
    assert math.isnan(row.metrics["accuracy"].mean)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=13))
def test_statistics_agree_with_numpy(values: list[float]) -> None:
    found = Statistics.of(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-9)
    assert found.std == pytest.approx(np.std(values, ddof=1), rel=1e-6, abs=1e-6)
    assert (found.low, found.high) == (min(values), max(values))


def test_nested_metrics_are_flattened_and_words_left_out(make_record: MakeRecord) -> None:
    metrics = {"loss": 2, "coefficients": {"x0*x1": 0.5}, "profile": [0.25, None], "note": "x", "done": True}
    values = metric_values(make_record(metrics=metrics))
    assert list(values) == ["loss", "coefficients.x0*x1", "profile.0", "profile.1"]
    assert values["loss"] == 2.0
    assert math.isnan(values["profile.1"])
    assert flatten({"a": {}, "b": [[1], {"c": None}]}) == {"b.0.0": 1, "b.1.c": None}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"loss_unseen": 1, "loss": 1, "accuracy": 1, "odd": 1}, ["accuracy", "loss", "loss_unseen"]),
        ({"token_accuracy": 1, "sequence_accuracy": 1}, ["sequence_accuracy", "token_accuracy"]),
        ({"loss": 1, "top5": 1, "top1": 1}, ["top1", "top5", "loss"]),
        ({"test_loss": 1, "test_perplexity": 9, "tokens": 5}, ["test_perplexity", "test_loss"]),
        ({"zeta": 1, "alpha": 2, "nested": {"x": 1}}, ["alpha", "zeta"]),
        ({"accuracy": 1, "mdi_distance": None}, ["accuracy"]),
        ({"note": "none"}, []),
    ],
)
def test_headline_metrics_are_those_that_exist(
    make_record: MakeRecord, metrics: dict[str, Any], expected: list[str]
) -> None:
    assert headline_metrics([make_record(metrics=metrics)]) == expected


def panel_of(record: RunRecord) -> Panel:
    return make_panels(by_path(record))[0]


def test_telling_monomials_are_where_target_and_shortcut_differ(make_record: MakeRecord) -> None:
    metrics = {
        "coefficients": {},
        "target_coefficients": {"x0": 0.5, "x1": 0.5, "x2": 0.5, "x0*x1*x2": -0.5, "1": 0.0, "x0*x1": 0.0},
        "mdi_coefficients": {"x0": 0.5, "x1": 0.5, "x2": 1.0, "x0*x1*x2": 0.0, "1": -0.5, "x0*x1": 0.5},
    }
    panel = panel_of(make_record(metrics=metrics))
    assert telling_monomials(panel, limit=9) == ["x2", "x0*x1*x2", "1", "x0*x1"]
    assert telling_monomials(panel, limit=1) == ["x2"]


def test_telling_monomials_without_mdi_or_target(make_record: MakeRecord) -> None:
    target = {"coefficients": {}, "target_coefficients": {"x0": 0.5, "x1": 0.0}, "mdi_coefficients": None}
    assert telling_monomials(panel_of(make_record(metrics=target)), limit=9) == ["x0"]
    grown = {"coefficients": {"x0": -0.75, "x1": 0.5}, "target_coefficients": None}
    assert telling_monomials(panel_of(make_record(metrics=grown)), limit=9) == ["x0", "x1"]
    assert telling_monomials(panel_of(make_record()), limit=9) == []


def test_the_frame_has_a_row_a_run_and_a_column_a_metric(make_record: MakeRecord) -> None:
    records = by_path(
        make_record(seed=1, metrics={"accuracy": 0.5, "coefficients": {"x0": 2.0}}),
        make_record(prior="vanilla", variant="vanilla-big", metrics={"accuracy": 0.25}),
    )
    frame = records_frame(records)
    identity = ["task", "preset", "prior", "variant", "seed", "seconds", "file"]
    assert list(frame.columns) == [*identity, "accuracy", "coefficients.x0"]
    assert frame["file"].tolist() == ["1.json", "0.json"]
    assert frame["variant"].tolist() == ["vanilla-big", "mask"]
    assert frame["accuracy"].tolist() == [0.25, 0.5]
    assert frame["coefficients.x0"].isna().tolist() == [True, False]


def test_the_summary_frame_agrees_with_a_grouping_of_the_frame(make_record: MakeRecord) -> None:
    records = by_path(
        *(
            make_record(
                prior=prior, seed=seed, metrics={"accuracy": (seed + 1) / (7 + len(prior))}, seconds=seed
            )
            for prior in ("mask", "vanilla", "qk_svd")
            for seed in range(5)
        )
    )
    rows = summarise(make_panels(records)[0], ["accuracy"])
    summary = summary_frame(rows).set_index("variant")
    assert summary.index.tolist() == ["vanilla", "qk_svd", "mask"]
    assert summary["seeds"].tolist() == [5, 5, 5]
    grouped = records_frame(records).groupby("variant")
    for column in ("accuracy", "seconds"):
        for statistic in ("mean", "std", "min", "max"):
            expected = grouped[column].agg(statistic)
            for variant in summary.index:
                assert summary.loc[variant, f"{column}_{statistic}"] == pytest.approx(expected[variant])


def test_messages_name_the_task_even_with_odd_characters(make_record: MakeRecord) -> None:
    records = by_path(make_record(task="a+b", seed=1), make_record(task="a+b", seed=1))
    with pytest.raises(ValueError, match=re.escape("a+b (cpu), mask, seed 1")):
        make_panels(records)
