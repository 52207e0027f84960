"""The trained model of a finished run, from its record and weights."""

from pathlib import Path

import torch

from maskprior.experiments.files import RecordError, read_tensors
from maskprior.experiments.record import RunRecord, read_record, weights_path
from maskprior.mask_prior import MaskPrior
from maskprior.models import Transformer, TransformerConfig


def find_run(path: Path) -> Path:
    """The record that a path means: the file itself, or the only record with weights in a folder.

    Raises:
        ValueError: no such file, or a folder without such a record or with several; names them.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(f"expected a record (….json) or a folder of records, got {path}, which is not there")
    found = [file for file in sorted(path.glob("*.json")) if weights_path(file).is_file()]
    if len(found) == 1:
        return found[0]
    names = "".join(f"\n  {file}" for file in found[:20])
    raise ValueError(
        f"expected a folder with one record that has its weights beside it, got {len(found)} in {path}"
        + (f"; name one of them:{names}" if found else "; published records come without weights")
    )


def restore(path: Path) -> tuple[RunRecord, Transformer]:
    """Record and trained model, in evaluation mode on the CPU.

    Raises:
        RecordError: a broken record, or one of another kind of model.
        ValueError: weights that are missing, broken or of another model.
    """
    record, file = read_record(path), weights_path(path)
    try:
        shape = record.config["model"]
        blocks = tuple(shape.get("block_of_layer", ()))
        model = TransformerConfig(**shape | {"block_of_layer": blocks}).build(torch.Generator())
    except (TypeError, KeyError) as error:
        raise RecordError(
            f"expected a run of maskprior's own Transformer in {path}, got another model"
        ) from error
    if not file.is_file():
        raise ValueError(f"expected the weights of {path.name} beside it, got no {file.name}; run it again")
    tensors = read_tensors(file)
    logits = [tensors[name] for name in sorted(tensors, key=_number) if name.startswith("priors.")]
    try:
        if logits:
            priors = [MaskPrior(tensor) for tensor in logits]
            model.set_priors(priors * model.config.depth if len(priors) == 1 else priors)
        model.load_state_dict(tensors)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"expected the weights of {path.name} in {file.name}, got others: {error}"
        ) from error
    return record, model.eval()


def _number(name: str) -> int:
    """priors.12.mask_logits → 12."""
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)
