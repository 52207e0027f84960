"""Persistence of a prior during training with Hugging Face's Trainer."""

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from maskprior.analysis.observation import patterns_of
from maskprior.analysis.persistence_log import log_path
from maskprior.analysis.recorded_run import RunLabel, write_run
from maskprior.analysis.recorder import DEFAULT_INTERVAL, PersistenceRecorder, Subject


class PersistenceCallback(TrainerCallback):
    """Follows a Trainer; ``maskprior report FOLDER --html`` then shows it.

        Trainer(model, args, callbacks=[PersistenceCallback(inputs, "runs")], …)

    The numbers that the Trainer logs become the curves. The record is written when training ends.

    Args:
        inputs: a fixed batch of the model's keyword arguments, all at full length.
        folder: where log and record go; made if missing.
        label: what the training is called.
        structure: S; None reads it from the mask priors as they start.
        allowed: hard constraint ``[query, key]`` of the model (True = may attend), such as causality.
        every: probe each so many updates, or at these numbers of finished updates.
    """

    def __init__(
        self,
        inputs: Mapping[str, Tensor],
        folder: Path | str,
        *,
        label: RunLabel | None = None,
        structure: Tensor | None = None,
        allowed: Tensor | None = None,
        every: int | Collection[int] = DEFAULT_INTERVAL,
    ) -> None:
        self._inputs, self._folder = inputs, Path(folder)
        self._label = label or RunLabel()
        self._structure, self._allowed, self._every = structure, allowed, every
        self._recorder: PersistenceRecorder | None = None
        self._stack = ExitStack()
        self._started = 0.0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Start to follow, in the main process."""
        if not state.is_world_process_zero or model is None or optimizer is None:
            return
        followed = model
        device = next(followed.parameters()).device
        inputs = {name: tensor.to(device) for name, tensor in self._inputs.items()}
        subject = Subject(
            followed,
            patterns_of(followed, lambda: followed(**inputs)),
            self._structure,
            self._allowed,
            self._every,
        )
        self._recorder = PersistenceRecorder(subject, log_path(self._label.path(self._folder)))
        self._started = time.perf_counter()
        self._stack.enter_context(self._recorder.watching(optimizer))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note the training loss and whatever is measured in evaluation."""
        if self._recorder is None:
            return
        names = {"loss": "loss_train", "eval_loss": "loss_test"}
        noted = {names.get(name, name): value for name, value in (logs or {}).items()}
        wanted = ("loss_", "eval_")
        self._recorder.note(
            {n: float(v) for n, v in noted.items() if isinstance(v, (int, float)) and n.startswith(wanted)}
        )

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Take the last probe and write the record."""
        if self._recorder is None:
            return
        self._stack.close()
        self._recorder = None
        write_run(self._folder, self._label, time.perf_counter() - self._started, str(args.device))
