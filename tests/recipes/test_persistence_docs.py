"""The published persistence tables are those of the records, and the records those of the recipe."""

import json
from pathlib import Path

import pytest
import torch

from maskprior.analysis.persistence import Target
from maskprior.analysis.persistence_log import Header, Log, Probe, log_path
from maskprior.experiments.run import record_path
from maskprior.tasks.gotu import two_parity
from recipes import persistence_docs
from recipes.blocks import fill_blocks
from recipes.persistence import PARTS
from recipes.reproduce import part_folder


def test_published_tables_are_those_of_the_records() -> None:
    text = persistence_docs.PAGE.read_text()
    filled = fill_blocks(text, persistence_docs.blocks())
    assert filled == text, "run `python -m recipes.persistence_docs`"
    assert "TODO" not in text


@pytest.mark.parametrize("part", list(PARTS))
def test_published_records_are_all_there_with_their_logs_and_no_others(part: str) -> None:
    folder = part_folder(persistence_docs.RESULTS, part)
    wanted = {record_path(Path(), config).name for config in PARTS[part]()}
    assert {path.name for path in folder.glob("*.json")} == wanted
    assert {path.name for path in folder.glob("*.jsonl")} == {log_path(Path(name)).name for name in wanted}


def test_a_pattern_like_another_structure_is_told() -> None:
    right = Target.of_structure(two_parity(3).structure())
    frames = [right.uniform[None], right.reference[None]]
    probes = [Probe(step, {}, frames={"attention": frame}) for step, frame in enumerate(frames)]
    log = Log(Header(right.structure[None], [1.0], [], []), probes)
    assert persistence_docs.towards(log, right, 0) == pytest.approx(0, abs=1e-6)
    assert persistence_docs.towards(log, right, -1) == pytest.approx(1)
    turned = Log(log.header, [Probe(0, {}, frames={"attention": torch.eye(4).roll(2, dims=1)[None]})])
    assert persistence_docs.towards(turned, right, 0) < 0


def test_the_cost_is_that_of_the_benchmark() -> None:
    figures = {
        "probe_ms": 3.0,
        "step_ms": 7.0,
        "percent_at_default_interval": 0.43,
        "percent_in_own_runs": 1.9,
    }
    sentence = persistence_docs.cost_sentence(json.dumps(figures))
    assert all(words in sentence for words in ("3.0 ms", "7.0 ms", "0.43 %", "1.9 %"))


def test_causes_are_means_over_seeds() -> None:
    text = "task,variant,seed,all,weights,features\nt,mask,0,0.1,0.5,0.2\nt,mask,1,0.3,0.7,0.2\n"
    assert persistence_docs.causes_table(text).rows == (("t", "mask", "20", "60", "20"),)
