"""Many runs: those without a record are done, in this process or side by side in workers."""

import contextlib
import json
import multiprocessing
import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from maskprior.experiments.config import AnyRunConfig
from maskprior.experiments.files import prepare_folder
from maskprior.experiments.progress import describe
from maskprior.experiments.record import RecordError, RunRecord, read_record
from maskprior.experiments.run import execute, record_path
from maskprior.experiments.streamed import execute_streamed
from maskprior.experiments.train import Progress, TrainingDivergedError
from maskprior.tasks.base import StreamedTask

Outcome = RunRecord | TrainingDivergedError


class Reporter(Protocol):
    """Told what happens during a sweep; indices count the pending runs."""

    def begin(self, total: int, done: int) -> None:
        """``total`` runs in all, ``done`` of them already recorded."""

    def step(self, config: AnyRunConfig, step: int, point: dict[str, float]) -> None:
        """A run has finished ``step`` steps; ``point`` is the newest point of its curves."""

    def finish(self, config: AnyRunConfig, record: RunRecord) -> None:
        """A run is recorded."""


@dataclass(frozen=True)
class Device:
    """Where runs happen.

    Attributes:
        name: "auto" (what Accelerate finds) or "cpu".
        threads: torch threads of each process; None leaves torch's own choice.
    """

    name: str = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        """Check the name (ValueError)."""
        if self.name not in ("auto", "cpu"):
            raise ValueError(f"expected device 'auto' or 'cpu', got {self.name!r}")

    def accelerator(self, precision: str) -> Accelerator:
        """Accelerate's view of it, in "no", "bf16" or "fp16" precision."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        # One process may have runs of several precisions; the process group stays.
        AcceleratorState._reset_state()
        return Accelerator(cpu=self.name == "cpu", mixed_precision=precision)


def pending(
    configs: Sequence[AnyRunConfig], folder: Path
) -> tuple[list[AnyRunConfig], dict[Path, RunRecord]]:
    """Configurations without a record, and the records of the others by file.

    Raises:
        RecordError: a record is corrupt.
        ValueError: two configurations are the same run.
    """
    todo: dict[Path, AnyRunConfig] = {}
    done: dict[Path, RunRecord] = {}
    for config in configs:
        path = record_path(folder, config)
        if path in todo or path in done:
            raise ValueError(f"expected different runs, got {path.name} twice")
        if path.exists():
            done[path] = _own_record(path, config)
        else:
            todo[path] = config
    return list(todo.values()), done


def _own_record(path: Path, config: AnyRunConfig) -> RunRecord:
    """The record of this configuration; one of another under its name is refused."""
    record = read_record(path)
    same = (record.task, record.prior, record.seed) == (config.task.name, config.prior.name, config.seed)
    if not same or record.config != json.loads(json.dumps(config.to_json())):
        raise RecordError(
            f"{path}: expected the record of {describe(config)}, got another run's; move it away"
        )
    return record


def sweep(
    configs: Sequence[AnyRunConfig],
    folder: Path,
    reporter: Reporter,
    *,
    jobs: int = 1,
    device: Device | None = None,
) -> dict[Path, RunRecord]:
    """Run what has no record yet and return all records by file; an interrupted sweep goes on.

    Args:
        configs: the runs.
        folder: where records, weights and patterns go; made if missing.
        reporter: told of progress.
        jobs: worker processes; 1 runs in this process. Each worker uses one thread.
        device: where; the default finds an accelerator or uses the CPU.

    Raises:
        ValueError: jobs < 1, or two configurations are the same run.
        RecordError: a record in the folder is corrupt.
        OSError: the folder cannot be written.
        TrainingDivergedError: some runs' losses were not finite, named after all others have been done.
    """
    if jobs < 1:
        raise ValueError(f"expected jobs ≥ 1, got {jobs}")
    prepare_folder(folder)
    todo, records = pending(configs, folder)
    reporter.begin(len(configs), len(records))
    device = device or Device()
    if jobs == 1 or len(todo) <= 1:
        outcomes = _run_here(todo, folder, reporter, device)
    else:
        outcomes = _run_in_workers(
            todo, folder, reporter, min(jobs, len(todo)), Device(device.name, threads=1)
        )
    diverged = []
    for config, outcome in outcomes:
        if isinstance(outcome, TrainingDivergedError):
            diverged.append(f"{config.task.name}, {config.label}, seed {config.seed}: {outcome}")
        else:
            reporter.finish(config, outcome)
            records[record_path(folder, config)] = outcome
    if diverged:
        raise TrainingDivergedError("\n".join(diverged))
    return records


def _run_here(
    todo: Sequence[AnyRunConfig], folder: Path, reporter: Reporter, device: Device
) -> Iterator[tuple[AnyRunConfig, Outcome]]:
    for config in todo:
        yield config, _attempt(config, folder, device, partial(reporter.step, config))


def _attempt(config: AnyRunConfig, folder: Path, device: Device, progress: Progress) -> Outcome:
    """A diverged run is an outcome, so that it does not end the runs after it."""
    run = execute_streamed if isinstance(config.task, StreamedTask) else execute
    try:
        return run(config, folder, device.accelerator(config.training.precision), progress)
    except TrainingDivergedError as error:
        return error


Message = tuple[int, int, dict[str, float]]
_report: Callable[[Message], None] = lambda message: None  # noqa: E731  set in each worker


def _run_in_workers(
    todo: Sequence[AnyRunConfig], folder: Path, reporter: Reporter, jobs: int, device: Device
) -> Iterator[tuple[AnyRunConfig, Outcome]]:
    try:
        pickle.dumps(todo)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"expected tasks that worker processes can import (functions defined in a module), got: {error}; "
            "use jobs=1 for lambdas and local functions"
        ) from error
    # spawn: a forked child of a process with threads (torch, progress bar) can hang.
    context = multiprocessing.get_context("spawn")
    messages: multiprocessing.Queue[Message] = context.Queue()
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_enter_worker, initargs=(messages,)
    ) as pool:
        try:
            futures: dict[Future[Outcome], AnyRunConfig] = {
                pool.submit(_work, index, config, folder, device): config for index, config in enumerate(todo)
            }
            waiting = set(futures)
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                _forward(messages, todo, reporter)
                for future in finished:
                    yield futures[future], future.result()
        except BaseException:
            # Ctrl-C or a full disk: end the runs in progress, which have written no record yet.
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _forward(
    messages: "multiprocessing.Queue[Message]", todo: Sequence[AnyRunConfig], reporter: Reporter
) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            index, step, point = messages.get_nowait()
            reporter.step(todo[index], step, point)


def _enter_worker(messages: "multiprocessing.Queue[Message]") -> None:
    global _report
    _report = messages.put
    parent = multiprocessing.parent_process()
    if parent is not None:
        # Without this a worker would outlive a parent that was killed.
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _work(index: int, config: AnyRunConfig, folder: Path, device: Device) -> Outcome:
    return _attempt(config, folder, device, lambda step, point: _report((index, step, point)))
