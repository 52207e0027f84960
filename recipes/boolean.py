"""The Boolean tables: generalisation on the unseen half of a logical rule.

    make reproduce-boolean        (python -m recipes.boolean --jobs 2)

Hardware: 2 CPU cores. Parts, each a folder of one record a run, and what to expect:

    main      results/boolean            3 tasks × 4 priors × 10 seeds: mask 100 % on all, baselines below
    budget    results/boolean-budget     cyclic3, baselines trained until their training loss stops falling
    grid      results/boolean-grid       every prior's best of learning rate × position scale, 3 seeds
    ablation  results/boolean-ablation   which parts of the mask matter, with the designs that fail

Reference: Ma et al. 2026, section 5; Abbe et al. 2023, arXiv 2301.13105.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from maskprior import structures
from maskprior.experiments.config import Option, PriorConfig, RunConfig
from maskprior.experiments.presets import make_configs
from maskprior.experiments.sweep import Device
from maskprior.priors import PRIORS
from maskprior.tasks.boolean import BooleanTask
from recipes.reproduce import chosen_parts, part_folder, run_part, run_program

PRESET = "cpu"
TASKS = ("2parity", "majority3", "cyclic3")
BASELINES = tuple(name for name in PRIORS if name != "mask")

GRID_LEARNING_RATES = (5e-4, 2e-3)
GRID_POSITION_STDS = (0.02, 1.0)
FEW_PROBES = 5


def main_table(seeds: int = 10) -> list[RunConfig]:
    """Three tasks, four priors, ten seeds, one set of hyper-parameters a task."""
    return [c for task in TASKS for c in make_configs(PRESET, task, list(PRIORS), range(seeds))]


def budget(seeds: int = 3, steps: int = 3000) -> list[RunConfig]:
    """cyclic3 for the priors that do not fit it in the mask's budget, where they can fit it.

    Position embeddings of the usual scale, without which the baselines' training loss does not fall.
    """
    return [
        replace(
            config,
            model=replace(config.model, position_std=1.0),
            training=replace(config.training, steps=steps, learning_rate=1e-3),
        )
        for config in make_configs(PRESET, "cyclic3", BASELINES, range(seeds))
    ]


def grid(seeds: int = 3) -> list[RunConfig]:
    """All priors over learning rate × position scale, less the cell that the main table has."""
    main = {_cell(config) for config in main_table(1)}
    return [config for config in _tuned(seeds) if _cell(config) not in main]


def _tuned(seeds: int) -> list[RunConfig]:
    return [
        _tune(config, rate, std)
        for config in main_table(seeds)
        for rate in GRID_LEARNING_RATES
        for std in GRID_POSITION_STDS
    ]


def _tune(config: RunConfig, learning_rate: float, position_std: float) -> RunConfig:
    return replace(
        config,
        variant=f"{config.prior.name}-lr{learning_rate:g}-position{position_std:g}",
        model=replace(config.model, position_std=position_std),
        training=replace(config.training, learning_rate=learning_rate, probes=FEW_PROBES),
    )


def _cell(config: RunConfig) -> tuple[str, str, float, float]:
    return config.task.name, config.prior.name, config.training.learning_rate, config.model.position_std


def ablation(seeds: int = 2) -> list[RunConfig]:
    """One change at a time to the mask prior of each task."""
    return [
        variant
        for task in TASKS
        for config in make_configs(PRESET, task, ["mask"], range(seeds))
        for variant in _variants(config)
    ]


def _variants(config: RunConfig) -> list[RunConfig]:
    """Edits of the structure, then of strength, depth, scales and learning; all of the latter for 2parity."""
    task = config.task
    if not isinstance(task, BooleanTask):
        raise TypeError(f"expected a BooleanTask, got {type(task).__name__}")
    config = replace(config, training=replace(config.training, probes=FEW_PROBES))
    thorough = task.name == "2parity"
    model = config.model
    edits = [
        replace(config, variant=f"mask-{label}", task=replace(task, interaction=edit(task.interaction)))
        for label, edit in EDITS[task.name].items()
    ]
    options: dict[str, dict[str, Option]] = {"mask-frozen": {"learnable": False}}
    if thorough:
        options["mask-shared"] = {"share_layers": True}
    for logit in (-2.0, -4.0, -6.0) if thorough else (-4.0,):
        options[f"mask-suppressed{logit:g}"] = {"suppressed_logit": logit}
    models = {
        f"mask-depth{depth}": replace(model, depth=depth)
        for depth in ((1, 2, 4) if thorough else (2,))
        if depth != model.depth
    }
    for std in (0.3, 1.0) if thorough else (1.0,):
        models[f"mask-position{std:g}"] = replace(model, position_std=std)
    if thorough:
        models["mask-gain1"] = replace(model, query_key_gain=1.0)
    return [
        *edits,
        *(replace(config, variant=v, prior=PriorConfig("mask", chosen)) for v, chosen in options.items()),
        *(replace(config, variant=v, model=chosen) for v, chosen in models.items()),
    ]


def self_allowed(interaction: Tensor) -> Tensor:
    """Interacting bits may attend to themselves too."""
    return torch.maximum(interaction, structures.identity(len(interaction)))


def readout_reads(bits: Sequence[int]) -> Callable[[Tensor], Tensor]:
    """The read-out token attends to these bits, and to itself if it did before."""

    def edit(interaction: Tensor) -> Tensor:
        edited = interaction.clone()
        edited[0, 1:] = 0
        edited[0, [1 + bit for bit in bits]] = 1
        return edited

    return edit


def readout_reads_itself(interaction: Tensor) -> Tensor:
    """The read-out token attends to itself alone and reads through what suppression leaks."""
    edited = interaction.clone()
    edited[0] = 0
    edited[0, 0] = 1
    return edited


def idle_bits_read_readout(interaction: Tensor) -> Tensor:
    """Bits outside the interaction attend to the read-out token instead of to themselves."""
    edited = interaction.clone()
    idle = interaction.diagonal() > 0
    idle[0] = False
    edited[idle] = 0
    edited[idle, 0] = 1
    return edited


def shuffled_partners(interaction: Tensor) -> Tensor:
    """The right pattern in the wrong place: bits renumbered by reversal, so that x0 and x1 part."""
    edited = interaction.clone()
    bits = interaction[1:, 1:]
    edited[1:, 1:] = bits.flip(0, 1)
    edited[0, 1:] = interaction[0, 1:].flip(0)
    return edited


def all_high(interaction: Tensor) -> Tensor:
    """Everything interacts: a learnable M without structure."""
    return torch.ones_like(interaction)


Edit = Callable[[Tensor], Tensor]
EDITS: dict[str, dict[str, Edit]] = {
    "2parity": {
        "self-allowed": self_allowed,
        "readout-reads-pair": readout_reads([0, 1]),
        "readout-reads-all": readout_reads(range(15)),
        "idle-read-readout": idle_bits_read_readout,
        "shuffled": shuffled_partners,
        "all-high": all_high,
    },
    "majority3": {
        "self-allowed": self_allowed,
        "readout-reads-itself": readout_reads_itself,
        "readout-reads-all": readout_reads(range(15)),
        "shuffled": shuffled_partners,
        "all-high": all_high,
    },
    "cyclic3": {
        "self-allowed": self_allowed,
        "readout-reads-itself": readout_reads_itself,
        "all-high": all_high,
    },
}

PARTS: dict[str, Callable[[], list[RunConfig]]] = {
    "main": main_table,
    "grid": grid,
    "ablation": ablation,
    "budget": budget,
}


@dataclass(frozen=True)
class Reproduce:
    """Run the Boolean tables, or what is missing of them.

    Attributes:
        out: folder of the main records; the other parts go beside it, with their name appended.
        part: "main", "budget", "grid", "ablation" or "all".
        jobs: worker processes.
        device: "auto" or "cpu".
    """

    out: Path = Path("results/boolean")
    part: str = "all"
    jobs: int = 2
    device: str = "cpu"


def reproduce(command: Reproduce) -> None:
    """Do what :class:`Reproduce` says."""
    for part in chosen_parts(command.part, PARTS):
        run_part(PARTS[part](), part_folder(command.out, part), command.jobs, Device(command.device))


if __name__ == "__main__":
    run_program(Reproduce, reproduce, __doc__)
