"""The record of one run: all that tables, plots and reports may read, in one JSON file.

A run leaves ``X.json`` (the record), ``X.safetensors`` (final weights) and ``X.patterns.safetensors``
(attention and M at the start and the end). Each file is written atomically, the record last: where X.json is,
the run is finished.

JSON has no NaN: in ``metrics`` and ``curves`` every None, NaN and ±∞ is NaN from construction on, null in the
file and NaN when read back. ``config`` and ``hardware`` may hold None, but no number that is not finite.
It is the one object ``math.nan``, so that a record equals itself when read back.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from maskprior.experiments.files import (
    RecordError,
    prepare_folder,
    read_tensors,
    write_atomically,
    write_tensors,
)
from maskprior.experiments.provenance import Provenance, provenance

__all__ = [
    "Provenance",
    "RecordError",
    "RunRecord",
    "format_record",
    "patterns_path",
    "prepare_folder",
    "provenance",
    "read_record",
    "read_records",
    "read_tensors",
    "run_digest",
    "run_path",
    "weights_path",
    "write_atomically",
    "write_record",
    "write_tensors",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_A_NAME = "a name of letters, digits and . _ + - (it becomes part of a file's name)"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_config(value: object) -> bool:
    return isinstance(value, dict) and _is_name(value.get("variant"))


def _are_strings(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(part, str) for item in value.items() for part in item)


def _are_curves(value: object) -> bool:
    if not (isinstance(value, dict) and all(isinstance(curve, list) for curve in value.values())):
        return False
    steps = value.get("step")
    return (
        steps is not None
        and all(len(curve) == len(steps) and all(map(_is_number, curve)) for curve in value.values())
        and all(math.isfinite(step) for step in steps)
        and all(earlier < later for earlier, later in pairwise(steps))
    )


_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "task": (_A_NAME, _is_name),
    "prior": (_A_NAME, _is_name),
    "preset": (_A_NAME, _is_name),
    "seed": ("an integer ≥ 0", lambda seed: isinstance(seed, int) and _is_number(seed) and seed >= 0),
    "config": (f'an object whose "variant" is {_A_NAME}', _is_config),
    "versions": ("an object of strings", _are_strings),
    "commit": ("a non-empty string", lambda commit: isinstance(commit, str) and commit != ""),
    "dirty": ("true or false", lambda dirty: isinstance(dirty, bool)),
    "hardware": ("an object", lambda hardware: isinstance(hardware, dict)),
    "seconds": ("a finite number ≥ 0", lambda s: _is_number(s) and math.isfinite(s) and s >= 0),
    "metrics": ("an object", lambda metrics: isinstance(metrics, dict)),
    "curves": ('an object of equally long lists of numbers, with an increasing "step"', _are_curves),
}


@dataclass(frozen=True)
class RunRecord:
    """Everything about one finished run.

    Attributes:
        task: name of the task.
        prior: name of the prior, which also chooses its colour and place in tables.
        preset: name of the preset.
        seed: root seed.
        config: JSON values that define the run: "variant" (label of the row in tables), "task", "prior",
            "model", "training".
        versions: of Python and the packages that computed it.
        commit: of the source tree, or "unknown".
        dirty: whether tracked files outside ``results/`` differed from the commit.
        hardware: processor, cores, threads, memory (GiB), accelerator.
        seconds: wall-clock time of the run.
        metrics: final JSON values; accuracies are in [0, 1].
        curves: lists of one length; "step" (strictly increasing) is always there.

    Raises:
        RecordError: a field is not of its type, or holds what JSON cannot.
    """

    task: str
    prior: str
    preset: str
    seed: int
    config: dict[str, Any]
    versions: dict[str, str]
    commit: str
    dirty: bool
    hardware: dict[str, Any]
    seconds: float
    metrics: dict[str, Any]
    curves: dict[str, list[float]]

    def __post_init__(self) -> None:
        """Bring nested values to plain JSON types, then check the fields."""
        for name, gap in (("config", None), ("hardware", None), ("metrics", math.nan), ("curves", math.nan)):
            object.__setattr__(self, name, _plain(getattr(self, name), name, gap))
        for name, (expected, fits) in _EXPECTED.items():
            value = getattr(self, name)
            if not fits(value):
                raise RecordError(f"expected `{name}` as {expected}, got {_shorten(value)}")
        curves = {name: [float(value) for value in curve] for name, curve in self.curves.items()}
        object.__setattr__(self, "curves", curves)

    @property
    def variant(self) -> str:
        """Label of the run's row in tables: the prior's name, or that of a variation of it."""
        return str(self.config["variant"])


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _plain(value: object, where: str, gap: float | None) -> Any:
    """The value in plain JSON types, with ``gap`` for None; not finite becomes it too, unless it is None."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        if value is not None and gap is None:
            raise RecordError(f"expected `{where}` as a finite number, got {value}")
        return gap
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise RecordError(f"expected strings as keys of `{where}`, got {odd[0]!r}")
        return {key: _plain(item, f"{where}.{key}", gap) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]", gap) for index, item in enumerate(value)]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (str, int)):
        return value
    raise RecordError(f"expected `{where}` as a plain JSON value, got {type(value).__name__}")


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nulls(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nulls(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _lay_out(mapping: Mapping[str, str], indent: str) -> str:
    """A JSON object of ready values, one key a line."""
    lines = [f"{indent}  {_to_json(key)}: {text}" for key, text in sorted(mapping.items())]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"


def format_record(record: RunRecord) -> str:
    """The record as JSON: sorted keys, a curve a line, shortest exact decimals, a newline at the end."""
    values = {field.name: _with_nulls(getattr(record, field.name)) for field in fields(record)}
    texts = {
        name: _lay_out({key: _to_json(item) for key, item in value.items()}, "  ")
        if isinstance(value, dict)
        else _to_json(value)
        for name, value in values.items()
    }
    return _lay_out(texts, "") + "\n"


def write_record(path: Path, record: RunRecord) -> None:
    """Write the record, all or nothing (see :func:`write_atomically`)."""
    write_atomically(path, format_record(record).encode())


def read_record(path: Path) -> RunRecord:
    """Read one record, strictly.

    Raises:
        RecordError: the JSON is truncated or corrupt, a field is missing, unknown or of a wrong type.
        OSError: there is no such file, or it can't be read.
    """
    try:
        values = json.loads(path.read_text("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{path}: expected a run record, got truncated or corrupt JSON ({error}); delete it and run again"
        ) from error
    names = [field.name for field in fields(RunRecord)]
    if not isinstance(values, dict) or values.keys() != set(names):
        raise RecordError(f"{path}: expected the fields {', '.join(names)}; {_tell_fields(values, names)}")
    try:
        return RunRecord(**values)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _tell_fields(values: object, names: list[str]) -> str:
    if not isinstance(values, dict):
        return f"got {_shorten(values)}"
    missing = sorted(set(names) - values.keys())
    unknown = sorted(values.keys() - set(names))
    return f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"


def read_records(folder: Path) -> dict[Path, RunRecord]:
    """All records of one folder (not of those below it), by file, sorted by name.

    Files other than ``*.json`` are ignored.

    Raises:
        RecordError: there is no such folder, it holds no record, or one of them is corrupt.
    """
    if not folder.is_dir():
        raise RecordError(f"{folder}: expected a folder of run records (*.json), got no such folder")
    paths = sorted(path for path in folder.glob("*.json") if path.is_file())
    if not paths:
        raise RecordError(f"{folder}: expected run records (*.json), got none")
    return {path: read_record(path) for path in paths}


def run_digest(*, task: str, prior: str, preset: str, seed: int, config: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of SHA-256 over the canonical JSON of what defines a run.

    Raises:
        RecordError: the config holds what JSON cannot.
    """
    identity = {
        "task": task,
        "prior": prior,
        "preset": preset,
        "seed": seed,
        "config": _plain(config, "config", None),
    }
    return hashlib.sha256(_to_json(identity).encode()).hexdigest()[:8]


def run_path(
    folder: Path, *, task: str, prior: str, preset: str, seed: int, config: Mapping[str, Any]
) -> Path:
    """Where the record of a run lies: ``{task}-{variant}-seed{seed}-{digest}.json``.

    Raises:
        RecordError: the task or the variant can't be part of a file's name, or the config is not JSON.
    """
    variant = config.get("variant")
    for name, value in (("task", task), ('config["variant"]', variant)):
        if not _is_name(value):
            raise RecordError(f"expected `{name}` as {_A_NAME}, got {value!r}")
    digest = run_digest(task=task, prior=prior, preset=preset, seed=seed, config=config)
    return folder / f"{task}-{variant}-seed{seed}-{digest}.json"


def weights_path(record_path: Path) -> Path:
    """``X.safetensors`` beside ``X.json``."""
    return record_path.with_suffix(".safetensors")


def patterns_path(record_path: Path) -> Path:
    """``X.patterns.safetensors`` beside ``X.json``."""
    return record_path.with_suffix(".patterns.safetensors")
