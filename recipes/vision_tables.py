"""Published vision tables and figures, written into README.md and docs/vision.md from the committed records.

python -m recipes.vision_tables             tables and figures from records
python -m recipes.vision_tables --maps RUN  also attention and σ(M), from a run's own tensors (RUN: its .json)
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from maskprior.analysis.formatting import MISSING, TextTable, to_markdown
from maskprior.analysis.intervals import mean_interval, paired_interval
from maskprior.analysis.style import save_figure
from maskprior.experiments.files import read_tensors
from maskprior.experiments.record import RunRecord, patterns_path, read_record, read_records, weights_path
from maskprior.experiments.seeding import named_generator
from maskprior.priors import ALL_PRIORS, VISION_PRIORS
from maskprior.tasks.base import Reader
from maskprior.vision.pictures import draw_attention_maps, draw_bands, draw_prior_grids, draw_sizes
from maskprior.vision.presets import VisionRun
from recipes.blocks import fill_file
from recipes.reproduce import part_folder
from recipes.vision import BOTH, PARTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "vision"
FIGURES = ROOT / "docs" / "figures"
TABLES = ("main", "images", "long", "cifar100", "digits", "search", "confirm")
HEADLINE = {"CIFAR-10": ("main", "images"), "CIFAR-100": ("cifar100",), "digits": ("digits",)}
"""Rows of the README's table by the parts that they are made of."""
ORDER = tuple(name for name in ALL_PRIORS if name in VISION_PRIORS or name == BOTH)
Runs = dict[str, list[RunRecord]]


def published(part: str, results: Path = RESULTS) -> list[RunRecord]:
    """Records of a part; none where it has not been run."""
    folder = part_folder(results, part)
    return list(read_records(folder).values()) if any(folder.glob("*.json")) else []


def by_variant(records: Sequence[RunRecord]) -> Runs:
    """Records by variant, in the order of tables, each by seed."""
    runs: Runs = {}
    for record in sorted(records, key=lambda r: (ORDER.index(r.prior), r.variant, r.seed)):
        runs.setdefault(record.variant, []).append(record)
    return runs


def by_size(records: Sequence[RunRecord]) -> dict[int, Runs]:
    """Records by the number of training images, then by variant."""
    groups: dict[int, list[RunRecord]] = {}
    for record in records:
        task = record.config["task"]
        images = task["train_per_class"] * record.config["model"]["classes"]
        groups.setdefault(images, []).append(record)
    return {images: by_variant(groups[images]) for images in sorted(groups)}


def table(records: Sequence[RunRecord]) -> TextTable:
    """Top-1 of each prior and what the mask prior gains over it, seed by seed."""
    header = (
        *("images", "prior", "seeds", "top-1 (%)", "min", "max"),
        *("mask less this", "seeds won by mask", "loss", "images/s", "s/run"),
    )
    sizes = by_size(records)
    lines = [_line(images, name, runs) for images, runs in sizes.items() for name in runs]
    return TextTable(header, tuple(lines), labels=2)


def _line(images: int, name: str, runs: Runs) -> tuple[str, ...]:
    own = runs[name]
    top1 = _metric(own, "top1")
    against = (MISSING, MISSING) if name == "mask" or "mask" not in runs else _against(runs["mask"], own)
    return (
        f"{images:,}",
        name,
        str(len(own)),
        _interval(mean_interval(top1)),
        f"{100 * min(top1):.1f}",
        f"{100 * max(top1):.1f}",
        *against,
        f"{mean_interval(_metric(own, 'loss'))[0]:.3f}",
        f"{mean_interval(_metric(own, 'images_per_second'))[0]:.0f}",
        f"{sum(record.seconds for record in own) / len(own):.0f}",
    )


def _metric(runs: Sequence[RunRecord], name: str) -> list[float]:
    return [record.metrics[name] for record in runs]


def _against(mask: Sequence[RunRecord], own: Sequence[RunRecord]) -> tuple[str, str]:
    """Paired difference in points, and how many seeds the mask prior wins; the same seeds only."""
    seeds = {record.seed for record in mask} & {record.seed for record in own}
    first, second = ([r.metrics["top1"] for r in runs if r.seed in seeds] for runs in (mask, own))
    won = sum(a > b for a, b in zip(first, second, strict=True))
    mean, half = paired_interval(first, second)
    difference = f"{100 * mean:+.2f}" if math.isnan(half) else f"{100 * mean:+.2f} ± {100 * half:.2f}"
    return difference, f"{won} of {len(seeds)}"


def _interval(interval: tuple[float, float]) -> str:
    mean, half = interval
    return f"{100 * mean:.2f}" if math.isnan(half) else f"{100 * mean:.2f} ± {100 * half:.2f}"


