"""The vision recipes: fair by construction, each trainable, their published tables true to their records."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from maskprior.experiments.progress import SilentReporter
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
from recipes import vision

ROOT = Path(__file__).parents[2]
RECIPES = {
    "digits": digits_recipe(),
    "cpu": cpu_recipe(),
    "gpu32": gpu32_recipe(),
    "paper": paper_recipe("somewhere"),
}
SEEDS = {"main": 5, "images": 3, "cifar100": 3, "digits": 3, "gpu32": 3, "paper": 1}


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


@pytest.mark.parametrize("part", list(vision.PARTS))
def test_parts_compare_all_priors_with_the_same_recipe(part: str) -> None:
    runs = vision.PARTS[part]("" if part != "paper" else "somewhere")
    assert {run.prior.name for run in runs} == set(VISION_PRIORS)
    assert len({record_path(Path(), run) for run in runs}) == len(runs)
    assert len({(run.model, run.training) for run in runs}) == 1
    for size in {run.task.train_per_class for run in runs}:
        same = [run for run in runs if run.task.train_per_class == size]
        assert len({repr(run.task) for run in same}) == 1
        assert len(same) == len(VISION_PRIORS) * SEEDS[part]


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
    assert len(records) == 4
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
