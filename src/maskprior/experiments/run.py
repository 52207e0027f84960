"""One run: task → structure → prior → model → train → metrics → record."""

import time
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from maskprior.experiments.config import AnyRunConfig, RunConfig
from maskprior.experiments.files import write_tensors
from maskprior.experiments.probes import run_recorder
from maskprior.experiments.provenance import provenance
from maskprior.experiments.record import RunRecord, patterns_path, run_path, weights_path, write_record
from maskprior.experiments.seeding import named_generator
from maskprior.experiments.snapshot import snapshot
from maskprior.experiments.train import Progress, train
from maskprior.models import Transformer
from maskprior.tasks.base import Predict

PATTERN_INPUTS = 256


def record_path(folder: Path, config: AnyRunConfig) -> Path:
    """Where the record of this configuration lies; the name holds a digest of what decides the outcome."""
    return run_path(
        folder,
        task=config.task.name,
        prior=config.prior.name,
        preset=config.preset,
        seed=config.seed,
        config=config.to_json(),
    )


def build_model(config: RunConfig) -> Transformer:
    """The initial model with its prior; the weights that the prior leaves alone depend on the seed only."""
    model = config.model.build(named_generator(config.seed, "init"))
    config.prior.function()(model, config.task.structure(), named_generator(config.seed, "prior"))
    return model


def execute(config: RunConfig, folder: Path, accelerator: Accelerator, progress: Progress) -> RunRecord:
    """Train, measure and write: the weights and patterns first, the record last, each atomically.

    The persistence log (X.persistence.jsonl) grows during training. A record means a complete run; whatever
    an interrupted one left is overwritten.

    Raises:
        TrainingDivergedError: the loss is not finite.
        OSError: the folder cannot be written.
    """
    started, origin = time.perf_counter(), provenance(accelerator.device)
    model = build_model(config)
    splits = config.task.splits(named_generator(config.seed, "data"))
    inputs = model.sample_inputs(PATTERN_INPUTS, named_generator(config.seed, "patterns"))
    start = snapshot(model, inputs, "start")
    batches = named_generator(config.seed, "batches")
    path = record_path(folder, config)
    main = accelerator.is_main_process
    watch = run_recorder(config, model, splits.probe, path).watching if main else nullcontext
    curves = train(model, config.task, splits, config.training, batches, accelerator, progress, watch)
    metrics = config.task.metrics(predictor(model, accelerator), splits.test)
    record = RunRecord(
        task=config.task.name,
        prior=config.prior.name,
        preset=config.preset,
        seed=config.seed,
        config=config.to_json(),
        **origin,
        seconds=time.perf_counter() - started,
        metrics=metrics,
        curves=curves.points,
    )
    if main:
        write_tensors(weights_path(path), model.state_dict())
        write_tensors(patterns_path(path), start | snapshot(model, inputs.to(accelerator.device), "end"))
        write_record(path, record)
    return record


def predictor(model: Transformer, accelerator: Accelerator) -> Predict:
    """The model in evaluation mode as a function of tokens, in the training precision, result on the CPU."""
    model.eval()

    @torch.no_grad()
    def predict(tokens: Tensor) -> Tensor:
        with accelerator.autocast():
            outputs: Tensor = model(tokens.to(accelerator.device))
        return outputs.float().cpu()

    return predict