def blocks(results: Path = RESULTS) -> dict[str, dict[str, str]]:
    """File name → block name → Markdown."""
    found = {f"vision-{part}": _block(part, published(part, results)) for part in TABLES}
    return {
        "README.md": {"vision-headline": to_markdown(headline(results))},
        "docs/vision.md": {**found, "vision-cost": cost(results.parent / "benchmarks")},
    }


def headline(results: Path = RESULTS) -> TextTable:
    """The README's: a line a set and number of images, a column a prior; mean and half of the interval."""
    lines = []
    for title, parts in HEADLINE.items():
        sizes = by_size([record for part in parts for record in published(part, results)])
        for images, runs in sizes.items():
            cells = [_interval(mean_interval(_metric(runs[name], "top1"))) for name in VISION_PRIORS]
            lines.append((title, f"{images:,}", *cells))
    return TextTable(("set", "images", *VISION_PRIORS), tuple(lines), labels=2)


def cost(folder: Path) -> str:
    """What the mask prior costs in a training step of ViT-Tiny on a CPU, from the benchmarks' records."""
    steps = json.loads((folder / "overhead.json").read_text())["hosts"]
    lines = [
        f"- {host}: a step takes {100 * found['ratio'] - 100:+.1f} %"
        for host, found in steps.items()
        if host.startswith("vit-tiny")
    ]
    memory = folder / "vision-memory.json"
    if memory.exists():
        found = json.loads(memory.read_text())
        lines.append(f"- {found['host']}: peak memory {100 * found['ratio'] - 100:+.1f} %")
    return "\n".join(lines)


def _block(part: str, records: Sequence[RunRecord]) -> str:
    if not records:
        return f"No records are published yet: `python -m recipes.vision --part {part}` makes them."
    return to_markdown(table(records))


def write_figures(results: Path = RESULTS, figures: Path = FIGURES) -> list[Path]:
    """Curves of the main part and of the long one, and top-1 over the number of images."""
    main, long, images = (published(part, results) for part in ("main", "long", "images"))
    if not main:
        return []
    drawn = {
        "vision-curves": draw_bands(by_variant(main), "top1_validation", "held-out top-1 (%)"),
        "vision-images": draw_sizes(by_size([*main, *images]), "test top-1 (%)"),
    }
    if long:
        drawn["vision-long"] = draw_bands(by_variant(long), "top1_validation", "held-out top-1 (%)")
    for name, figure in drawn.items():
        save_figure(figure, figures / f"{name}.png")
    return [figures / f"{name}.png" for name in drawn]


def write_maps(path: Path, runs: Sequence[VisionRun], figures: Path = FIGURES) -> list[Path]:
    """Attention in held-out images in the first and the last layer, and σ(M), of one run with the mask prior.

    Args:
        path: the run's record, with weights and patterns beside it.
        runs: the part's runs, among which it is.
        figures: where the pictures go.

    Raises:
        ValueError: none of the runs is that of the record.
    """
    record = read_record(path)
    matching = [r for r in runs if (r.prior.name, r.seed) == (record.prior, record.seed)]
    if not matching:
        raise ValueError(f"expected a run of the part, got {path.name}")
    run = matching[0]
    model = run.model.build(named_generator(run.seed, "init"))
    run.prior.function()(model, run.task.structure(), named_generator(run.seed, "prior"))
    model.load_state_dict(read_tensors(weights_path(path)))
    stream = run.task.open(run.seed, run.training.batch_size, Reader(torch.device("cpu")))
    pixels, _ = next(iter(stream.validation.all()))
    maps, grid = model.attention_maps(stream.normalise(pixels[:4])), run.model.grid
    query = (grid[0] // 2, grid[1] // 2)
    patterns = read_tensors(patterns_path(path))
    logits: Mapping[str, torch.Tensor] = {m: patterns[f"mask_logits_{m}"] for m in ("start", "end")}
    drawn = {
        "vision-attention-first": draw_attention_maps(pixels[:4], maps[:, 0], query, grid, "first layer"),
        "vision-attention-last": draw_attention_maps(pixels[:4], maps[:, -1], query, grid, "last layer"),
        "vision-prior": draw_prior_grids(logits["start"], logits["end"], query, grid, "σ(M), layer by layer"),
    }
    for name, figure in drawn.items():
        save_figure(figure, figures / f"{name}.png")
    return [figures / f"{name}.png" for name in drawn]


@dataclass(frozen=True)
class Publish:
    """Write tables and figures.

    Attributes:
        maps: record of a run of the main part with the mask prior, its tensors beside it.
        data: folder of the main part's data set, for the images.
    """

    maps: Path | None = None
    data: str = ""


def publish(command: Publish) -> None:
    """Do what :class:`Publish` says."""
    for name, filled in blocks().items():
        fill_file(ROOT / name, filled)
    write_figures()
    if command.maps is not None:
        write_maps(command.maps, PARTS["main"](command.data))


if __name__ == "__main__":
    publish(tyro.cli(Publish, description=__doc__))
