"""Language modelling: no prior, ALiBi, and the mask prior as a full M and as one logit a distance.

    python -m recipes.language --part docstrings                      offline, about two minutes a run
    python -m recipes.language --part wikitext2 --data WIKITEXT2      the same on WikiText-2
    python -m recipes.language --part tinystories --data TINYSTORIES  the same on TinyStories
    accelerate launch -m recipes.language --part gpu-wikitext2        one data-centre GPU, or several

Parts, each a folder of one record a run; an interrupted run goes on from its checkpoint. ``--data`` is a
folder or a hub id; without it, the Hugging Face hub is asked:

    wikitext2       results/language               4 priors and a control × 3 seeds, 1 M tokens
    tinystories     results/language               the same
    docstrings      results/language-docstrings    the same on Python's own docstrings, whatever its version
    gpu-wikitext2   results/language-gpu           GPT-2's shape at context 512, bf16, the same runs
    gpu-tinystories results/language-gpu           the same

The control is no prior without positions. References: Ma et al. 2026; Press, Smith, Lewis 2022 (ALiBi); Haviv
et al. 2022 (no positions); Merity et al. 2017; Eldan and Li 2023.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from maskprior.experiments.presets import choose
from maskprior.experiments.sweep import Device
from maskprior.language.presets import (
    LanguageRecipe,
    LanguageRun,
    cpu_recipe,
    docstrings,
    gpu_recipe,
    tinystories,
    wikitext2,
)
from maskprior.language.runs import keep_tokenizers
from recipes.reproduce import run_part, run_program

SEEDS = 3

RECIPES: dict[str, Callable[[str], LanguageRecipe]] = {
    "wikitext2": lambda data: cpu_recipe(wikitext2(data)),
    "tinystories": lambda data: cpu_recipe(tinystories(data)),
    "docstrings": lambda data: cpu_recipe(docstrings()),
    "gpu-wikitext2": lambda data: gpu_recipe(wikitext2(data)),
    "gpu-tinystories": lambda data: gpu_recipe(tinystories(data)),
}
FOLDERS = {
    "docstrings": "-docstrings",
    "gpu-wikitext2": "-gpu",
    "gpu-tinystories": "-gpu",
}
"""What is appended to the main folder's name."""


@dataclass(frozen=True)
class Reproduce:
    """Run one part, or what is missing of it.

    Attributes:
        part: wikitext2, tinystories, docstrings, gpu-wikitext2 or gpu-tinystories.
        data: folder or hub id of the part's text; "" takes the hub's.
        seeds: number of seeds; they are 0, 1, 2, …
        priors: names separated by commas, or "all", which adds the control.
        out: folder of the main records; other parts go beside it.
        jobs: worker processes on a CPU, one thread each; 1 with accelerate launch.
        device: "auto" (what accelerate finds) or "cpu".
    """

    part: str
    data: str = ""
    seeds: int = SEEDS
    priors: str = "all"
    out: Path = Path("results/language")
    jobs: int = 1
    device: str = "auto"

    def runs(self) -> list[LanguageRun]:
        """The chosen runs.

        Raises:
            ValueError: unknown part or prior, or data for a part that has its own.
        """
        part = choose("part", self.part, list(RECIPES))
        if part == "docstrings" and self.data:
            raise ValueError(f"expected no --data with part docstrings, got {self.data!r}")
        recipe = RECIPES[part](self.data)
        if self.priors != "all":
            return recipe.runs(range(self.seeds), self.priors.split(","))
        return [run for seed in range(self.seeds) for run in (*recipe.runs([seed]), control(recipe, seed))]


def control(recipe: LanguageRecipe, seed: int) -> LanguageRun:
    """No prior and no position embeddings, like the models of alibi and toeplitz.

    Causal attention alone tells order (Haviv et al. 2022).
    """
    return recipe.run("vanilla", seed, variant="vanilla-no-positions", positions="none")


def part_folder(out: Path, part: str) -> Path:
    """Where a part's records go."""
    return out.with_name(out.name + FOLDERS.get(part, ""))


def reproduce(command: Reproduce) -> None:
    """Do what :class:`Reproduce` says."""
    runs, folder = command.runs(), part_folder(command.out, command.part)
    device = Device(command.device, threads=1 if command.device == "cpu" else None)
    keep_tokenizers(runs, folder)
    run_part(runs, folder, command.jobs, device)


if __name__ == "__main__":
    run_program(Reproduce, reproduce, __doc__)
