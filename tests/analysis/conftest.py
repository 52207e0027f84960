"""Small records, and pictures read back as pixels."""

import io
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import numpy.typing as npt
import pytest

from maskprior.experiments.record import RunRecord, run_path, write_record

Pixels = npt.NDArray[np.uint8]

TARGET = {"x0*x1": 1.0, "x0": 0.0, "x1": 0.0, "1": 0.0}
MDI = {"x0*x1": 0.0, "x0": 1.0, "x1": 1.0, "1": -1.0}


@pytest.fixture(scope="session")
def make_record() -> Callable[..., RunRecord]:
    def make(
        *,
        task: str = "2parity",
        prior: str = "mask",
        variant: str = "",
        preset: str = "cpu",
        seed: int = 0,
        seconds: float = 2.0,
        metrics: Mapping[str, Any] | None = None,
        curves: Mapping[str, list[float]] | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> RunRecord:
        return RunRecord(
            task=task,
            prior=prior,
            preset=preset,
            seed=seed,
            config={
                "variant": variant or prior,
                "task": {"tokens": ["[CLS]", "x0", "x1"]},
                "training": training or {"steps": 20},
            },
            versions={"torch": "2.6.0", "python": "3.11.7"},
            commit="5c0ffee",
            dirty=False,
            hardware={"cpu": "Zähler 3", "cores": 2, "memory_gib": 23.5, "accelerator": None},
            seconds=seconds,
            metrics=dict(metrics or {"accuracy": 0.75}),
            curves=dict(curves or {"step": [0.0]}),
        )

    return make


@pytest.fixture(scope="session")
def boolean_record(make_record: Callable[..., RunRecord]) -> Callable[..., RunRecord]:
    """A run of 2parity: the mask prior learns the target, the others the shortcut."""

    def make(prior: str, seed: int, task: str = "2parity") -> RunRecord:
        learned = prior == "mask"
        end = {name: (TARGET if learned else MDI)[name] + 0.01 * seed for name in TARGET}
        steps = [0.0, 7.0, 20.0]
        curves = {
            "step": steps,
            "loss_train": [math.nan, 0.3, 1e-4 * (seed + 1)],
            "loss_seen": [2.0, 0.3, 1e-4 * (seed + 1)],
            "loss_unseen": [2.0, 1.5, 2e-4 * (seed + 1) if learned else 4.0],
            "accuracy_seen": [0.5, 0.9, 1.0],
            "accuracy_unseen": [0.5, 0.6, 1.0 if learned else 0.0],
        }
        for name, value in end.items():
            curves[f"coefficient.{name}"] = [0.0, value / 2, value]
        metrics = {
            "accuracy": 1.0 if learned else 0.75,
            "loss": 1e-4 if learned else 1.0 + 0.1 * seed,
            "accuracy_unseen": 1.0 if learned else 0.0,
            "loss_unseen": 2e-4 if learned else 4.0,
            "coefficients": end,
            "target_coefficients": TARGET,
            "mdi_coefficients": MDI,
            "mdi_distance": None,
        }
        return make_record(
            task=task, prior=prior, seed=seed, metrics=metrics, curves=curves, seconds=1.5 + seed
        )

    return make


@pytest.fixture(scope="session")
def save_records() -> Callable[..., dict[Path, RunRecord]]:
    def save(folder: Path, records: list[RunRecord]) -> dict[Path, RunRecord]:
        written = {}
        for record in records:
            path = run_path(
                folder,
                task=record.task,
                prior=record.prior,
                preset=record.preset,
                seed=record.seed,
                config=record.config,
            )
            write_record(path, record)
            written[path] = record
        return written

    return save


@pytest.fixture(scope="session")
def read_png() -> Callable[[bytes], Pixels]:
    """Pixels ``[height, width, 3]`` of a PNG whose header is checked by hand."""

    def read(data: bytes) -> Pixels:
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert data[12:16] == b"IHDR"
        width, height = struct.unpack(">II", data[16:24])
        pixels = np.asarray(matplotlib.image.imread(io.BytesIO(data), format="png"))
        assert pixels.shape[:2] == (height, width)
        return (pixels[..., :3] * 255).round().astype(np.uint8)

    return read
