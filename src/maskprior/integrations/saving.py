"""An attachment on disk: M in safetensors, where it goes in JSON. Nothing is executed when it is read."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, float32, float64

from maskprior.integrations.bank import Plan, PriorBank
from maskprior.integrations.lengths import Lengths
from maskprior.mask_prior import MaskPrior

CONFIG_NAME = "bias_priors.json"
TENSORS_NAME = "bias_priors.safetensors"
FORMAT = "maskprior.attachment/1"


def write_attachment(bank: PriorBank, directory: str | PathLike[str]) -> None:
    """Write both files, the directory too.

    Raises:
        ValueError: the priors were baked.
    """
    priors = [prior for prior in bank if isinstance(prior, MaskPrior)]
    if len(priors) != len(bank):
        raise ValueError(
            "expected priors with mask logits, got baked ones; the host's state_dict holds their bias"
        )
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    logits = {_key(i): prior.mask_logits.detach().cpu().contiguous() for i, prior in enumerate(priors)}
    learnable = [prior.mask_logits.requires_grad for prior in priors]
    config = {"format": FORMAT, **asdict(bank.plan), "learnable": learnable}
    save_file(logits, folder / TENSORS_NAME, metadata={"format": "pt"})
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n")


def read_attachment(directory: str | PathLike[str]) -> PriorBank:
    """Read both files.

    Raises:
        FileNotFoundError: one is not there.
        ValueError: they are not what :func:`write_attachment` writes.
    """
    folder = Path(directory)
    plan, learnable = _read_config(folder / CONFIG_NAME)
    logits = _read_logits(folder / TENSORS_NAME, [_key(index) for index in range(len(learnable))])
    priors = [MaskPrior(values, learnable=learn) for values, learn in zip(logits, learnable, strict=True)]
    return PriorBank(priors, plan)


def _key(index: int) -> str:
    return f"{index}.mask_logits"


def _read_config(path: Path) -> tuple[Plan, list[bool]]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected JSON in {path}, got a file that is not: {error}") from None
    expected = {"format", "layers", "prior_of_layer", "heads", "lengths", "by_relation", "learnable"}
    if not isinstance(config, dict) or set(config) != expected or config["format"] != FORMAT:
        found = sorted(config) if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"expected {path} with format {FORMAT!r} and keys {sorted(expected)}, got {found}")
    try:
        return _plan(config), _booleans(config["learnable"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"expected the fields of an attachment in {path}: {error}") from None


def _plan(config: Mapping[str, Any]) -> Plan:
    layers = tuple(_of_type(str, config["layers"]))
    index = tuple(_of_type(int, config["prior_of_layer"]))
    heads = None if config["heads"] is None else tuple(_of_type(int, config["heads"]))
    priors = len(_booleans(config["learnable"]))
    if len(index) != len(layers) or set(index) != set(range(priors)):
        raise TypeError(f"{len(layers)} layers with priors {list(index)} of {priors}")
    lengths = config["lengths"]
    grid = None if lengths["grid"] is None else tuple(_of_type(int, lengths["grid"]))
    if grid is not None and len(grid) != 2:
        raise TypeError(f"a grid of {len(grid)} sides")
    (prefix,), (by_relation,) = _of_type(int, [lengths["prefix"]]), _booleans([config["by_relation"]])
    return Plan(layers, index, heads, Lengths(lengths["rule"], grid, prefix), by_relation)


def _of_type(kind: type, values: object) -> list[Any]:
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise TypeError(f"expected a list of {kind.__name__}, got {values!r}")
    return values


def _booleans(values: object) -> list[bool]:
    return _of_type(bool, values)


def _read_logits(path: Path, keys: list[str]) -> list[Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"expected {path}")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"expected a complete safetensors file at {path} (pickles are never read): {error}"
        ) from None
    if set(tensors) != set(keys):
        raise ValueError(f"expected tensors {keys} in {path}, got {sorted(tensors)}")
    for key, values in tensors.items():
        if values.dtype not in (float32, float64):
            raise ValueError(f"expected float32 mask logits in {path}, got {key} of {values.dtype}")
    return [tensors[key] for key in keys]
