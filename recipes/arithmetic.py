"""The arithmetic tables: sums and products of digits from few examples.

    make reproduce-arithmetic        (python -m recipes.arithmetic --jobs 2)

Hardware: 2 CPU cores. Parts, each a folder of one record a run, five seeds each:

    addition   results/arithmetic-addition   4,000 pairs, the short budget: priors and controls
    decoder    results/arithmetic-decoder    the same, written digit by digit from the most significant one on
    grid       results/arithmetic-grid       learning rate × position scale, at 500 and 4,000 pairs, one seed
    steps      results/arithmetic-steps      4,000 pairs until vanilla converges, each prior at its best
    pairs      results/arithmetic-pairs      125 to 4,000 pairs, each prior at its best
    few        results/arithmetic-few        500 pairs again, twice the steps
    length     results/arithmetic-length     trained on 3 digits, tested on 4 and 5
    3x1        results/arithmetic-3x1        270 products of a 3-digit and a 1-digit number
    2x2        results/arithmetic-2x2        300 products of 2-digit numbers, with positions and without
    3x3        results/arithmetic-3x3        30,000 products of 3-digit numbers

`--preset quick` is one seed of the priors on all three tasks, in a minute. What to expect: see
docs/arithmetic.md.
Reference: Ma et al. 2026, section 5. Its layout, model and budget are not public.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from maskprior.experiments.config import PriorConfig, RunConfig, TrainingConfig
from maskprior.experiments.presets import PRESETS, fit_model, make_configs, task_names
from maskprior.experiments.seeding import named_generator
from maskprior.experiments.sweep import Device
from maskprior.models import TransformerConfig
from maskprior.priors import PRIORS
from maskprior.tasks.arithmetic import ArithmeticTask
from maskprior.tasks.arithmetic_structure import shuffled
from maskprior.tasks.arithmetic_tasks import addition, multiplication
from recipes.reproduce import chosen_parts, part_folder, run_part, run_program

BUDGET = "paper-budget"
SEEDS = 5
CONTROLS = ("mask-frozen", "mask-shuffled", "mask-all-high")
WITH_CONTROLS = (*PRIORS, *CONTROLS)

GRID_SEED = 100
"""Not among the published seeds."""
GRID_PAIRS = (500, 4000)
GRID_LEARNING_RATES = (1e-3, 3e-3)
GRID_POSITION_STDS = (0.02, 1.0)
GRID_STEPS = 600

FEW_PAIRS = 500
PAIRS = (125, 250, 500, 1000, 2000, 4000)
PAIRS_STEPS = 600
FEW_STEPS = 1200
CONVERGED_STEPS = 1500
DECODER_STEPS = 800
LENGTHS = (3, 5)

BEST: dict[str, dict[str, tuple[float, float]]] = {
    "few": {
        "vanilla": (1e-3, 1.0),
        "qk_svd": (3e-3, 1.0),
        "qk_optimize": (3e-3, 1.0),
        "mask": (3e-3, 0.02),
    },
    "many": {
        "vanilla": (3e-3, 1.0),
        "qk_svd": (3e-3, 1.0),
        "qk_optimize": (3e-3, 1.0),
        "mask": (3e-3, 0.02),
    },
}
"""Learning rate and position scale by number of pairs and prior: the best cells of the grid part, which a
test compares with its records."""


@dataclass(frozen=True)
class Setting:
    """A task with the model and the training that all priors share."""

    task: ArithmeticTask
    model: TransformerConfig
    training: TrainingConfig

    def run(self, name: str, seed: int, suffix: str = "") -> RunConfig:
        """The run of a prior, or of a control named after what is done to the mask."""
        prior = PriorConfig("mask" if name in CONTROLS else name)
        task = self.task
        if name == "mask-frozen":
            prior = PriorConfig("mask", {"learnable": False})
        elif name == "mask-shuffled":
            rng = named_generator(0, "shuffle")  # one for all seeds, whose runs are averaged
            task = replace(task, interaction=shuffled(task.interaction, rng))
        elif name == "mask-all-high":
            task = replace(task, interaction=torch.ones_like(task.interaction))
        model = fit_model(self.model, task.interface())
        return RunConfig(task, prior, model, self.training, BUDGET, seed, variant=name + suffix)

    def runs(self, names: Sequence[str], seeds: int = SEEDS, suffix: str = "") -> list[RunConfig]:
        """Seeds outermost, so that early results compare all."""
        return [self.run(name, seed, suffix) for seed in range(seeds) for name in names]

    def tuned(self, learning_rate: float, position_std: float) -> "Setting":
        """With another learning rate and scale of positions."""
        return replace(
            self,
            model=replace(self.model, position_std=position_std),
            training=replace(self.training, learning_rate=learning_rate),
        )

    def steps(self, steps: int) -> "Setting":
        """With another number of steps."""
        return replace(self, training=replace(self.training, steps=steps))


def sums(task: ArithmeticTask) -> Setting:
    """An addition at the short budget."""
    recipe = PRESETS[BUDGET]["addition"]
    return Setting(task, recipe.model, recipe.training)


def products(task: ArithmeticTask) -> Setting:
    """A multiplication at the short budget; its block for sums serves as many layers as the task has."""
    recipe = PRESETS[BUDGET]["multiplication"]
    depth = len(task.structure())
    model = replace(recipe.model, depth=depth, block_of_layer=(0,) + (1,) * (depth - 1))
    return Setting(task, model, recipe.training)


def addition_table() -> list[RunConfig]:
    """Priors and controls at the short budget."""
    return sums(addition()).runs(WITH_CONTROLS)


def decoder() -> list[RunConfig]:
    """The same for a decoder that writes the most significant digit first, and so must look ahead."""
    return sums(addition(order="decoder")).steps(DECODER_STEPS).runs(tuple(PRIORS))


def grid() -> list[RunConfig]:
    """One grid for every prior; weight decay and all else are shared."""
    return [
        sums(addition(pairs=pairs))
        .steps(GRID_STEPS)
        .tuned(rate, std)
        .run(prior, GRID_SEED, f"-{pairs}pairs-lr{rate:g}-position{std:g}")
        for pairs in GRID_PAIRS
        for prior in PRIORS
        for rate in GRID_LEARNING_RATES
        for std in GRID_POSITION_STDS
    ]


def steps() -> list[RunConfig]:
    """4,000 pairs, each prior at its best, until the slowest prior that learns has converged."""
    setting = sums(addition()).steps(CONVERGED_STEPS)
    return [setting.tuned(*BEST["many"][prior]).run(prior, seed) for seed in range(SEEDS) for prior in PRIORS]


def pairs() -> list[RunConfig]:
    """From 125 to 4,000 pairs; up to 1,000 at the best cell for few pairs, beyond at that for many."""
    return [
        sums(addition(pairs=count))
        .steps(PAIRS_STEPS)
        .tuned(*BEST["few" if count <= 1000 else "many"][prior])
        .run(prior, seed, f"-{count}pairs")
        for seed in range(SEEDS)
        for count in PAIRS
        for prior in PRIORS
    ]


def few() -> list[RunConfig]:
    """500 pairs with more steps, as the mask was still rising there."""
    setting = sums(addition(pairs=FEW_PAIRS)).steps(FEW_STEPS)
    return [setting.tuned(*BEST["few"][prior]).run(prior, seed) for seed in range(SEEDS) for prior in PRIORS]


def length() -> list[RunConfig]:
    """Room for 5 digits, trained on 3: one block for all layers, with learned positions and without."""
    trained, room = LENGTHS
    setting = sums(addition(room, trained_digits=trained))
    setting = replace(setting, model=replace(setting.model, depth=6, block_of_layer=(0,) * 6))
    return [*setting.runs(tuple(PRIORS)), *_without_positions(setting, ("mask",))]


def _without_positions(setting: Setting, names: Sequence[str]) -> list[RunConfig]:
    """Query-key priors read positions, and without a mask all slots would be one: neither is among them."""
    model = replace(setting.model, positions="none")
    return replace(setting, model=model).runs(names, suffix="-no-positions")


def three_by_one() -> list[RunConfig]:
    """A 3-digit and a 1-digit number: priors and controls."""
    return products(multiplication(3, 1, pairs=270)).runs(WITH_CONTROLS)


def two_by_two() -> list[RunConfig]:
    """Two 2-digit numbers."""
    setting = products(multiplication(2, 2, pairs=300, sums=5)).steps(5000)
    setting = replace(setting, training=replace(setting.training, weight_decay=3.0))
    return [*_without_positions(setting, ("mask",)), *setting.runs(tuple(PRIORS))]


def three_by_three() -> list[RunConfig]:
    """Two 3-digit numbers, from so many pairs that no dropout and little decay are needed."""
    setting = products(multiplication(3, 3, pairs=30_000, sums=5))
    training = replace(setting.training, steps=4000, batch_size=256, learning_rate=4e-3, weight_decay=0.1)
    setting = replace(setting, model=replace(setting.model, dropout=0.0), training=training)
    return [*_without_positions(setting, ("mask",)), *setting.runs(tuple(PRIORS))]


def quick() -> list[RunConfig]:
    """One seed of everything small."""
    return [
        config for task in task_names(BUDGET) for config in make_configs("quick", task, list(PRIORS), [0])
    ]


PARTS: dict[str, Callable[[], list[RunConfig]]] = {
    "addition": addition_table,
    "grid": grid,
    "3x1": three_by_one,
    "decoder": decoder,
    "steps": steps,
    "pairs": pairs,
    "few": few,
    "length": length,
    "2x2": two_by_two,
    "3x3": three_by_three,
}
"""In the order in which they run."""


@dataclass(frozen=True)
class Reproduce:
    """Run the arithmetic tables, or what is missing of them.

    Attributes:
        out: beginning of the folders' names: results/arithmetic makes results/arithmetic-addition and so on.
        part: name of a part or "all".
        preset: "cpu", the published tables, or "quick": one seed of each task, to OUT-quick.
        jobs: worker processes.
        device: "auto" or "cpu".
    """

    out: Path = Path("results/arithmetic")
    part: str = "all"
    preset: Literal["quick", "cpu"] = "cpu"
    jobs: int = 2
    device: str = "cpu"


def reproduce(command: Reproduce) -> None:
    """Do what :class:`Reproduce` says."""
    parts = {"quick": quick} if command.preset == "quick" else PARTS
    for part in chosen_parts(command.part, parts):
        run_part(parts[part](), part_folder(command.out, part), command.jobs, Device(command.device))


if __name__ == "__main__":
    run_program(Reproduce, reproduce, __doc__)
