"""The persistence log of one training: a JSON line a probe, written as training goes.

The first line is the header, each other one a :class:`Probe`. A log of training that was killed is whole up
to its last line. Beside a record X.json it is X.persistence.jsonl.

A frame is a small picture of patterns ``[layers, query, key]`` in [0, 1]: at most 32 × 32 cells, one byte a
cell, in which small values are kept apart by the square root.
"""

import base64
import binascii
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskprior.experiments.files import RecordError

FORMAT = "maskprior persistence log 1"
LARGEST_FRAME = 32
DIGITS = 5

Measures = Mapping[str, Sequence[float]]


@dataclass(frozen=True, eq=False)
class Header:
    """What the probes are about.

    Attributes:
        structure: S ``[layers or 1, query, key]``, mean over heads.
        attention_limit: for each attention layer, the advantage of a perfect pattern (see
            :class:`~maskprior.analysis.persistence.Target`); empty where attention is not followed.
        prior_limit: the same for each mask prior.
        tokens: one name a token, or none.
    """

    structure: Tensor
    attention_limit: Sequence[float]
    prior_limit: Sequence[float]
    tokens: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Probe:
    """What was seen at one step.

    Attributes:
        step: number of finished updates.
        measures: by name, one value a layer (or a prior); NaN where there is none.
        notes: single numbers that the training loop has told, such as its loss.
        frames: patterns by name, ``[layers, query, key]`` in [0, 1].
    """

    step: int
    measures: Measures
    notes: Mapping[str, float] = field(default_factory=dict)
    frames: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Log:
    """A log as it is read."""

    header: Header
    probes: Sequence[Probe]

    @property
    def steps(self) -> list[float]:
        """Step of each probe."""
        return [float(probe.step) for probe in self.probes]

    def curve(self, name: str) -> list[list[float]]:
        """One measure over time, probe by probe, layer by layer; empty where it was not taken."""
        return [list(probe.measures[name]) for probe in self.probes if name in probe.measures]


def log_path(record_path: Path) -> Path:
    """``X.persistence.jsonl`` beside ``X.json``."""
    return record_path.with_suffix(".persistence.jsonl")


class LogWriter:
    """Writes a log line by line; holds nothing of what it has written.

    Args:
        path: replaced if it exists.
        header: the first line.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        first = {
            "format": FORMAT,
            "structure": encode_frame(header.structure),
            "attention_limit": _rounded(header.attention_limit),
            "prior_limit": _rounded(header.prior_limit),
            "tokens": list(header.tokens),
        }
        path.write_text(_line(first), encoding="utf-8")

    def write(self, probe: Probe) -> None:
        """Append one probe; it is in the file when this returns."""
        values = {
            "step": probe.step,
            "measures": {name: _rounded(numbers) for name, numbers in probe.measures.items()},
            "notes": {name: _rounded([number])[0] for name, number in probe.notes.items()},
            "frames": {name: encode_frame(frame) for name, frame in probe.frames.items()},
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line({name: value for name, value in values.items() if value != {}}))


def read_log(path: Path) -> Log:
    """Read a log.

    Raises:
        RecordError: it is truncated or corrupt; names the file and the line.
        OSError: there is no such file, or it cannot be read.
    """
    parsed: list[Any] = []
    number = 0
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            values = json.loads(line)
            parsed.append(_parse_header(values) if number == 1 else _parse_probe(values))
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error, RuntimeError) as error:
        raise RecordError(f"{path}, line {number}: expected a persistence log, got {error!r}") from error
    if not parsed:
        raise RecordError(f"{path}: expected a persistence log, got an empty file")
    return Log(parsed[0], parsed[1:])


def _parse_header(values: dict[str, Any]) -> Header:
    if values.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT!r}, got {values.get('format')!r}")
    return Header(
        decode_frame(values["structure"]),
        _numbers(values["attention_limit"]),
        _numbers(values["prior_limit"]),
        [str(name) for name in values["tokens"]],
    )


def _parse_probe(values: dict[str, Any]) -> Probe:
    return Probe(
        step=int(values["step"]),
        measures={name: _numbers(numbers) for name, numbers in values["measures"].items()},
        notes={name: _numbers([number])[0] for name, number in values.get("notes", {}).items()},
        frames={name: decode_frame(frame) for name, frame in values.get("frames", {}).items()},
    )


def encode_frame(patterns: Tensor) -> dict[str, Any]:
    """Patterns ``[layers, query, key]`` in [0, 1] as JSON values: "shape" and "data" (zlib, base 64).

    Raises:
        ValueError: another number of dimensions.
    """
    if patterns.dim() != 3:
        raise ValueError(f"expected a frame [layers, query, key], got {list(patterns.shape)}")
    small = patterns.detach().float().cpu()
    size = (min(small.shape[1], LARGEST_FRAME), min(small.shape[2], LARGEST_FRAME))
    if size != small.shape[1:]:
        small = torch.nn.functional.adaptive_avg_pool2d(small, size)
    cells = (small.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)
    data = base64.b64encode(zlib.compress(cells.numpy().tobytes(), 9)).decode("ascii")
    return {"shape": list(cells.shape), "data": data}


def decode_frame(frame: Mapping[str, Any]) -> Tensor:
    """Inverse of :func:`encode_frame`, up to its rounding.

    Raises:
        ValueError: the data are not a frame of that shape.
    """
    try:
        cells = zlib.decompress(base64.b64decode(frame["data"], validate=True))
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"expected compressed cells in base 64, got {error}") from error
    shape = [int(size) for size in frame["shape"]]
    if len(shape) != 3 or math.prod(shape) != len(cells):
        raise ValueError(f"expected a frame of shape {shape}, got {len(cells)} cells")
    values = torch.frombuffer(bytearray(cells), dtype=torch.uint8).reshape(shape)
    return (values.float() / 255).square()


def _rounded(numbers: Sequence[float]) -> list[float | None]:
    """Numbers with a few digits; null where there is none."""
    return [float(f"{number:.{DIGITS}g}") if math.isfinite(number) else None for number in numbers]


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
