"""What was tried on CIFAR-10, judged by held-out training images: the test split is never opened.

Run by ``python -m recipes.vision --part search --data CIFAR10``; each run has half the main part's updates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from maskprior.experiments.config import Option, PriorConfig
from maskprior.vision.layout import Layout
from maskprior.vision.presets import NEIGHBOURS, VisionRecipe, VisionRun, cpu_recipe

HELD_OUT = 200


@dataclass(frozen=True)
class Tried:
    """A mask prior: structure of each head, layers that have it, options, learning-rate factor of M."""

    heads: tuple[str, ...]
    layers: int | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    rate: float = 1.0


NEAR, FREE = "near 1", "free"
MASKS: dict[str, Tried] = {
    "near": Tried((NEAR,) * 4),
    "near-weak": Tried((NEAR,) * 4, options={"suppressed_logit": -4.0}),
    "near-weaker": Tried((NEAR,) * 4, options={"suppressed_logit": -2.0}),
    "near-middle": Tried((NEAR,) * 4, options={"suppressed_logit": -3.0}),
    "near-weaker-two-free": Tried((NEAR, NEAR, FREE, FREE), options={"suppressed_logit": -2.0}),
    "near-two-free": Tried((NEAR, NEAR, FREE, FREE)),
    "near-first-layers": Tried((NEAR,) * 4, layers=2),
    "near-fast": Tried((NEAR,) * 4, options={"suppressed_logit": -4.0}, rate=10.0),
    "decay": Tried(("decay 0.5", "decay 1", "decay 2", FREE)),
    "decay-wide": Tried(("decay 1", "decay 1.5", "decay 2", "decay 3")),
    "decay-weak": Tried(("decay 0.5", "decay 1", "decay 2", FREE), options={"suppressed_logit": -4.0}),
    "offsets": Tried(NEIGHBOURS),
    "offsets-weak": Tried(NEIGHBOURS, options={"suppressed_logit": -2.0}),
}

CANDIDATES = ("near-weaker", "near-middle", "near-weaker-two-free")


def base(data: str = "") -> VisionRecipe:
    """The main part's recipe with half the updates, judged by held-out training images."""
    recipe = cpu_recipe(10, data).judged_by("validation")
    training = replace(recipe.training, steps=recipe.training.steps // 2, warmup_steps=50, probes=3)
    # Part of every run's name, also where no prior reads it: what the recipe had when the search began.
    layout = Layout(MASKS["decay"].heads, recipe.task.model.depth)
    task = replace(recipe.task, validation_per_class=HELD_OUT, layout=layout)
    return replace(recipe, task=task, training=training, preset="search")


def search_runs(data: str = "", seeds: int = 1) -> list[VisionRun]:
    """Every prior as it is, models without the shared initialisation, and all that was tried of the mask."""
    recipe = base(data)
    return [
        run
        for seed in range(seeds)
        for run in (
            *(recipe.run(prior, seed) for prior in ("vanilla", "mimetic", "impulse")),
            plain(recipe, seed, "vanilla-learned-positions", "learned"),
            plain(recipe, seed, "vanilla-default-values", "sinusoidal"),
            *(_mask(recipe, seed, name, tried) for name, tried in MASKS.items()),
        )
    ]


def confirm_runs(data: str = "", seeds: Sequence[int] = (10, 11)) -> list[VisionRun]:
    """The candidates with all updates and seeds that the published tables don't have."""
    recipe = replace(base(data), training=cpu_recipe(10, data).training, preset="confirm")
    return [
        run
        for seed in seeds
        for run in (
            *(recipe.run(prior, seed) for prior in ("vanilla", "mimetic", "impulse")),
            *(_mask(recipe, seed, name, MASKS[name]) for name in CANDIDATES),
        )
    ]


def plain(
    recipe: VisionRecipe, seed: int, variant: str, positions: Literal["learned", "sinusoidal"]
) -> VisionRun:
    """No prior, timm's own value and output weights, with its positions or with sinusoidal ones."""
    model = replace(recipe.task.model, positions=positions, value_output="default")
    changed = replace(recipe, task=replace(recipe.task, model=model))
    return changed.run("vanilla", seed, variant=variant)


def _mask(recipe: VisionRecipe, seed: int, name: str, tried: Tried) -> VisionRun:
    layout = Layout(tried.heads, recipe.task.model.depth, tried.layers)
    changed = replace(
        recipe,
        task=replace(recipe.task, layout=layout),
        training=replace(recipe.training, mask_learning_rate_factor=tried.rate),
        priors={"mask": PriorConfig("mask", dict(tried.options))},
    )
    return changed.run("mask", seed, variant=f"mask-{name}")
