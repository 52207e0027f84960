"""What every task offers to a run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Predict = Callable[[Tensor], Tensor]
"""The trained model as a function of integer tokens ``[batch, length]``, without gradients."""


@dataclass(frozen=True)
class TokenInterface:
    """What a task's tokens demand of a model: the fields of ``TransformerConfig`` that a task decides."""

    vocab_size: int
    length: int
    outputs: int
    readout: Literal["cls", "tokens"]
    causal: bool = False


@dataclass(frozen=True)
class Split:
    """Inputs with their targets, row by row.

    Attributes:
        inputs: integer tokens ``[examples, length]``.
        targets: ``[examples, ...]``.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.inputs)


@dataclass(frozen=True)
class Splits:
    """Training examples, the small set on which curves are drawn, and what the final metrics judge."""

    train: Split
    probe: Split
    test: Split


class Task(Protocol):
    """Data + structure + loss + metrics; a frozen dataclass that is its own configuration."""

    @property
    def name(self) -> str:
        """Short name, as on the command line."""

    def describe(self) -> dict[str, Any]:
        """Everything that defines the task, as JSON values: part of a run's identity."""

    def interface(self) -> TokenInterface:
        """Vocabulary, lengths and read-out of the model that can learn it."""

    def structure(self) -> Tensor:
        """Who should interact: ``[N, N]``, ``[heads, N, N]`` or ``[layers, heads or 1, N, N]``."""

    def token_names(self) -> list[str]:
        """One name per attended token, for pictures."""

    def splits(self, generator: torch.Generator) -> Splits:
        """Training, probe and test data; all randomness from the generator."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean training loss of a batch of model outputs, a scalar."""

    def probe_metrics(self, outputs: Tensor, probe: Split) -> dict[str, float]:
        """One point of each curve, from the model's outputs on the probe."""

    def metrics(self, predict: Predict, test: Split) -> dict[str, Any]:
        """Final metrics of a trained model on the test data, as JSON values."""
