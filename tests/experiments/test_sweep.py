"""Sweeps: resumable, reproducible, side by side, safe against interruption."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from maskprior.experiments.config import PriorConfig, RunConfig, TrainingConfig
from maskprior.experiments.files import read_tensors
from maskprior.experiments.presets import fit_model
from maskprior.experiments.progress import SilentReporter
from maskprior.experiments.record import RecordError, RunRecord, patterns_path, read_records, weights_path
from maskprior.experiments.run import build_model, record_path
from maskprior.experiments.seeding import named_generator
from maskprior.experiments.sweep import Device, sweep
from maskprior.experiments.train import TrainingDivergedError
from maskprior.models import TransformerConfig
from maskprior.tasks.gotu import two_parity

CPU = Device("cpu")
TINY = TransformerConfig(1, 1, 1, width=16, depth=2, heads=2, head_width=8, mlp_width=16)


def configs(
    *, steps: int = 4, seeds: int = 2, priors: tuple[str, ...] = ("vanilla", "mask"), rate: float = 1e-2
) -> list[RunConfig]:
    task = two_parity(5)
    training = TrainingConfig(steps=steps, learning_rate=rate, batch_size=16, probes=3)
    model = fit_model(TINY, task.interface())
    return [
        RunConfig(task, PriorConfig(prior), model, training, "tiny", seed)
        for seed in range(seeds)
        for prior in priors
    ]


def comparable(record: RunRecord) -> str:
    """All of a record but the time that it took, as text, in which NaN equals NaN."""
    return json.dumps(asdict(replace(record, seconds=0.0)), sort_keys=True)


def texts(records: dict[Path, RunRecord]) -> dict[str, str]:
    return {path.name: comparable(record) for path, record in records.items()}


class Count(SilentReporter):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.finished: list[str] = []
        self.steps: list[int] = []

    def begin(self, total: int, done: int) -> None:
        self.begun.append((total, done))

    def step(self, config: RunConfig, step: int, point: dict[str, float]) -> None:
        self.steps.append(step)

    def finish(self, config: RunConfig, record: RunRecord) -> None:
        self.finished.append(f"{record.prior} {record.seed}")


def test_a_sweep_writes_records_weights_and_patterns(tmp_path: Path) -> None:
    chosen = configs()
    records = sweep(chosen, tmp_path, SilentReporter(), device=CPU)
    assert len(records) == 4
    for config in chosen:
        path = record_path(tmp_path, config)
        raw = json.loads(path.read_text())
        assert set(raw) == {
            *("task", "prior", "preset", "seed", "config", "versions", "commit", "dirty", "hardware"),
            *("seconds", "metrics", "curves"),
        }
        metrics = {"accuracy", "loss", "accuracy_unseen", "loss_unseen", "coefficients", "mdi_distance"}
        assert metrics <= set(raw["metrics"])
        build_model(config).load_state_dict(read_tensors(weights_path(path)))
        patterns = read_tensors(patterns_path(path))
        assert patterns["attention_end"].shape == (2, 2, 6, 6)
        assert ("mask_logits_start" in patterns) == (config.prior.name == "mask")


def test_doing_it_again_does_nothing(tmp_path: Path) -> None:
    first = sweep(configs(), tmp_path, SilentReporter(), device=CPU)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    count = Count()
    second = sweep(configs(), tmp_path, count, device=CPU)
    assert count.begun == [(4, 4)]
    assert count.finished == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    assert texts(second) == texts(first)


def test_runs_are_bit_equal_in_any_order_and_in_workers(tmp_path: Path) -> None:
    alone = sweep(configs(), tmp_path / "alone", SilentReporter(), device=Device("cpu", threads=1))
    count = Count()
    workers = sweep(configs()[::-1], tmp_path / "workers", count, jobs=2, device=CPU)
    assert texts(alone) == texts(workers)
    assert sorted(count.finished) == ["mask 0", "mask 1", "vanilla 0", "vanilla 1"]
    assert set(count.steps) <= {0, 2, 4}
    for config in configs():
        one, other = (
            read_tensors(weights_path(record_path(tmp_path / name, config))) for name in ("alone", "workers")
        )
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_changing_the_prior_changes_neither_data_nor_other_weights() -> None:
    vanilla, mask = (build_model(config) for config in configs(seeds=1))
    expected = vanilla.state_dict()
    assert all(
        torch.equal(value, expected[key]) for key, value in mask.state_dict().items() if key in expected
    )
    tokens = vanilla.sample_inputs(64, named_generator(0, "x"))
    assert not torch.allclose(vanilla(tokens), mask(tokens))


def test_a_diverged_run_is_named_after_the_others_are_done(tmp_path: Path) -> None:
    bad = [
        replace(c, training=replace(c.training, optimizer="sgd", learning_rate=1e9)) for c in configs(seeds=1)
    ]
    good = configs(seeds=1)
    with pytest.raises(TrainingDivergedError, match="2parity, vanilla, seed 0: expected a finite"):
        sweep([bad[0], *good], tmp_path, SilentReporter(), device=CPU)
    assert len(read_records(tmp_path)) == len(good)


def test_a_corrupt_record_is_named(tmp_path: Path) -> None:
    sweep(configs(seeds=1), tmp_path, SilentReporter(), device=CPU)
    path = record_path(tmp_path, configs(seeds=1)[0])
    path.write_text(path.read_text()[:40])
    with pytest.raises(RecordError, match=path.name):
        sweep(configs(seeds=1), tmp_path, SilentReporter(), device=CPU)


def test_a_record_of_another_run_under_the_name_is_refused(tmp_path: Path) -> None:
    sweep(configs(seeds=1), tmp_path, SilentReporter(), device=CPU)
    one, other = (record_path(tmp_path, config) for config in configs(seeds=1))
    one.write_bytes(other.read_bytes())
    with pytest.raises(RecordError, match="another run's"):
        sweep(configs(seeds=1), tmp_path, SilentReporter(), device=CPU)


def test_a_task_that_workers_cannot_import_is_refused(tmp_path: Path) -> None:
    task = replace(two_parity(5), target=lambda points: points[..., 0])
    chosen = [replace(config, task=task) for config in configs(seeds=1)]
    with pytest.raises(ValueError, match="use jobs=1"):
        sweep(chosen, tmp_path, SilentReporter(), jobs=2, device=CPU)


@pytest.mark.parametrize(
    ("chosen", "jobs", "message"), [(configs(seeds=1), 0, "jobs ≥ 1"), (configs(seeds=1) * 2, 1, "twice")]
)
def test_bad_sweeps_are_refused(chosen: list[RunConfig], jobs: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        sweep(chosen, tmp_path, SilentReporter(), jobs=jobs, device=CPU)


def test_an_unknown_device_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="'auto' or 'cpu', got 'gpu'"):
        Device("gpu")


SWEEP = """
import signal
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_sweep import CPU, configs
from maskprior.experiments.progress import SilentReporter
from maskprior.experiments.sweep import sweep
if __name__ == "__main__":
    # A shell that starts the tests in the background makes its children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sweep(configs(steps=30, seeds=8), Path({folder!r}), SilentReporter(), jobs={jobs}, device=CPU)
