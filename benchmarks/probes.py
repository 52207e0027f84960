"""What a persistence probe costs, in parts of a training step.

    python -m benchmarks.probes [--json results/benchmarks/probes.json]

Two models of the CPU preset's kind with a mask prior in every layer take the same steps, forward, backward
and Adam, in turn: one of them with a recorder that probes at each step. The median difference is the cost of
one probe (patterns of the probe batch, all measures, gradient norms, update sizes, the line in the log, at
times a frame). Divided by the interval it is the cost of following a training. One thread, float32, CPU.
"""

import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

from maskprior.analysis.recorder import DEFAULT_INTERVAL
from maskprior.experiments.files import write_atomically
from maskprior.experiments.optimizer import make_optimizer
from maskprior.experiments.presets import make_configs
from maskprior.experiments.probes import EARLY, PROBE_INPUTS, run_recorder
from maskprior.experiments.provenance import provenance
from maskprior.experiments.run import build_model
from maskprior.experiments.seeding import named_generator

WARM_UP = 5


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        task: which task's model and batch, at the "cpu" preset.
        steps: timed steps of each model.
        json: also write the result here.
    """

    task: str = "2parity"
    steps: int = 60
    json: Path | None = None


def measure(options: Options) -> dict[str, float]:
    """Median seconds of a step and of a probe, and the costs in percent of training."""
    torch.set_num_threads(1)
    (config,) = make_configs("cpu", options.task, ["mask"], [0])
    splits = config.task.splits(named_generator(0, "data"))
    rows = slice(0, config.training.batch_size)
    inputs, targets = splits.train.inputs[rows], splits.train.targets[rows]
    models = {"plain": build_model(config), "followed": build_model(config)}
    optimizers = {name: make_optimizer(model, config.training) for name, model in models.items()}
    every_step = replace(config, training=replace(config.training, steps=64, probes=65))
    seconds: dict[str, list[float]] = {name: [] for name in models}
    with tempfile.TemporaryDirectory() as folder:
        recorder = run_recorder(every_step, models["followed"], splits.probe, Path(folder) / "x.json")
        with recorder.watching(optimizers["followed"]):
            for repeat in range(options.steps + WARM_UP):
                for name, model in models.items():
                    started = time.perf_counter()
                    config.task.loss(model(inputs), targets).backward()
                    optimizers[name].step()
                    optimizers[name].zero_grad()
                    if repeat >= WARM_UP:
                        seconds[name].append(time.perf_counter() - started)
    return _costs(seconds, config.training.steps / (config.training.probes + len(EARLY)))


def _costs(seconds: dict[str, list[float]], own_interval: float) -> dict[str, float]:
    step = statistics.median(seconds["plain"])
    # Pair by pair, so that what slows the machine down for a while slows both.
    pairs = zip(seconds["followed"], seconds["plain"], strict=True)
    probe = statistics.median(followed - plain for followed, plain in pairs)
    return {
        "step_ms": 1e3 * step,
        "probe_ms": 1e3 * probe,
        "probe_in_steps": probe / step,
        "percent_at_default_interval": 100 * probe / step / DEFAULT_INTERVAL,
        "percent_in_own_runs": 100 * probe / step / own_interval,
    }


def main(options: Options) -> None:
    """Measure, print, write."""
    result = measure(options)
    for name, value in result.items():
        print(f"{name:<30} {value:10.3f}")
    if options.json is not None:
        settings = {"task": options.task, "steps": options.steps, "probe_inputs": PROBE_INPUTS}
        report = {**result, "settings": settings, **provenance()}
        write_atomically(options.json, (json.dumps(report, indent=2) + "\n").encode())


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
