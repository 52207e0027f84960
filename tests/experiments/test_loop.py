"""Long trainings: resumed bit by bit, averaged, the same with several processes."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from maskprior.experiments.checkpoint import checkpoint_path, load_checkpoint
from maskprior.experiments.files import RecordError, read_tensors
from maskprior.experiments.progress import SilentReporter
from maskprior.experiments.record import RunRecord, read_records, weights_path
from maskprior.experiments.run import record_path
from maskprior.experiments.streamed import execute_streamed
from maskprior.experiments.sweep import Device, sweep
from maskprior.experiments.train import TrainingDivergedError
from tests.experiments.toy_stream import toy_config

CPU = Device("cpu", threads=1)
SCRIPT = Path(__file__).with_name("toy_stream.py")
Points = list[tuple[int, dict[str, float]]]


def run(folder: Path, points: Points | None = None, **options: Any) -> RunRecord:
    def note(step: int, point: dict[str, float]) -> None:
        if points is not None:
            points.append((step, point))

    return execute_streamed(toy_config(**options), folder, CPU.accelerator("no"), note)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = (file for file in folder.glob("*.safetensors") if file.name.count(".") == 1)
    return read_tensors(file)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("broken_from", [1, 6, 11])
def test_an_interrupted_run_ends_with_the_same_bits(
    optimizer: str, ema: float, broken_from: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "ema": ema}
    whole = run(tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", broken_from=broken_from, **options)
    (checkpoint,) = (tmp_path / "parts").glob("*.checkpoint.safetensors")
    points: Points = []
    parts = run(tmp_path / "parts", points, **options)
    assert [step for step, _ in points] == [step for step in (0, 4, 8, 12) if step > broken_from // 4 * 4]
    assert json.dumps(parts.curves) == json.dumps(whole.curves)
    assert parts.metrics["loss"] == whole.metrics["loss"]
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not checkpoint.exists()


def test_learning_happens_and_depends_on_what_is_drawn(tmp_path: Path) -> None:
    record = run(tmp_path / "a")
    assert record.curves["loss_validation"][-1] < 0.95 * record.curves["loss_validation"][0]
    other = run(tmp_path / "b", dropout=0.0)
    assert other.metrics["loss"] != record.metrics["loss"]
    assert record.metrics["images_per_second"] > 0


def test_the_average_is_what_is_judged(tmp_path: Path) -> None:
    averaged, plain = run(tmp_path / "ema"), run(tmp_path / "plain", ema=0.0)
    assert averaged.curves["loss_train"][1:] == plain.curves["loss_train"][1:]  # training itself is the same
    assert averaged.metrics["loss"] != plain.metrics["loss"]
    assert averaged.metrics["loss"] == averaged.curves["loss_validation"][-1]


def test_global_generators_are_given_back(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sweep_runs_streamed_tasks_and_doing_it_again_does_nothing(tmp_path: Path) -> None:
    configs = [replace(toy_config(), seed=seed) for seed in (0, 1)]
    first = sweep(configs, tmp_path, SilentReporter(), device=Device("cpu"))
    assert set(first) == {record_path(tmp_path, config) for config in configs}
    assert all(weights_path(path).exists() for path in first)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    sweep(configs, tmp_path, SilentReporter(), device=Device("cpu"))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times


def test_a_corrupt_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, broken_from=6)
    (checkpoint,) = tmp_path.glob("*.checkpoint.safetensors")
    whole = checkpoint.read_bytes()
    for damaged in (whole[:100], b"", whole[:-20]):
        checkpoint.write_bytes(damaged)
        with pytest.raises(RecordError, match=rf"{checkpoint.name}.*delete it to start over"):
            run(tmp_path)


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, broken_from=6)
    (checkpoint,) = tmp_path.glob("*.checkpoint.safetensors")
    other = record_path(tmp_path, toy_config(ema=0.0))
    checkpoint.rename(checkpoint_path(other))
    with pytest.raises(RecordError, match=r"unknown: \['ema"):
        run(tmp_path, ema=0.0)


def test_without_a_checkpoint_nothing_is_loaded(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "none", training=None) is False  # type: ignore[arg-type]


def test_a_diverged_run_is_told(tmp_path: Path) -> None:
    config = toy_config(optimizer="sgd", ema=0.0)
    bad = replace(
        config, training=replace(config.training, learning_rate=1e30, gradient_clip=0.0, weight_decay=0.0)
    )
    with pytest.raises(TrainingDivergedError, match="expected a finite training loss"):
        execute_streamed(bad, tmp_path, CPU.accelerator("no"), lambda step, point: None)


def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    single = subprocess.run([sys.executable, SCRIPT, tmp_path / "1"], check=False)
    workers = [
        subprocess.Popen(
            [sys.executable, SCRIPT, tmp_path / "2"],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "ACCELERATE_USE_CPU": "true",
            },
        )
        for rank in range(2)
    ]
    assert [single.returncode, *(worker.wait(200) for worker in workers)] == [0, 0, 0]
    (one,), (two,) = (read_records(tmp_path / name).values() for name in ("1", "2"))
    assert two.curves["loss_validation"] == pytest.approx(one.curves["loss_validation"], rel=1e-5)
    first, second = weights(tmp_path / "1"), weights(tmp_path / "2")
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-5)
