"""The vision recipes: fair by construction, each trainable, their published tables true to their records."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from maskprior.experiments.progress import SilentReporter
from maskprior.experiments.record import RunRecord
from maskprior.experiments.run import record_path
from maskprior.experiments.streamed import build_streamed
from maskprior.experiments.sweep import Device, sweep
from maskprior.priors import VISION_PRIORS
from maskprior.vision.presets import (
    VisionRecipe,
    VisionRun,
    cpu_recipe,
    digits_recipe,
    gpu32_recipe,
    paper_recipe,
)
from recipes import vision, vision_tables
from recipes.blocks import fill_blocks
from recipes.reproduce import part_folder

ROOT = Path(__file__).parents[2]
RECIPES = {
    "digits": digits_recipe(),
    "cpu": cpu_recipe(),
    "gpu32": gpu32_recipe(),
    "paper": paper_recipe("somewhere"),
}
SEEDS = {"main": 5, "images": 3, "long": 5, "cifar100": 3, "digits": 3, "gpu32": 3, "paper": 1}


@pytest.fixture
def cifar_folder(tmp_path: Path) -> Path:
    """A tiny CIFAR-10 as class folders."""
    pixels = np.random.default_rng(0)
    for split, count in (("train", 9), ("test", 2)):
        for label in range(10):
            place = tmp_path / "cifar" / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                image = pixels.integers(256, size=(32, 32, 3), dtype=np.uint8)
                Image.fromarray(image).save(place / f"{number}.png")
    return tmp_path / "cifar"


@pytest.mark.parametrize("part", list(vision.COMPARISONS))
def test_parts_compare_all_priors_with_the_same_recipe(part: str) -> None:
    every = vision.PARTS[part]("" if part != "paper" else "somewhere")
    assert len({record_path(Path(), run) for run in every}) == len(every)
    runs = [run for run in every if run.label in VISION_PRIORS]
    assert {run.prior.name for run in runs} == set(VISION_PRIORS)
    assert len({(run.model, run.training) for run in runs}) == 1
    for size in {run.task.train_per_class for run in runs}:
        same = [run for run in runs if run.task.train_per_class == size]
        assert len({repr(run.task) for run in same}) == 1
        assert len(same) == len(VISION_PRIORS) * SEEDS[part]


def test_the_long_part_is_the_main_one_but_for_its_length() -> None:
    main, long = (vision.PARTS[part]("") for part in ("main", "long"))
    assert [run.task for run in long] == [run.task for run in main if run.label in VISION_PRIORS]
    (short, doubled) = (runs[0].training for runs in (main, long))
    assert doubled == replace(short, steps=2 * short.steps)


def test_beside_the_main_comparison_are_timms_own_weights_and_both_priors_together() -> None:
    runs = vision.PARTS["main"]("")
    beside = [run for run in runs if run.label not in VISION_PRIORS]
    assert {(run.label, run.prior.name) for run in beside} == {
        ("vanilla-learned-positions", "vanilla"),
        ("mimetic_mask", "mimetic_mask"),
    }
    assert len(beside) == 2 * SEEDS["main"]
    own, both = beside[:2]
    assert (own.model.positions, own.model.value_output) == ("learned", "default")
    (mask,) = [run for run in runs if run.label == "mask" and not run.seed]
    assert (both.model, both.training, both.prior.options) == (mask.model, mask.training, mask.prior.options)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_test_images_judge_and_training_images_are_held_out(recipe: VisionRecipe) -> None:
    assert recipe.task.judge == "test"
    assert recipe.task.validation_per_class >= 8
    assert recipe.judged_by("validation").task.judge == "validation"


@pytest.mark.parametrize("recipe", [digits_recipe(), cpu_recipe()], ids=["digits", "cpu"])
def test_priors_are_paired_in_their_other_weights(recipe: VisionRecipe) -> None:
    states = {prior: build_streamed(recipe.run(prior, 3)).state_dict() for prior in recipe.priors}
    for name, state in states.items():
        for key, value in states["vanilla"].items():
            if not (key.endswith("qkv.weight") and name in ("mimetic", "impulse")):
                assert torch.equal(state[key], value), (name, key)
            else:
                third = len(value) // 3
                assert torch.equal(state[key][2 * third :], value[2 * third :])
                assert not torch.equal(state[key][:third], value[:third])


def test_the_papers_recipe_is_as_stated() -> None:
    recipe = RECIPES["paper"]
    epoch = recipe.training.steps // 300
    assert recipe.training.warmup_steps == 50 * epoch
    assert (recipe.training.learning_rate, recipe.training.weight_decay) == (2e-3, 0.05)
    assert recipe.training.ema_decay > 0
    augment = recipe.task.augment
    assert (augment.mixup, augment.cutmix, augment.erasing, augment.operations) == (0.8, 1.0, 0.25, 2)
    assert (recipe.task.model.image_size, recipe.task.model.patch_size) == ((224, 224), 16)


def tiny(run: VisionRun) -> VisionRun:
    """The run with all its parts and next to no work."""
    task = replace(
        run.task,
        train_per_class=0,
        validation_per_class=1,
        workers=0,
        augment=replace(run.task.augment, group=8),
        model=replace(run.model, depth=1, width=24),
        layout=replace(run.task.layout, depth=1, layers=None),
    )
    training = replace(run.training, steps=2, batch_size=16, warmup_steps=1, probes=2)
    return replace(run, task=task, model=task.model, training=training)


@pytest.mark.parametrize("part", ["main", "gpu32", "paper"])
def test_a_part_runs_end_to_end_on_a_tiny_set(part: str, cifar_folder: Path, tmp_path: Path) -> None:
    if part == "paper":
        (cifar_folder / "test").rename(cifar_folder / "val")
        recipe = paper_recipe(str(cifar_folder), classes=10)
        model = replace(recipe.task.model, image_size=(32, 32))
        runs = replace(recipe, task=replace(recipe.task, model=model)).runs([0])
    else:
        runs = [run for run in vision.PARTS[part](str(cifar_folder)) if not run.seed]
    records = sweep([tiny(run) for run in runs], tmp_path / "runs", SilentReporter(), device=Device("cpu"))
    assert len(records) == len(runs) >= 4
    for record in records.values():
        assert record.metrics["images"] == 20
        assert 0 <= record.metrics["top1_low"] <= record.metrics["top1"] <= record.metrics["top1_high"] <= 1
    assert len({record.metrics["data_train"] for record in records.values()}) == 1


def test_data_that_a_part_has_no_use_for_is_refused() -> None:
    with pytest.raises(ValueError, match="expected no --data with part digits"):
        vision.PARTS["digits"]("somewhere")
    with pytest.raises(ValueError, match="expected --data FOLDER"):
        vision.PARTS["paper"]("")


def test_an_unknown_prior_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="among vanilla, mimetic, impulse, mask, got 'qk_svd'"):
        digits_recipe().run("qk_svd", 0)


def test_the_page_says_what_the_records_say() -> None:
    for name, filled in vision_tables.blocks().items():
        text = (ROOT / name).read_text()
        assert fill_blocks(text, filled) == text, f"{name}: run `python -m recipes.vision_tables`"


@pytest.mark.parametrize("part", vision_tables.TABLES)
def test_published_records_are_those_of_the_recipe(part: str) -> None:
    folder = part_folder(vision_tables.RESULTS, part)
    found = {path.name for path in folder.glob("*.json")}
    assert found in (set(), {record_path(Path(), run).name for run in vision.PARTS[part]("")})


def record(prior: str, seed: int, top1: float, per_class: int = 100) -> RunRecord:
    return RunRecord(
        task="cifar10",
        prior=prior,
        preset=f"cpu-{10 * per_class}-images",
        seed=seed,
        config={"variant": prior, "task": {"train_per_class": per_class}, "model": {"classes": 10}},
        versions={},
        commit="unknown",
        dirty=False,
        hardware={},
        seconds=60.0,
        metrics={"top1": top1, "loss": 1.5, "images_per_second": 700.0},
        curves={"step": [0, 5], "top1_validation": [0.1, top1]},
    )


def test_tables_pair_the_seeds() -> None:
    records = [record("mask", 0, 0.42), record("mask", 1, 0.46), record("vanilla", 0, 0.41)]
    records += [record("vanilla", 1, 0.41), record("vanilla", 0, 0.30, 50)]
    smaller, vanilla, mask = vision_tables.table(records).rows
    assert smaller[:3] == ("500", "vanilla", "1")
    assert vanilla[:2] == ("1,000", "vanilla")
    # Differences 1 and 5 points: mean 3, half width 12.706 · (4 / √2) / √2.
    assert vanilla[6:8] == ("+3.00 ± 25.41", "2 of 2")
    assert mask[6:8] == ("–", "–")
    assert mask[4:6] == ("42.0", "46.0")


def test_maps_are_drawn_from_a_runs_own_tensors(cifar_folder: Path, tmp_path: Path) -> None:
    run = tiny(vision.PARTS["main"](str(cifar_folder))[3])
    assert run.prior.name == "mask"
    (path,) = sweep([run], tmp_path / "runs", SilentReporter(), device=Device("cpu"))
    pictures = vision_tables.write_maps(path, [run], tmp_path)
    assert len(pictures) == 3
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    with pytest.raises(ValueError, match="expected a run of the part"):
        vision_tables.write_maps(path, [replace(run, seed=99)], tmp_path)


def test_the_search_changes_one_thing_at_a_time_and_never_opens_the_test_split() -> None:
    runs = vision.PARTS["search"]("")
    assert len({record_path(Path(), run) for run in runs}) == len(runs)
    assert len({run.label for run in runs}) == len(runs)
    assert {run.task.judge for run in runs} == {"validation"}
    for run in runs:
        if run.prior.name == "mask":
            assert run.model == runs[0].model
            assert replace(run.training, mask_learning_rate_factor=1.0) == runs[0].training
        else:
            assert run.training == runs[0].training
            assert run.task.layout == runs[0].task.layout


def test_the_code_on_the_page_runs() -> None:
    block, *_ = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "vision.md").read_text(), re.S | re.M)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/vision.md", "exec"), names)  # noqa: S102 -- our own documentation
    assert names["structure"].shape == (12, 3, 65, 65)
    assert names["convolution"].structure((8, 8), 0).shape == (9, 64, 64)
