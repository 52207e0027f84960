"""Tokens a second in cached greedy decoding, with and without a prior, on the CPU.

    python -m benchmarks.language [--json results/benchmarks/language.json]

The decoder of ``recipes.language``'s cpu recipe with random weights continues eight prompts, one at a time.
Models take the same prompt in turn (the order changes every round), and the ratio is that of the medians.
float32; under a minute with one thread.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from maskprior.experiments.files import prepare_folder, write_atomically
from maskprior.experiments.provenance import provenance
from maskprior.experiments.streamed import build_streamed
from maskprior.language.model import LanguageModel
from maskprior.language.presets import LanguageRecipe, cpu_recipe, docstrings
from maskprior.language.writing import Sampling, continue_tokens

PROMPTS, PROMPT_LENGTH = 8, 16


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        tokens: written after each prompt.
        rounds: how often each model continues all prompts.
        json: file of the record; none by default.
    """

    tokens: int = 96
    rounds: int = 7
    json: Path | None = None


def models(recipe: LanguageRecipe) -> dict[str, LanguageModel]:
    """The initial model of each prior, by prior."""
    built = {run.prior.name: build_streamed(run).eval() for run in recipe.runs([0])}
    return {name: model for name, model in built.items() if isinstance(model, LanguageModel)}


def seconds_of(model: LanguageModel, prompts: list[list[int]], tokens: int) -> float:
    """Wall-clock time of continuing all prompts."""
    size, generator = model.config.vocab_size, torch.Generator()
    start = time.perf_counter()
    for prompt in prompts:
        decoder = model.decoder(len(prompt) + tokens)
        for _ in continue_tokens(decoder, prompt, tokens, size, Sampling(), generator):
            pass
    return time.perf_counter() - start


def measure(recipe: LanguageRecipe, options: Options) -> dict[str, Any]:
    """Tokens a second of each prior and the ratio to no prior."""
    found, generator = models(recipe), torch.Generator().manual_seed(0)
    size = recipe.model.vocab_size
    prompts = torch.randint(size, (PROMPTS, PROMPT_LENGTH), generator=generator).tolist()
    times: dict[str, list[float]] = {name: [] for name in found}
    names = list(found)
    for turn in range(options.rounds + 1):  # the first round warms up
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken = seconds_of(found[name], prompts, options.tokens)
            if turn:
                times[name].append(taken)
    written = PROMPTS * options.tokens
    rates = {name: written / statistics.median(values) for name, values in times.items()}
    return {
        name: {"tokens_per_second": rate, "ratio": rate / rates["vanilla"]} for name, rate in rates.items()
    }


def run(options: Options, recipe: Callable[[], LanguageRecipe] = lambda: cpu_recipe(docstrings())) -> None:
    """Measure, print and write."""
    if options.json is not None:
        prepare_folder(options.json.parent)
    torch.set_num_threads(1)
    found = measure(recipe(), options)
    for name, values in found.items():
        print(f"{name:10} {values['tokens_per_second']:8.1f} tokens/s   {values['ratio']:.3f} of vanilla's")
    if options.json is not None:
        record = {
            "command": "python -m benchmarks.language",
            "tokens": options.tokens,
            "rounds": options.rounds,
            "priors": found,
            **provenance(torch.device("cpu")),
        }
        write_atomically(options.json, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    run(tyro.cli(Options, description=__doc__))
