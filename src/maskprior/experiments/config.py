"""The configuration of one run, whole: frozen, comparable and written into its record."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Generic, Literal, Protocol

import torch
from torch import nn
from typing_extensions import TypeVar

from maskprior.models import TransformerConfig
from maskprior.priors import ALL_PRIORS
from maskprior.tasks.base import StreamedTask, Task

Option = float | bool | int
Initialise = Callable[..., None]
"""A prior with its options bound: ``(model, structure, generator) -> None``, in place."""

_NOT_NEGATIVE = (
    *("learning_rate", "mask_learning_rate_factor", "weight_decay", "mask_weight_decay"),
    *("ema_decay", "gradient_clip"),
)
# Options of few runs: left out of the JSON where they are not used, so that other runs keep their names.
_RARE = {"mask_weight_decay": 0.0, "ema_decay": 0.0, "gradient_clip": 0.0, "cpu_chunk": None}
_RARE_MODEL = {"positions": "learned", "block_of_layer": ()}


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Attributes:
        steps: number of updates.
        batch_size: examples per update, over all processes together.
        learning_rate: peak learning rate of all parameters but the mask logits.
        mask_learning_rate_factor: the mask logits' learning rate over ``learning_rate``.
        optimizer: "adam", "adamw" or "sgd".
        weight_decay: of weights and embeddings; never of mask logits.
        mask_weight_decay: of mask logits: an experiment's option, to show what decay does to a prior.
        betas: Adam's decay rates of the two moments.
        schedule: "constant" or "cosine" (to zero), after ``warmup_steps`` of linear warm-up.
        warmup_steps: updates until the peak learning rate is reached.
        precision: "no" (float32), "bf16" or "fp16", as Accelerate names them.
        probes: points on the training curves, first and last step included.
        ema_decay: decay of the moving average of the weights that is judged instead of them; 0: none. For
            tasks whose data come in batches, as is ``gradient_clip``.
        gradient_clip: greatest norm of the gradient; 0: none.
        cpu_chunk: on a CPU, examples per forward and backward pass; the gradients of a batch's chunks add
            up. Activations that fit the cache make wide models faster. None takes the whole batch at once.
    """

    steps: int
    learning_rate: float
    batch_size: int = 256
    mask_learning_rate_factor: float = 1.0
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float = 0.0
    mask_weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["constant", "cosine"] = "cosine"
    warmup_steps: int = 0
    precision: Literal["no", "bf16", "fp16"] = "no"
    probes: int = 17
    ema_decay: float = 0.0
    gradient_clip: float = 0.0
    cpu_chunk: int | None = None

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        for name, least in (("steps", 1), ("batch_size", 1), ("warmup_steps", 0), ("probes", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"expected {name} ≥ {least}, got {getattr(self, name)}")
        if self.cpu_chunk is not None and self.cpu_chunk < 1:
            raise ValueError(f"expected cpu_chunk ≥ 1 or None, got {self.cpu_chunk}")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"expected a finite {name} ≥ 0, got {getattr(self, name)}")
        if self.ema_decay >= 1:
            raise ValueError(f"expected ema_decay < 1, got {self.ema_decay}")
        for name, choices in (
            ("optimizer", ("adam", "adamw", "sgd")),
            ("schedule", ("constant", "cosine")),
            ("precision", ("no", "bf16", "fp16")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"expected {name} in {choices}, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class PriorConfig:
    """A prior by name with the keyword options of its function.

    Raises:
        ValueError: unknown prior, or an option that it does not have.
    """

    name: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check name and options."""
        if self.name not in ALL_PRIORS:
            raise ValueError(f"expected a prior among {', '.join(ALL_PRIORS)}, got {self.name!r}")
        known = [
            name
            for name, parameter in inspect.signature(ALL_PRIORS[self.name]).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            raise ValueError(
                f"expected options of prior {self.name!r} among {known}, got {', '.join(unknown)}"
            )

    def function(self) -> Initialise:
        """The prior with its options bound."""
        # Options are checked against the function's own signature in __post_init__.
        return partial(ALL_PRIORS[self.name], **self.options)


class ModelConfig(Protocol):
    """Shape and initial scales of a model: a frozen dataclass of JSON values."""

    def build(self, generator: torch.Generator) -> nn.Module:
        """The initial model; the generator is the only source of randomness."""


TaskT = TypeVar("TaskT", bound=Task | StreamedTask, default=Task)
ModelT = TypeVar("ModelT", bound=ModelConfig, default=TransformerConfig)


@dataclass(frozen=True)
class RunConfig(Generic[TaskT, ModelT]):
    """Everything that decides the outcome of one run.

    Attributes:
        task: what is learned.
        prior: how the structure is put into the model.
        model: shape and initial scales.
        training: optimiser, budget, schedule.
        preset: name of the preset that it came from.
        seed: root of all named generators.
        variant: label in tables and file names; the prior's name unless given.
    """

    task: TaskT
    prior: PriorConfig
    model: ModelT
    training: TrainingConfig
    preset: str
    seed: int
    variant: str = ""

    @property
    def label(self) -> str:
        """The variant, or the prior's name."""
        return self.variant or self.prior.name

    def to_json(self) -> dict[str, Any]:
        """The ``config`` field of the record."""
        return {
            "variant": self.label,
            "task": self.task.describe(),
            "prior": {"name": self.prior.name, **self.prior.options},
            "model": _without(asdict(self.model), _RARE_MODEL),  # type: ignore[call-overload]
            "training": _without(asdict(self.training), _RARE),
        }


def _without(values: dict[str, Any], unused: Mapping[str, object]) -> dict[str, Any]:
    """The values, as JSON has them, less those that say that an option is not used."""
    kept = {name: value for name, value in values.items() if name not in unused or value != unused[name]}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


AnyRunConfig = RunConfig[Any, Any]
"""A run of any kind of task and model."""
