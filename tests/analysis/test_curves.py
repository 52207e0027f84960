"""Curves of a panel: which there are, and means over seeds that do not hide gaps."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from maskprior.analysis.curves import curve, mean_curve, measured_parts
from maskprior.analysis.tables import Panel, make_panels
from maskprior.experiments.record import RunRecord

MakeRecord = Callable[..., RunRecord]


def panel_of(make_record: MakeRecord, *names: str) -> Panel:
    record = make_record(curves={"step": [0.0], **{name: [1.0] for name in names}})
    return make_panels({Path("a.json"): record})[0]


@pytest.mark.parametrize(
    ("names", "quantities", "parts"),
    [
        (
            ("loss_unseen", "accuracy_seen", "loss_seen", "loss_train"),
            ["loss", "accuracy"],
            ["seen", "unseen"],
        ),
        (("loss_train",), ["loss"], ["train"]),
        (("top1_test", "perplexity_validation"), ["perplexity", "top1"], ["validation", "test"]),
        (
            ("sequence_accuracy_test", "loss_test", "accuracy_train", "loss_zero"),
            ["loss", "accuracy", "sequence_accuracy"],
            ["train", "test", "zero"],
        ),
        (("coefficient.x0", "learning_rate", "loss"), [], []),
    ],
)
def test_measured_parts_are_found_by_name_and_ordered(
    make_record: MakeRecord, names: tuple[str, ...], quantities: list[str], parts: list[str]
) -> None:
    assert measured_parts(panel_of(make_record, *names)) == (quantities, parts)


def test_a_curve_leaves_its_gaps_out(make_record: MakeRecord) -> None:
    record = make_record(curves={"step": [0, 3, 5], "loss_seen": [math.nan, 2.0, 1.0]})
    assert curve(record, "loss_seen") == ([3.0, 5.0], [2.0, 1.0])
    assert curve(record, "loss_unseen") == ([], [])


def test_the_mean_is_taken_where_every_seed_has_a_value(make_record: MakeRecord) -> None:
    records = [
        make_record(curves={"step": [0, 2, 4], "loss_seen": [4.0, 2.0, 1.0]}),
        make_record(curves={"step": [0, 2, 4], "loss_seen": [2.0, 1.0, math.nan]}),
        make_record(curves={"step": [0, 1, 2, 4], "loss_seen": [0.0, 9.0, 3.0, 1.0]}),
    ]
    assert mean_curve(records, "loss_seen") == ([0.0, 2.0], [2.0, 2.0])
    assert mean_curve(records, "loss_unseen") == ([], [])
