"""Bands, summaries and the verdict, from logs written by hand."""

import math
from pathlib import Path

import pytest
import torch

from maskprior.analysis.persistence_log import Header, Log, LogWriter, Probe, log_path
from maskprior.analysis.persistence_tables import (
    Band,
    measure_band,
    panel_logs,
    persistence_table,
    retained_band,
    summarise_logs,
    verdict,
)
from maskprior.analysis.tables import Panel
from maskprior.experiments.files import RecordError

STEPS = (0, 10, 20)
LIMIT = 0.8


def make_log(attention: list[float], prior: list[float] | None = None) -> Log:
    """A log whose two layers have these shares of the limit, a little apart, at three steps."""
    probes = []
    for index, step in enumerate(STEPS):
        value = LIMIT * attention[index]
        measures = {
            "attention_advantage": [value + 0.01, value - 0.01],
            "attention_suppressed": [0.5 - value / 2, 0.5 - value / 2],
            "gradient_mask": [math.nan, 3.0],
        }
        if prior is not None:
            measures["prior_advantage"] = [LIMIT * prior[index]] * 2
        probes.append(Probe(step, measures))
    limits = [] if prior is None else [LIMIT, LIMIT]
    return Log(Header(torch.eye(3)[None], [LIMIT, LIMIT], limits), probes)


MASK = {0: make_log([0.9, 0.8, 0.72], [1.0, 0.99, 0.97]), 1: make_log([0.9, 0.9, 0.9], [1.0, 0.98, 0.95])}
FADING = {0: make_log([1.0, 0.25, 0.1]), 1: make_log([1.0, 0.75, 0.3])}
STAYING = {0: make_log([1.0, 0.96, 0.93])}
VANILLA = {0: make_log([0.01, 0.0, 0.1])}


def test_bands_are_over_the_steps_that_all_have() -> None:
    band = Band.of([([0, 10, 20], [1.0, math.nan, 3.0]), ([0, 10, 20, 30], [3.0, 5.0, 4.0, 1.0])])
    assert band == Band([0, 20], [2.0, 3.5], [1.0, 3.0], [3.0, 4.0])
    assert Band.of([([0], [math.nan])]) is None
    assert Band.of([]) is None


def test_measures_are_means_over_the_layers_that_have_them() -> None:
    band = measure_band(MASK, "gradient_mask")
    assert band is not None
    assert list(band.mean) == [3.0, 3.0, 3.0]
    assert measure_band(MASK, "gradient_query") is None


def test_retained_bands_are_relative_to_each_seeds_start() -> None:
    band = retained_band(MASK, "attention")
    assert band is not None
    assert list(band.low) == pytest.approx([1, 0.8 / 0.9, 0.8])
    assert list(band.high) == pytest.approx([1, 1, 1])
    assert retained_band(FADING, "prior") is None
    assert retained_band(VANILLA, "attention") is None


def test_summaries_and_their_table() -> None:
    found = summarise_logs("mask", MASK)
    assert list(found.prior) == pytest.approx([0.97, 0.95])
    assert list(found.attention) == pytest.approx([0.8, 1.0])
    assert list(found.start) == pytest.approx([0.9, 0.9])
    assert list(found.half_life) == [None, None]
    fading = summarise_logs("qk_svd", FADING)
    assert list(fading.half_life) == pytest.approx([10 * 0.5 / 0.75, 10 + 10 * 0.25 / 0.45])
    rows = persistence_table([found, fading, summarise_logs("vanilla", VANILLA)]).rows
    assert rows[0] == ("mask", "2", "90", "96.0 (95.0)", "90.0 (80.0)", "never", "14.0 → 17.6")
    assert rows[1][3:6] == ("–", "20.0 (10.0)", "12")
    assert rows[2][3:6] == ("–", "–", "–")


def test_the_verdict_says_what_was_lost_and_what_was_kept() -> None:
    sentences = verdict([summarise_logs("mask", MASK), summarise_logs("qk_svd", FADING)])
    assert sentences == [
        "mask kept 96 % of its structure in the prior’s own pattern (worst of 2 seeds: 95 %) and 90 % in the "
        "attention that the model really had, after 20 steps.",
        "qk_svd lost 80 % of its structure by step 20; half was gone by step 12.",
        "Every mask prior kept at least 90 % of its structure with every seed.",
        "But the prior is not all there is: scores outgrew it, and the attention fell below 90 % with some "
        "seed, in mask.",
        "No query-key prior kept 90 % of its structure with any seed.",
    ]


def test_the_verdict_names_exceptions() -> None:
    torn = {0: make_log([0.9, 0.9, 0.9], [1.0, 0.9, 0.5]), 1: make_log([0.9, 0.9, 0.9], [1.0, 1.0, 1.0])}
    found = [summarise_logs("mask-decay5", torn), summarise_logs("qk_svd-sgd", STAYING)]
    assert verdict(found)[1:] == [
        "qk_svd-sgd kept 93 % of its structure after 20 steps.",
        "Exception: below 90 % with some seed fell mask-decay5.",
        "Exception: at least 90 % with some seed was kept by qk_svd-sgd.",
    ]


def test_the_verdict_does_not_judge_what_had_nothing_to_lose() -> None:
    assert verdict([summarise_logs("vanilla", VANILLA)]) == [
        "vanilla began with next to no structure, so there was nothing to lose."
    ]


def test_worse_than_uniform_is_said_so() -> None:
    lost = {0: make_log([1.0, 0.2, -0.1])}
    assert verdict([summarise_logs("qk_svd", lost)])[0].startswith(
        "qk_svd lost all of its structure and more"
    )


def test_a_log_that_began_with_nothing_does_not_disturb_the_others() -> None:
    found = summarise_logs("qk_svd", {0: make_log([1.0, 0.4, 0.1]), 1: make_log([0.0, 0.0, 0.0])})
    assert list(found.attention) == pytest.approx([0.1])
    assert len(found.half_life) == 1


def test_logs_are_found_beside_records_and_corrupt_ones_named(tmp_path: Path) -> None:
    panel = Panel("task", "own", {"mask": {}})
    assert panel_logs(panel) == {}
    from maskprior.analysis.recorded_run import RunLabel
    from maskprior.experiments.record import RunRecord

    record = RunRecord(
        task="task",
        prior="mask",
        preset="own",
        seed=3,
        config=RunLabel(task="task").config(),
        versions={},
        commit="unknown",
        dirty=False,
        hardware={},
        seconds=1.0,
        metrics={},
        curves={"step": [0.0]},
    )
    path = tmp_path / "x.json"
    panel = Panel("task", "own", {"mask": {path: record}})
    assert panel_logs(panel) == {}
    LogWriter(log_path(path), STAYING[0].header)
    with pytest.raises(RecordError, match=r"x\.persistence\.jsonl: expected probes after the header"):
        panel_logs(panel)
    log_path(path).write_text("no log\n")
    with pytest.raises(RecordError, match=r"x\.persistence\.jsonl, line 1"):
        panel_logs(panel)
