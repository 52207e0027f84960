"""What every task offers to a run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

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


@dataclass(frozen=True)
class Reader:
    """Who reads batches: the process ``index`` of ``count``, with its device.

    The processes' shares make up one batch, which does not depend on their number.
    """

    device: torch.device
    index: int = 0
    count: int = 1


class Stream(Protocol):
    """Data that come in batches, opened: what is read of them is a function of seed and step alone."""

    def batches(self, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The reader's share (inputs, targets) of the batches of step ``first``, ``first`` + 1, … on."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean training loss of a share, a scalar."""

    def probe(self, predict: Predict) -> dict[str, float]:
        """One point of each curve; never from test data."""

    def metrics(self, predict: Predict) -> dict[str, Any]:
        """Final metrics, as JSON values."""

    def examples(self) -> Tensor:
        """Some fixed inputs, on the reader's device, on which attention is shown."""


@runtime_checkable
class StreamedTask(Protocol):
    """A task whose data come in batches; a frozen dataclass that is its own configuration."""

    @property
    def name(self) -> str:
        """Short name, as on the command line."""

    def describe(self) -> dict[str, Any]:
        """Everything that defines the task, as JSON values: part of a run's identity."""

    def structure(self) -> Tensor:
        """Who should interact: ``[N, N]``, ``[heads, N, N]`` or ``[layers, heads or 1, N, N]``."""

    def token_names(self) -> list[str]:
        """One name per attended token, for pictures."""

    def open(self, seed: int, batch_size: int, reader: Reader) -> Stream:
        """Read the data; all randomness from the seed."""
