"""The training loop, on any device that Accelerate knows."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from maskprior.experiments.config import TrainingConfig
from maskprior.experiments.optimizer import make_optimizer, make_schedule
from maskprior.tasks.base import Split, Splits, Task

Progress = Callable[[int, dict[str, float]], None]
"""Called with the number of finished steps and the newest point of the curves."""

Watch = Callable[[torch.optim.Optimizer], AbstractContextManager[object]]
"""Told of the optimiser; its context lasts as long as the training."""


class TrainingDivergedError(RuntimeError):
    """The training loss is no longer finite."""


@dataclass
class Curves:
    """Training curves: equally long lists, "step" among them."""

    points: dict[str, list[float]] = field(default_factory=dict)

    def add(self, point: dict[str, float]) -> None:
        """Append one value to every curve."""
        for name, value in point.items():
            self.points.setdefault(name, []).append(value)


def batch_indices(examples: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches of row numbers, each epoch a new permutation; a short last batch is dropped.

    Where there are fewer examples than a batch holds, each batch is all of them.
    """
    size = min(batch_size, examples)
    while True:
        order = torch.randperm(examples, generator=generator)
        yield from order[: examples - examples % size].split(size)


def probe_steps(steps: int, points: int) -> set[int]:
    """Numbers of finished steps at which the curves get a point: 0, the last, and evenly between."""
    return {round(steps * i / (points - 1)) for i in range(points)}


def train(
    model: nn.Module,
    task: Task,
    splits: Splits,
    config: TrainingConfig,
    generator: torch.Generator,
    accelerator: Accelerator,
    progress: Progress,
    watch: Watch = nullcontext,
) -> Curves:
    """Train in place and return the curves.

    Args:
        model: on any device; moved to the accelerator's.
        task: gives the loss and the probe's metrics.
        splits: training examples and the probe.
        config: optimiser, budget, schedule.
        generator: order of the batches.
        accelerator: device, precision and processes.
        progress: told of every point of the curves.
        watch: follows the optimiser, see :mod:`maskprior.experiments.probes`.

    Raises:
        TrainingDivergedError: the loss is NaN or infinite at a probe.
    """
    optimizer = make_optimizer(model.to(accelerator.device), config)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    schedule = make_schedule(optimizer.optimizer, config)
    data, probe = move(splits.train, accelerator.device), move(splits.probe, accelerator.device)
    batches = batch_indices(len(data), config.batch_size, generator)
    due, curves, loss = probe_steps(config.steps, config.probes), Curves(), None
    chunk = config.cpu_chunk if accelerator.device.type == "cpu" else None

    def batch_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        with accelerator.autocast():
            return task.loss(wrapped(inputs).float(), targets)

    with watch(optimizer.optimizer):
        for step in range(config.steps + 1):
            if step in due:
                point = probe_point(wrapped, task, probe, step, loss)
                curves.add(point)
                progress(step, point)
            if step == config.steps:
                break
            rows = next(batches)[accelerator.process_index :: accelerator.num_processes]
            rows = rows.to(accelerator.device)
            inputs, targets = data.inputs[rows], data.targets[rows]
            loss = backward_in_chunks(batch_loss, inputs, targets, chunk, accelerator.backward)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return curves


def backward_in_chunks(
    batch_loss: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    chunk: int | None,
    backward: Callable[[Tensor], object],
) -> Tensor:
    """Mean loss of a batch, with its gradient accumulated over chunks of examples.

    L = Σ_c (n_c / n) L_c for a loss that is a mean over examples: the same gradient up to rounding.

    Args:
        batch_loss: mean loss of inputs and targets.
        inputs: ``[examples, …]``.
        targets: ``[examples, …]``.
        chunk: examples per pass; None takes all.
        backward: adds the gradient of a scalar to the parameters'.
    """
    size = len(inputs) if chunk is None else chunk
    total = torch.zeros((), device=inputs.device)
    for part, wanted in zip(inputs.split(size), targets.split(size), strict=True):
        loss = batch_loss(part, wanted) * (len(part) / len(inputs))
        backward(loss)
        total += loss.detach()
    return total


def move(split: Split, device: torch.device) -> Split:
    """The split on a device."""
    return Split(split.inputs.to(device), split.targets.to(device))


@torch.no_grad()
def probe_point(
    model: nn.Module, task: Task, probe: Split, step: int, loss: Tensor | None
) -> dict[str, float]:
    """One point of the curves; "loss_train" is the last batch's loss (NaN before the first)."""
    train_loss = float("nan") if loss is None else float(loss)
    if loss is not None and not bool(loss.isfinite()):
        raise TrainingDivergedError(
            f"expected a finite training loss, got {train_loss} after step {step}; lower the learning rate"
        )
    model.eval()
    outputs = model(probe.inputs).float()
    model.train()
    return {"step": float(step), "loss_train": train_loss, **task.probe_metrics(outputs, probe)}