"""


@pytest.mark.parametrize(("jobs", "how"), [(1, signal.SIGKILL), (2, signal.SIGKILL), (1, signal.SIGINT)])
def test_a_killed_sweep_goes_on_where_it_stopped(jobs: int, how: signal.Signals, tmp_path: Path) -> None:
    folder, script = tmp_path / "runs", tmp_path / "go.py"
    script.write_text(SWEEP.format(tests=str(Path(__file__).parent), folder=str(folder), jobs=jobs))
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    wait_for(lambda: len(list(folder.glob("*.json"))) >= 2)
    os.kill(process.pid, how)
    process.wait(60)
    survivors = read_records(folder)  # every file that is there is whole
    assert 2 <= len(survivors) < 16
    count = Count()
    records = sweep(configs(steps=30, seeds=8), folder, count, device=CPU)
    assert len(records) == 16
    # A worker that outlives its parent by a moment may finish the run that it is at.
    assert len(survivors) <= count.begun[0][1] <= len(survivors) + (jobs if jobs > 1 else 0)
    assert all(path.read_bytes() for path in folder.glob("*.json"))
    assert read_records(folder).keys() >= survivors.keys()


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    folder, script = tmp_path / "runs", tmp_path / "go.py"
    script.write_text(SWEEP.format(tests=str(Path(__file__).parent), folder=str(folder), jobs=2))
    process = subprocess.Popen(
        [sys.executable, str(script)], start_new_session=True, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: len(list(folder.glob("*.json"))) >= 1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    wait_for(lambda: not group_is_alive(process.pid))


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: object, seconds: float = 90) -> None:
    """Poll until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.02)
