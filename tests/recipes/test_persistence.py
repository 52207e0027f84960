"""The persistence recipe: what is compared differs in one thing, and reversal really is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from maskprior.experiments.run import record_path
from maskprior.tasks.boolean import BooleanTask
from recipes.persistence import (
    LEFT_OUT,
    PARTS,
    SEEDS,
    TASKS,
    Reproduce,
    main_table,
    optimizers,
    reproduce,
    wrong,
)
from recipes.reproduce import part_folder


@pytest.mark.parametrize("part", PARTS)
def test_all_runs_are_different_and_have_the_same_number_of_seeds(part: str) -> None:
    configs = PARTS[part]()
    assert len({record_path(Path(), config) for config in configs}) == len(configs)
    rows: dict[tuple[str, str], list[int]] = {}
    for config in configs:
        rows.setdefault((config.task.name, config.label), []).append(config.seed)
    assert all(sorted(seeds) == list(range(SEEDS)) for seeds in rows.values())


def test_decay_of_the_mask_logits_is_never_an_accident() -> None:
    for config in [c for part in PARTS.values() for c in part()]:
        decayed = config.training.mask_weight_decay > 0
        assert decayed == any(word in config.label for word in ("decay", "coupled"))


def test_only_the_optimiser_changes_between_optimisers() -> None:
    (plain,) = [c for c in main_table(1) if (c.task.name, c.label) == ("2parity", "mask")]
    for config in optimizers(1):
        if config.task.name == "2parity":
            kept = ("steps", "batch_size", "schedule", "warmup_steps", "probes", "precision")
            assert all(getattr(config.training, name) == getattr(plain.training, name) for name in kept)
            assert config.model == plain.model


def test_every_task_has_every_variant_but_those_that_are_left_out() -> None:
    labels = {task: {c.label for c in optimizers(1) if c.task.name == task} for task in TASKS}
    for task in TASKS:
        assert labels["majority3"] - labels[task] == set(LEFT_OUT.get(task, ()))


def test_a_wrong_structure_is_the_right_one_in_another_place() -> None:
    right = {c.task.name: c.task.structure() for c in main_table(1)}
    for config in wrong(1):
        wanted, got = right[config.task.name], config.task.structure()
        assert not torch.equal(got, wanted)
        assert torch.equal(got.sum(-1).sort().values, wanted.sum(-1).sort().values)
        assert isinstance(config.task, BooleanTask)
        assert float(got[1, 2]) == 0  # x0 no longer reads x1


def test_parts_have_folders_of_their_own() -> None:
    out = Path("results/persistence")
    assert [part_folder(out, part).name for part in PARTS] == [
        "persistence",
        "persistence-optimizers",
        "persistence-wrong",
        "persistence-scale",
    ]


def test_a_part_runs_and_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = [
        replace(
            config, training=replace(config.training, steps=2, probes=2), model=replace(config.model, depth=1)
        )
        for config in wrong(1)
        if config.prior.name == "mask"
    ]
    monkeypatch.setitem(PARTS, "wrong", lambda: tiny)
    command = Reproduce(out=tmp_path / "p", part="wrong", task="2parity")
    reproduce(command)
    files = sorted((tmp_path / "p-wrong").glob("*.json"))
    assert len(files) == 1
    times = [file.stat().st_mtime_ns for file in files]
    reproduce(command)
    assert [file.stat().st_mtime_ns for file in files] == times
