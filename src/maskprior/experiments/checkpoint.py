"""Checkpoints of a training in progress: one safetensors file, from which it goes on bit by bit."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from maskprior.experiments.ema import Ema
from maskprior.experiments.files import RecordError, write_atomically
from maskprior.experiments.train import Curves


@dataclass
class Training:
    """Everything that changes while a model trains. What is random is a function of seed and step.

    Attributes:
        model: not wrapped.
        optimizer: torch's own.
        schedule: of the learning rates.
        ema: moving average of the weights, or None.
        curves: so far.
        step: finished updates.
        seconds: spent on updates so far, in all sessions.
        earlier: ``seconds`` of the sessions before this one.
        scaler: Accelerate's gradient scaler (fp16), or None.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    ema: Ema | None = None
    curves: Curves = field(default_factory=Curves)
    step: int = 0
    seconds: float = 0.0
    earlier: float = 0.0
    scaler: Any = None


def checkpoint_path(record_path: Path) -> Path:
    """``X.checkpoint.safetensors`` beside ``X.json``; it is there as long as the run is not finished."""
    return record_path.with_suffix(".checkpoint.safetensors")


def save_checkpoint(path: Path, training: Training) -> None:
    """Write the checkpoint, all or nothing, over the one before.

    Raises:
        OSError: the folder can't be written; the error names the file.
    """
    facts = {
        "step": training.step,
        "seconds": training.seconds,
        "curves": training.curves.points,
        "schedule": {k: v for k, v in training.schedule.state_dict().items() if k != "lr_lambdas"},
        "scaler": None if training.scaler is None else training.scaler.state_dict(),
    }
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in _tensors(training).items()}
    write_atomically(path, save(tensors, {"training": json.dumps(facts)}))


def load_checkpoint(path: Path, training: Training) -> bool:
    """Bring a training to where the checkpoint was; False where there is none.

    Raises:
        RecordError: the file is corrupt or of another model or optimiser; names the file.
    """
    if not path.exists():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a mapping
            facts = json.loads((file.metadata() or {})["training"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise RecordError(
            f"{path}: expected a checkpoint, got a truncated or corrupt file ({error}); delete it to "
            "start over"
        ) from error
    _restore(path, training, found, facts)
    return True


def _restore(path: Path, training: Training, found: Mapping[str, Tensor], facts: dict[str, Any]) -> None:
    own = {name: t for name, t in _tensors(training).items() if not name.startswith("optimizer.")}
    wrong = [n for n in own if n not in found or found[n].shape != own[n].shape]
    unknown = [n for n in found if n not in own and not n.startswith("optimizer.")]
    if wrong or unknown:
        raise RecordError(
            f"{path}: expected the checkpoint of this model, missing or of another shape: {wrong[:3]}, "
            f"unknown: {unknown[:3]}; delete it to start over"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(found[name])
    _restore_optimizer(training.optimizer, found)
    training.schedule.load_state_dict(facts["schedule"] | {"lr_lambdas": [None] * len(_groups(training))})
    for group, rate in zip(_groups(training), training.schedule.get_last_lr(), strict=True):
        group["lr"] = rate
    if training.scaler is not None and facts["scaler"]:
        training.scaler.load_state_dict(facts["scaler"])
    training.step, training.seconds = facts["step"], facts["seconds"]
    training.earlier = training.seconds
    training.curves.points = {name: list(map(float, values)) for name, values in facts["curves"].items()}


def _groups(training: Training) -> list[dict[str, Any]]:
    return training.optimizer.param_groups


def _tensors(training: Training) -> dict[str, Tensor]:
    tensors = {f"model.{name}": t for name, t in training.model.state_dict().items()}
    if training.ema is not None:
        tensors |= {f"ema.{name}": t for name, t in training.ema.tensors.items()}
    for index, state in training.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": t for key, t in state.items() if isinstance(t, Tensor)}
    return tensors


def _restore_optimizer(optimizer: torch.optim.Optimizer, found: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in found.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = tensor
    whole = optimizer.state_dict()
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
