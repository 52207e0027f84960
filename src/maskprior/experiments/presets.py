"""Presets: how big the task and the model are and how long they train, the same for every prior."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from maskprior.experiments.config import PriorConfig, RunConfig, TrainingConfig
from maskprior.models import TransformerConfig
from maskprior.tasks.arithmetic_tasks import addition, multiplication, subtraction
from maskprior.tasks.base import Task, TokenInterface
from maskprior.tasks.gotu import BOOLEAN_TASKS

SMALL = TransformerConfig(
    vocab_size=1,
    length=1,
    outputs=1,
    width=64,
    depth=4,
    heads=4,
    head_width=16,
    mlp_width=64,
    token_std=1.0,
    position_std=0.02,
    query_key_gain=3.0,
)
"""The CPU architecture; vocabulary, lengths and read-out come from the task."""

REFERENCE = replace(
    SMALL, width=256, depth=12, heads=6, head_width=64, mlp_width=256, position_std=1.0, query_key_gain=1.0
)
"""The reference architecture of Abbe et al. 2023, appendix."""


COLUMNS = replace(SMALL, depth=3, query_key_gain=1.0)
"""For additions and subtractions."""

PRODUCTS = replace(
    SMALL,
    width=32,
    heads=3,
    head_width=8,
    mlp_width=32,
    token_std=0.1,
    query_key_gain=1.0,
    dropout=0.1,
    block_of_layer=(0, 1, 1, 1),
)
"""For multiplications: a block forms the products, another adds and carries in all layers after it."""


@dataclass(frozen=True)
class Recipe:
    """One task at one preset.

    Attributes:
        task: makes the task, given its dimension.
        dimension: n: bits of a rule, digits of the (first) number.
        model: architecture, to be fitted to the task's tokens.
        training: the same for all priors.
    """

    task: Callable[[int], Task]
    dimension: int
    model: TransformerConfig
    training: TrainingConfig


def fit_model(architecture: TransformerConfig, interface: TokenInterface) -> TransformerConfig:
    """The architecture with the task's vocabulary, lengths and read-out."""
    return replace(architecture, **asdict(interface))


def _cpu(task: str, depth: int, steps: int, learning_rate: float) -> Recipe:
    training = TrainingConfig(steps=steps, learning_rate=learning_rate, batch_size=128)
    return Recipe(BOOLEAN_TASKS[task], 15, replace(SMALL, depth=depth), training)


def _quick(task: str, depth: int, steps: int, learning_rate: float) -> Recipe:
    training = TrainingConfig(steps=steps, learning_rate=learning_rate, batch_size=128, probes=11)
    return Recipe(BOOLEAN_TASKS[task], 11, replace(SMALL, depth=depth), training)


def _paper(task: str, epochs: int, seen_share: float, learning_rate: float) -> Recipe:
    # The reference recipe counts epochs of 2¹⁵ · share / 256 batches.
    steps = epochs * int(2**15 * seen_share / 256)
    training = TrainingConfig(
        steps=steps, learning_rate=learning_rate, schedule="constant", probes=41, cpu_chunk=64
    )
    return Recipe(BOOLEAN_TASKS[task], 15, REFERENCE, training)


def _columns(task: Callable[[int], Task], steps: int) -> Recipe:
    training = TrainingConfig(
        steps=steps,
        learning_rate=3e-3,
        batch_size=128,
        optimizer="adamw",
        weight_decay=0.3,
        betas=(0.9, 0.98),
        warmup_steps=min(100, steps // 4),
    )
    return Recipe(task, 3, COLUMNS, training)


def _products(steps: int) -> Recipe:
    training = replace(
        _columns(multiplication, steps).training, learning_rate=2e-3, batch_size=100, weight_decay=1.0
    )
    return Recipe(multiplication, 3, PRODUCTS, training)


def _arithmetic(sums: int, products: int) -> dict[str, Recipe]:
    """Steps of an addition or a subtraction, and of a multiplication."""
    return {
        "addition": _columns(addition, sums),
        "subtraction": _columns(subtraction, sums),
        "multiplication": _products(products),
    }


PRESETS: dict[str, dict[str, Recipe]] = {
    "quick": {
        "2parity": _quick("2parity", 6, 300, 2e-3),
        "majority3": _quick("majority3", 4, 300, 5e-4),
        "cyclic3": _quick("cyclic3", 4, 500, 2e-3),
        **_arithmetic(250, 500),
    },
    "cpu": {
        "2parity": _cpu("2parity", 6, 400, 2e-3),
        "majority3": _cpu("majority3", 4, 300, 5e-4),
        "cyclic3": _cpu("cyclic3", 4, 800, 2e-3),
        **_arithmetic(2000, 3000),
    },
    "paper-budget": _arithmetic(400, 1500),
    "paper": {
        "2parity": _paper("2parity", 20, 3 / 4, 1e-5),
        "majority3": _paper("majority3", 30, 3 / 4, 1e-5),
        "cyclic3": _paper("cyclic3", 80, 7 / 8, 2e-5),
    },
}
"""preset → task → recipe."""


def choose(kind: str, name: str, choices: Sequence[str]) -> str:
    """The name, if it is one of the choices.

    Raises:
        ValueError: it is not; the message lists the choices.
    """
    if name not in choices:
        raise ValueError(f"expected a {kind} among {', '.join(choices)}; got {name!r}")
    return name


def task_names(preset: str | None = None) -> list[str]:
    """Every task that the preset, or some preset, knows.

    Raises:
        ValueError: unknown preset.
    """
    chosen = PRESETS.values() if preset is None else [PRESETS[choose("preset", preset, list(PRESETS))]]
    return list(dict.fromkeys(task for recipes in chosen for task in recipes))


def find_recipe(preset: str, task: str) -> Recipe:
    """The recipe of a task at a preset.

    Raises:
        ValueError: unknown preset or task, with the choices.
    """
    recipes = PRESETS[choose("preset", preset, list(PRESETS))]
    return recipes[choose(f"task of preset {preset}", task, list(recipes))]


def make_configs(
    preset: str, task: str, priors: Sequence[str], seeds: Sequence[int], *, dimension: int | None = None
) -> list[RunConfig]:
    """One configuration per seed and prior, seeds outermost, so that early results compare all priors.

    Args:
        preset: name of a preset.
        task: name of a task.
        priors: names of priors.
        seeds: root seeds.
        dimension: n, if not the preset's.

    Raises:
        ValueError: an unknown name, a negative seed, or an impossible dimension.
    """
    recipe = find_recipe(preset, task)
    made = recipe.task(recipe.dimension if dimension is None else dimension)
    model = fit_model(recipe.model, made.interface())
    return [
        RunConfig(made, PriorConfig(prior), model, recipe.training, preset, seed)
        for seed in seeds
        for prior in priors
    ]
