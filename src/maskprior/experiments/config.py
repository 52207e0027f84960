"""The configuration of one run, whole: frozen, comparable and written into its record."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

from maskprior.models import TransformerConfig
from maskprior.priors import PRIORS, Prior
from maskprior.tasks.base import Task

Option = float | bool | int


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
    cpu_chunk: int | None = None

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        for name, least in (("steps", 1), ("batch_size", 1), ("warmup_steps", 0), ("probes", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"expected {name} ≥ {least}, got {getattr(self, name)}")
        if self.cpu_chunk is not None and self.cpu_chunk < 1:
            raise ValueError(f"expected cpu_chunk ≥ 1 or None, got {self.cpu_chunk}")
        for name in ("learning_rate", "mask_learning_rate_factor", "weight_decay", "mask_weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"expected a finite {name} ≥ 0, got {getattr(self, name)}")
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
        if self.name not in PRIORS:
            raise ValueError(f"expected a prior among {', '.join(PRIORS)}, got {self.name!r}")
        known = [
            name
            for name, parameter in inspect.signature(PRIORS[self.name]).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            raise ValueError(
                f"expected options of prior {self.name!r} among {known}, got {', '.join(unknown)}"
            )

    def function(self) -> Prior:
        """The prior with its options bound."""
        # Options are checked against the function's own signature in __post_init__.
        function: Callable[..., None] = PRIORS[self.name]
        return partial(function, **self.options)


@dataclass(frozen=True)
class RunConfig:
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

    task: Task
    prior: PriorConfig
    model: TransformerConfig
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
        training = asdict(self.training)
        training["betas"] = list(self.training.betas)
        # Options that are not used are left out, so that ordinary runs keep their names.
        if self.training.mask_weight_decay == 0:
            del training["mask_weight_decay"]
        if self.training.cpu_chunk is None:
            del training["cpu_chunk"]
        return {
            "variant": self.label,
            "task": self.task.describe(),
            "prior": {"name": self.prior.name, **self.prior.options},
            "model": asdict(self.model),
            "training": training,
        }
