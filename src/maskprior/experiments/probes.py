"""Persistence probes: in this package's own runs, and around anybody's training loop."""

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from maskprior.analysis.observation import Patterns, patterns_of
from maskprior.analysis.persistence_log import log_path
from maskprior.analysis.recorded_run import RunLabel, write_run
from maskprior.analysis.recorder import DEFAULT_INTERVAL, PersistenceRecorder, Subject
from maskprior.experiments.config import RunConfig
from maskprior.experiments.files import prepare_folder
from maskprior.experiments.train import probe_steps
from maskprior.models import Transformer
from maskprior.tasks.base import Split

PROBE_INPUTS = 32
FRAMES = 5
EARLY = (1, 2, 4, 8)
"""Steps that are probed besides the points of the curves: a query-key prior fades within the first few."""


def run_recorder(config: RunConfig, model: Transformer, probe: Split, path: Path) -> PersistenceRecorder:
    """The recorder of one run: a probe at every point of the curves and at some of the first steps.

    Attention is looked at on the first inputs of the task's probe.

    Args:
        config: the run.
        model: with its prior in place.
        probe: the task's probe.
        path: of the run's record; the log goes beside it.
    """
    inputs = probe.inputs[:PROBE_INPUTS]
    points = sorted(probe_steps(config.training.steps, config.training.probes))
    subject = Subject(
        model,
        patterns=lambda: list(model.attention_patterns(inputs.to(model.token.device))),
        structure=config.task.structure(),
        allowed=model.allowed(model.config.attended_length),
        every={*points, *EARLY},
        frame_every=set(points[:: max(1, (len(points) - 1) // (FRAMES - 1))]),
        tokens=config.task.token_names(),
    )
    return PersistenceRecorder(subject, log_path(path))


@contextmanager
def persistence_probe(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor | None,
    folder: Path | str,
    *,
    label: RunLabel | None = None,
    structure: Tensor | None = None,
    allowed: Tensor | None = None,
    every: int | Collection[int] = DEFAULT_INTERVAL,
    patterns: Patterns | None = None,
) -> Iterator[PersistenceRecorder]:
    """Follow a training loop of your own; ``maskprior report FOLDER --html`` then shows it.

        with persistence_probe(model, optimizer, inputs, "runs") as probe:
            for step in range(steps):
                ...
                optimizer.step()
                probe.note({"loss_train": loss.item()})

    Nothing in the loop changes, the note is not needed. When the context ends well, a record is written.

    Args:
        model: calls :func:`maskprior.functional.attention`, as models do that ``attach`` was used on.
        optimizer: one ``step()`` is one step; not one that needs a closure.
        inputs: a fixed batch for ``model(inputs)``, on its device; None follows the mask priors alone.
        folder: where log and record go; made if missing.
        label: what the training is called.
        structure: S; None reads it from the mask priors as they start.
        allowed: hard constraint ``[query, key]`` of the model (True = may attend), such as causality.
        every: probe each so many steps, or at these numbers of finished steps.
        patterns: gives the attention patterns, for models that do not call this package's attention.

    Raises:
        ValueError: the model shows no attention or does not fit the structure.
        OSError: the folder cannot be written.
    """
    started, label, folder = time.perf_counter(), label or RunLabel(), Path(folder)
    prepare_folder(folder)
    if patterns is None and inputs is not None:
        patterns = patterns_of(model, lambda: model(inputs))
    subject = Subject(model, patterns, structure, allowed, every)
    recorder = PersistenceRecorder(subject, log_path(label.path(folder)))
    with recorder.watching(optimizer):
        yield recorder
    device = next(model.parameters()).device
    write_run(folder, label, time.perf_counter() - started, str(device))
