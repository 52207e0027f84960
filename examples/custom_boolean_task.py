"""Your own Boolean task: any function, any seen condition, any structure.

    python examples/custom_boolean_task.py [FOLDER]         (about a minute, CPU)

The rule is x1·x3 on 6 bits, and training never sees x1 = x3 = −1. A Transformer without a prior fills the gap
with the simplest function that fits, x1 + x3 − 1; with x1 and x3 interacting it finds the product.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from torch import Tensor

from maskprior import structures
from maskprior.analysis.report import print_summary
from maskprior.experiments.config import PriorConfig, RunConfig
from maskprior.experiments.presets import find_recipe, fit_model
from maskprior.experiments.progress import ProgressReporter
from maskprior.experiments.sweep import sweep
from maskprior.tasks.boolean import BooleanTask


def product(points: Tensor) -> Tensor:
    """The rule: points ``[..., 6]`` of ±1 to x1·x3 ``[...]``."""
    return points[..., 1] * points[..., 3]


def not_both_negative(points: Tensor) -> Tensor:
    """What training sees."""
    return (points[..., 1] > 0) | (points[..., 3] > 0)


def make_task() -> BooleanTask:
    """x1 and x3 read each other, other bits themselves; the read-out token only itself."""
    bits = structures.with_fallback_self(structures.pairs(6, [(1, 3)]))
    return BooleanTask(
        name="x1-times-x3",
        dimension=6,
        target=product,
        seen=not_both_negative,
        interaction=structures.with_readout(bits, reads="none", self_read=True),
    )


def main(folder: Path, steps: int = 200) -> None:
    """Run two priors with two seeds and print the table."""
    task = make_task()
    print(structures.draw(task.structure()))
    print("minimum-degree interpolator:", task.mdi_spectrum)
    recipe = find_recipe("quick", "2parity")
    configs = [
        RunConfig(
            task=task,
            prior=PriorConfig(prior),
            model=fit_model(recipe.model, task.interface()),
            training=replace(recipe.training, steps=steps),
            preset="custom",
            seed=seed,
        )
        for seed in (0, 1)
        for prior in ("vanilla", "mask")
    ]
    console = Console()
    with ProgressReporter(console) as reporter:
        records = sweep(configs, folder, reporter)
    print_summary(records, console)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
