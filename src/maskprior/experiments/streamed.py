"""One run of a task whose data come in batches: structure → prior → model → train → metrics → record."""

import time
from pathlib import Path
from typing import Any, cast

from accelerate import Accelerator
from torch import nn

from maskprior.experiments.checkpoint import checkpoint_path
from maskprior.experiments.config import AnyRunConfig
from maskprior.experiments.files import write_tensors
from maskprior.experiments.loop import predictor, train_stream
from maskprior.experiments.provenance import provenance
from maskprior.experiments.record import RunRecord, patterns_path, run_path, weights_path, write_record
from maskprior.experiments.seeding import named_generator
from maskprior.experiments.snapshot import Observed, snapshot
from maskprior.experiments.train import Progress
from maskprior.tasks.base import Reader, Stream


def build_streamed(config: AnyRunConfig) -> nn.Module:
    """The initial model with its prior; the weights that the prior leaves alone depend on the seed only."""
    model: nn.Module = config.model.build(named_generator(config.seed, "init"))
    config.prior.function()(model, config.task.structure(), named_generator(config.seed, "prior"))
    return model


def execute_streamed(
    config: AnyRunConfig, folder: Path, accelerator: Accelerator, progress: Progress
) -> RunRecord:
    """Train, measure and write; an interrupted run goes on from its checkpoint, which the end removes.

    Raises:
        TrainingDivergedError: the loss is not finite.
        RecordError: the checkpoint is corrupt.
        OSError: the folder cannot be written.
    """
    started, origin = time.perf_counter(), provenance(accelerator.device)
    path = run_path(
        folder,
        task=config.task.name,
        prior=config.prior.name,
        preset=config.preset,
        seed=config.seed,
        config=config.to_json(),
    )
    reader = Reader(accelerator.device, accelerator.process_index, accelerator.num_processes)
    stream: Stream = config.task.open(config.seed, config.training.batch_size, reader)
    model = build_streamed(config).to(accelerator.device)
    observed = cast(Observed, model)
    start = snapshot(observed, stream.examples(), "start")
    training = train_stream(
        model, stream, config.training, config.seed, accelerator, progress, checkpoint_path(path)
    )
    metrics: dict[str, Any] = {}
    if accelerator.is_main_process:
        metrics = stream.metrics(predictor(model, accelerator))
        metrics["images_per_second"] = config.training.steps * config.training.batch_size / training.seconds
    record = RunRecord(
        task=config.task.name,
        prior=config.prior.name,
        preset=config.preset,
        seed=config.seed,
        config=config.to_json(),
        **origin,
        seconds=training.earlier + time.perf_counter() - started,
        metrics=metrics,
        curves=training.curves.points,
    )
    if accelerator.is_main_process:
        write_tensors(weights_path(path), model.state_dict())
        write_tensors(patterns_path(path), start | snapshot(observed, stream.examples(), "end"))
        write_record(path, record)
        checkpoint_path(path).unlink(missing_ok=True)
    accelerator.wait_for_everyone()
    return record
