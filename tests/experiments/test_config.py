"""Run configurations: choices checked, JSON complete, presets fair."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from maskprior.experiments.config import PriorConfig, RunConfig, TrainingConfig
from maskprior.experiments.presets import PRESETS, find_recipe, make_configs, task_names
from maskprior.experiments.run import record_path
from maskprior.priors import PRIORS


def config() -> RunConfig:
    return make_configs("quick", "2parity", ["mask"], [3])[0]


def test_json_holds_everything_that_decides_the_outcome() -> None:
    value = json.loads(json.dumps(config().to_json()))
    assert value["variant"] == "mask"
    assert value["task"]["name"] == "2parity"
    assert value["training"]["steps"] == config().training.steps
    assert value["model"]["length"] == config().model.length


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"preset": "cpu"},
        {"variant": "other"},
        {"prior": PriorConfig("vanilla")},
        {"prior": PriorConfig("mask", {"learnable": False})},
        {"training": TrainingConfig(steps=1, learning_rate=1.0)},
        {"training": replace(config().training, mask_weight_decay=0.1)},
        {"model": replace(config().model, depth=1)},
        {"task": find_recipe("quick", "2parity").task(5)},
    ],
)
def test_any_change_is_another_record(change: dict[str, object]) -> None:
    assert record_path(Path(), replace(config(), **change)) != record_path(Path(), config())  # type: ignore[arg-type]


def test_the_same_configuration_is_the_same_record() -> None:
    assert record_path(Path("a"), config()) == record_path(Path("a"), config())


def test_an_option_of_experiments_does_not_rename_ordinary_runs() -> None:
    assert "mask_weight_decay" not in config().to_json()["training"]


def test_unknown_prior_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=r"among vanilla, .*mask, .*got 'masc'"):
        PriorConfig("masc")


def test_unknown_option_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=r"options of prior 'mask' among .*learnable.*, got frozen"):
        PriorConfig("mask", {"frozen": True})


@pytest.mark.parametrize("preset", list(PRESETS))
def test_presets_treat_all_priors_alike(preset: str) -> None:
    for task in PRESETS[preset]:
        configs = make_configs(preset, task, list(PRIORS), [0, 1])
        assert len(configs) == 2 * len(PRIORS)
        assert len({(c.model, c.training) for c in configs}) == 1
        assert [c.seed for c in configs] == [0] * len(PRIORS) + [1] * len(PRIORS)


def test_dimension_can_be_chosen() -> None:
    assert make_configs("quick", "majority3", ["mask"], [0], dimension=6)[0].model.length == 6


@pytest.mark.parametrize(
    ("preset", "task", "message"),
    [
        ("huge", "2parity", "preset among quick, cpu, paper"),
        ("cpu", "3parity", "task of preset cpu among 2parity, "),
    ],
)
def test_unknown_names_list_the_choices(preset: str, task: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_recipe(preset, task)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_tasks_of_a_preset_are_a_kind_or_all(preset: str) -> None:
    boolean, arithmetic = task_names("paper"), task_names("paper-budget")
    assert task_names() == [*boolean, *arithmetic]
    assert task_names(preset) in (boolean, arithmetic, task_names())
