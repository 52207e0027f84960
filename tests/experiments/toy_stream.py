"""A tiny streamed task with dropout, for tests of the loop; also the script of one of several processes.

python toy_stream.py FOLDER      (under accelerate's environment: RANK, WORLD_SIZE, …)
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from maskprior.experiments import loop
from maskprior.experiments.checkpoint import Training, load_checkpoint
from maskprior.experiments.config import AnyRunConfig, PriorConfig, RunConfig, TrainingConfig
from maskprior.experiments.seeding import named_generator
from maskprior.experiments.streamed import execute_streamed
from maskprior.tasks.base import Predict, Reader


@dataclass(frozen=True)
class ToyModelConfig:
    """``width`` tokens of one number each, in a model with one attention-like mixing and dropout."""

    width: int = 6
    dropout: float = 0.2

    def build(self, generator: torch.Generator) -> "ToyModel":
        return ToyModel(self, generator)


class ToyShape:
    """What priors ask of a configuration."""

    attended_length, depth, heads = 3, 1, 1


class ToyModel(nn.Module):
    """x → W₂ dropout(tanh(W₁ x))."""

    def __init__(self, config: ToyModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(config.width, 5, generator=generator) / 3)
        self.second = nn.Parameter(torch.randn(5, 1, generator=generator) / 3)
        self.dropout = nn.Dropout(config.dropout)
        self.config = ToyShape()

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.dropout((x @ self.first).tanh()) @ self.second
        return hidden

    def allowed(self, length: int) -> Tensor | None:
        return None

    def attention_patterns(self, inputs: Tensor) -> Tensor:
        return torch.full((1, 1, 3, 3), 1 / 3)

    def mask_logits(self) -> Tensor | None:
        return None


@dataclass(frozen=True)
class ToyTask:
    """The sum of the inputs' signs, from batches that are functions of the step."""

    width: int = 6
    name: str = "toy"
    broken_from: int = 10**9

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "width": self.width}

    def structure(self) -> Tensor:
        return torch.ones(3, 3)

    def token_names(self) -> list[str]:
        return ["a", "b", "c"]

    def open(self, seed: int, batch_size: int, reader: Reader) -> "ToyStream":
        return ToyStream(self, seed, batch_size, reader)


@dataclass(frozen=True)
class ToyStream:
    task: ToyTask
    seed: int
    size: int
    reader: Reader

    def _batch(self, step: int | str, size: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(size, self.task.width, generator=named_generator(self.seed, f"batch/{step}"))
        return inputs, inputs.sign().sum(1, keepdim=True)

    def batches(self, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        step = first
        while True:
            if step >= self.task.broken_from:
                raise KeyboardInterrupt
            own = slice(self.reader.index, None, self.reader.count)
            inputs, targets = self._batch(step, self.size)
            yield inputs[own], targets[own]
            step += 1

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean()

    def probe(self, predict: Predict) -> dict[str, float]:
        inputs, targets = self._batch("probe", 32)
        return {"loss_validation": float(self.loss(predict(inputs), targets))}

    def metrics(self, predict: Predict) -> dict[str, Any]:
        return {"loss": self.probe(predict)["loss_validation"]}

    def examples(self) -> Tensor:
        return self._batch("examples", 4)[0]


def toy_config(
    *,
    dropout: float = 0.2,
    ema: float = 0.9,
    optimizer: str = "adamw",
    broken_from: int = 10**9,
) -> AnyRunConfig:
    settings = TrainingConfig(
        steps=12,
        learning_rate=0.01,
        batch_size=8,
        optimizer=optimizer,  # type: ignore[arg-type]
        weight_decay=0.1,
        warmup_steps=3,
        probes=4,
        ema_decay=ema,
        gradient_clip=1.0,
    )
    task = ToyTask(broken_from=broken_from)
    return RunConfig(task, PriorConfig("vanilla"), ToyModelConfig(dropout=dropout), settings, "tiny", 3)


def load_late(path: Path, training: Training) -> bool:
    """A process that looks for a checkpoint when the others have gone on."""
    time.sleep(1.0)
    return load_checkpoint(path, training)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if os.environ.get("RANK") == "1":
        patch.object(loop, "load_checkpoint", load_late).start()
    config = toy_config(dropout=0.0)
    execute_streamed(config, Path(sys.argv[1]), Accelerator(cpu=True), lambda step, point: None)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
