"""The loop for long trainings: batches from a stream, moving averages, checkpoints to go on from."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from maskprior.experiments.checkpoint import Training, load_checkpoint, save_checkpoint
from maskprior.experiments.config import TrainingConfig
from maskprior.experiments.ema import Ema
from maskprior.experiments.optimizer import make_optimizer, make_schedule
from maskprior.experiments.seeding import named_seed
from maskprior.experiments.train import Progress, TrainingDivergedError, probe_steps
from maskprior.tasks.base import Predict, Stream


class Prepared(Protocol):
    """An optimiser as Accelerate wraps it."""

    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        """Update the parameters."""

    def zero_grad(self) -> None:
        """Forget the gradients."""


def train_stream(
    model: nn.Module,
    stream: Stream,
    config: TrainingConfig,
    seed: int,
    accelerator: Accelerator,
    progress: Progress,
    checkpoint: Path,
) -> Training:
    """Train in place, from the checkpoint on if there is one, and write one at every point of the curves.

    On one device, a training that went on from a checkpoint ends with the same bits as one that was never
    interrupted: batches are a function of seed and step, and so is what the model draws (dropout), as the
    global generators are seeded anew at every step, and given back as they were at the end.

    Args:
        model: moved to the accelerator's device; has the averaged weights at the end if there is an average.
        stream: batches, loss and the points of the curves.
        config: optimiser, budget, schedule.
        seed: root of all named generators.
        accelerator: device, precision and processes; each process takes its share of every batch.
        progress: told of every point of the curves.
        checkpoint: file, written by the main process.

    Raises:
        TrainingDivergedError: the loss is NaN or infinite at a probe.
        RecordError: the checkpoint is corrupt or another run's.
    """
    training, wrapped, optimizer = _prepare(model, config, accelerator)
    went_on = load_checkpoint(checkpoint, training)
    accelerator.wait_for_everyone()  # or one that is late would load what the main process writes next
    batches, loss = stream.batches(training.step), None
    due = probe_steps(config.steps, config.probes)
    with _own_generators(accelerator.device):
        while True:
            if training.step in due and not went_on:
                _probe(training, stream, loss, accelerator, progress)
                if accelerator.is_main_process:
                    save_checkpoint(checkpoint, training)
                accelerator.wait_for_everyone()
            went_on = False
            if training.step == config.steps:
                break
            started = time.perf_counter()
            inputs, targets = next(batches)
            torch.manual_seed(named_seed(seed, f"step/{training.step}/{accelerator.process_index}"))
            with accelerator.autocast():
                loss = stream.loss(wrapped(inputs).float(), targets)
            _update(training, loss, config, accelerator, optimizer)
            training.seconds += time.perf_counter() - started
    if training.ema is not None:
        model.load_state_dict(training.ema.tensors)
    return training


def _prepare(
    model: nn.Module, config: TrainingConfig, accelerator: Accelerator
) -> tuple[Training, nn.Module, Prepared]:
    optimizer = make_optimizer(model.to(accelerator.device), config)
    ema = Ema(model, config.ema_decay) if config.ema_decay else None
    schedule = make_schedule(optimizer, config)
    wrapped, prepared = accelerator.prepare(model, optimizer)
    wrapped.train()
    return Training(model, optimizer, schedule, ema, scaler=accelerator.scaler), wrapped, prepared


def _update(
    training: Training, loss: Tensor, config: TrainingConfig, accelerator: Accelerator, optimizer: Prepared
) -> None:
    accelerator.backward(loss)
    if config.gradient_clip:
        accelerator.clip_grad_norm_(training.model.parameters(), config.gradient_clip)
    optimizer.step()
    training.schedule.step()
    optimizer.zero_grad()
    training.step += 1
    if training.ema is not None:
        training.ema.update(training.model, training.step)


def _probe(
    training: Training, stream: Stream, loss: Tensor | None, accelerator: Accelerator, progress: Progress
) -> None:
    """Add a point to the curves; the main process alone looks at the data, with the averaged weights."""
    train_loss = float("nan") if loss is None else float(loss.detach())
    if loss is not None and not bool(loss.isfinite()):
        raise TrainingDivergedError(
            f"expected a finite training loss, got {train_loss} after step {training.step}; lower the "
            "learning rate"
        )
    point = {"step": float(training.step), "loss_train": train_loss}
    if accelerator.is_main_process:
        averaged = nullcontext() if training.ema is None else training.ema.applied(training.model)
        with averaged:
            point |= stream.probe(predictor(training.model, accelerator))
        training.model.train()
    training.curves.add(point)
    progress(training.step, point)


def predictor(model: nn.Module, accelerator: Accelerator) -> Predict:
    """The model in evaluation mode as a function, in the training precision, result on its device."""

    @torch.no_grad()
    def predict(inputs: Tensor) -> Tensor:
        model.eval()
        with accelerator.autocast():
            outputs: Tensor = model(inputs.to(accelerator.device))
        return outputs.float()

    return predict


@contextmanager
def _own_generators(device: torch.device) -> Iterator[None]:
    """Within the context the global generators are the loop's own; afterwards they are what they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
