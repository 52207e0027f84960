"""Image classification: default, mimetic and impulse initialisation against the mask prior.

    python -m recipes.vision --part digits                        seconds, offline
    python -m recipes.vision --part main --data CIFAR10           2 CPU cores, about a minute a run
    accelerate launch -m recipes.vision --part gpu32              one data-centre GPU, or several
    accelerate launch -m recipes.vision --part paper --data IMAGENET100

Parts, each a folder of one record a run; an interrupted run goes on from its checkpoint:

    main     results/vision           CIFAR-10, 100 images a class, 4 priors and two beside them × 5 seeds
    images   results/vision-images    CIFAR-10, fewer and more images, 4 priors × 3 seeds
    long     results/vision-long      as main, trained twice as long, 4 priors × 5 seeds
    cifar100 results/vision-cifar100  CIFAR-100, 40 images a class, 4 priors × 3 seeds
    search   results/vision-search    what was tried on CIFAR-10, judged by held-out training images, 1 seed
    confirm  results/vision-confirm   the candidates with all updates, judged in the same way, 2 other seeds
    digits   results/vision-digits    scikit-learn's digits, 4 priors × 3 seeds
    gpu32    results/vision-gpu32     all of CIFAR-10, ViT-Tiny, bf16, 100 epochs, 4 priors × 3 seeds
    paper    results/vision-paper     ImageNet-100, ViT-Tiny/16, 300 epochs, 4 priors × 1 seed

References: Ma et al. 2026; Trockman and Kolter 2023 (mimetic); Zheng et al. 2025 (impulse).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from maskprior.experiments.config import PriorConfig
from maskprior.experiments.presets import choose
from maskprior.experiments.sweep import Device
from maskprior.vision.presets import VisionRun, cpu_recipe, digits_recipe, gpu32_recipe, paper_recipe
from recipes.reproduce import part_folder, run_part, run_program
from recipes.vision_search import confirm_runs, plain, search_runs

SIZES = (50, 200)
BOTH = "mimetic_mask"


def main_runs(data: str = "") -> list[VisionRun]:
    """The chosen size with five paired seeds; beside it timm's own weights, and mask and mimetic together."""
    recipe = cpu_recipe(10, data)
    together = replace(recipe, priors={BOTH: PriorConfig(BOTH, recipe.priors["mask"].options)})
    return [
        run
        for seed in range(5)
        for run in (
            *recipe.runs([seed]),
            plain(recipe, seed, "vanilla-learned-positions", "learned"),
            together.run(BOTH, seed),
        )
    ]


def image_runs(data: str = "") -> list[VisionRun]:
    """Fewer and more training images, the same number of updates."""
    return [run for size in SIZES for run in cpu_recipe(10, data, size).runs(range(3))]


def long_runs(data: str = "") -> list[VisionRun]:
    """Twice the updates on the chosen size."""
    recipe = cpu_recipe(10, data)
    training = replace(recipe.training, steps=2 * recipe.training.steps)
    return replace(recipe, training=training, preset=f"{recipe.preset}-long").runs(range(5))


def cifar100_runs(data: str = "") -> list[VisionRun]:
    """A sample of CIFAR-100."""
    return cpu_recipe(100, data, 40).runs(range(3))


def digits_runs(data: str = "") -> list[VisionRun]:
    """scikit-learn's digits; they have no other place."""
    if data:
        raise ValueError(f"expected no --data with part digits, got {data!r}")
    return digits_recipe().runs(range(3))


def gpu32_runs(data: str = "") -> list[VisionRun]:
    """All of CIFAR-10 on a GPU."""
    return gpu32_recipe(10, data).runs(range(3))


def paper_runs(data: str = "") -> list[VisionRun]:
    """ImageNet-100 on GPUs."""
    if not data:
        raise ValueError("expected --data FOLDER with train/CLASS/image and val/CLASS/image for part paper")
    return paper_recipe(data).runs(range(1))


COMPARISONS: dict[str, Callable[[str], list[VisionRun]]] = {
    "main": main_runs,
    "images": image_runs,
    "long": long_runs,
    "cifar100": cifar100_runs,
    "digits": digits_runs,
    "gpu32": gpu32_runs,
    "paper": paper_runs,
}
PARTS: dict[str, Callable[[str], list[VisionRun]]] = {
    **COMPARISONS,
    "search": search_runs,
    "confirm": confirm_runs,
}


@dataclass(frozen=True)
class Reproduce:
    """Run one part, or what is missing of it.

    Attributes:
        part: main, images, long, cifar100, search, confirm, digits, gpu32 or paper.
        data: folder of the part's data set; "" takes it from the Hugging Face hub.
        out: folder of the main records; the other parts go beside it, with their name appended.
        jobs: worker processes on a CPU, one thread each; 1 with accelerate launch.
        device: "auto" (what accelerate finds) or "cpu".
    """

    part: str
    data: str = ""
    out: Path = Path("results/vision")
    jobs: int = 1
    device: str = "auto"


def reproduce(command: Reproduce) -> None:
    """Do what :class:`Reproduce` says."""
    runs = PARTS[choose("part", command.part, list(PARTS))](command.data)
    device = Device(command.device, threads=1 if command.device == "cpu" else None)
    run_part(runs, part_folder(command.out, command.part), command.jobs, device)


if __name__ == "__main__":
    run_program(Reproduce, reproduce, __doc__)
