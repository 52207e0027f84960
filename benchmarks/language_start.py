"""Seconds from the command to the first training step, with an empty token cache and with a full one.

    python -m benchmarks.language_start --data WIKITEXT2 [--json results/benchmarks/language-start.json]

Starts a process of its own twice, each with one thread and the same cache folder, empty at first: read
WikiText-2, train the tokenizer, tokenise, build the model with its prior, forward and backward of one batch.
Loading Python and PyTorch is part of it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from maskprior.experiments.files import prepare_folder, write_atomically
from maskprior.experiments.provenance import provenance
from maskprior.experiments.streamed import build_streamed
from maskprior.language.presets import LanguageRecipe, cpu_recipe, docstrings, wikitext2
from maskprior.tasks.base import Reader


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        data: folder or hub id of WikiText-2; "docstrings" takes those of the standard library.
        json: file of the record; none by default.
        here: do the work in this process, once, and measure nothing.
    """

    data: str = ""
    json: Path | None = None
    here: bool = False


def recipe_of(data: str) -> LanguageRecipe:
    """The cpu recipe of the text."""
    return cpu_recipe(docstrings() if data == "docstrings" else wikitext2(data))


def first_step(recipe: LanguageRecipe) -> float:
    """Everything up to the gradients of the first batch; its loss."""
    torch.set_num_threads(1)
    run = recipe.run("toeplitz", 0)
    stream = run.task.open(run.seed, run.training.batch_size, Reader(torch.device("cpu")))
    model = build_streamed(run)
    inputs, targets = next(stream.batches(0))
    loss = stream.loss(model(inputs), targets)
    loss.backward()
    return loss.item()


def seconds_of(data: str, cache: str) -> float:
    """Wall-clock time of a process that does :func:`first_step`."""
    command = [sys.executable, "-m", "benchmarks.language_start", "--here", "--data", data]
    started = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "MASKPRIOR_CACHE": cache, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - started


def run(options: Options) -> None:
    """Measure, print and write."""
    if options.here:
        first_step(recipe_of(options.data))
        return
    if options.json is not None:
        prepare_folder(options.json.parent)
    with tempfile.TemporaryDirectory() as cache:
        found = {name: seconds_of(options.data, cache) for name in ("empty_cache", "full_cache")}
    print("  ".join(f"{name} {seconds:.1f} s" for name, seconds in found.items()))
    if options.json is not None:
        record = {
            "command": "python -m benchmarks.language_start --data WIKITEXT2",
            "seconds": found,
            **provenance(torch.device("cpu")),
        }
        write_atomically(options.json, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    run(tyro.cli(Options, description=__doc__))
