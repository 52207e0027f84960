"""Published language tables and figures, made for README.md and docs/language.md from committed records.

python -m recipes.language_tables            tables and figures from records
python -m recipes.language_tables --learned  first note what M has learned, from the runs' own tensors
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from maskprior.analysis.formatting import TextTable, to_markdown
from maskprior.experiments.files import read_tensors, write_atomically
from maskprior.experiments.record import RunRecord, patterns_path, read_records
from maskprior.experiments.seeding import named_generator
from maskprior.functional import logits_to_bias
from maskprior.language.compare import paired_bootstrap, read_numbers, seed_interval, steps_to_reach
from recipes.blocks import fill_file

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "language"
BENCHMARKS = ROOT / "results" / "benchmarks"
ORDER = ("vanilla", "vanilla-no-positions", "alibi", "mask", "toeplitz")
Records = Mapping[Path, RunRecord]
Runs = dict[str, list[RunRecord]]


def by_prior(records: Records, task: str) -> Runs:
    """Records of a task by variant, in the order of tables, each by seed."""
    runs: Runs = {}
    for record in records.values():
        if record.task == task:
            runs.setdefault(record.variant, []).append(record)
    order = sorted(runs, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return {name: sorted(runs[name], key=lambda record: record.seed) for name in order}


def tasks(records: Records) -> list[str]:
    """Tasks by name."""
    return sorted({record.task for record in records.values()})


def main_table(records: Records) -> TextTable:
    """Perplexity on the test split of every prior, with what it gains over no prior."""
    header = (
        *("text", "prior", "seeds", "perplexity a token", "a word", "bits a byte"),
        *("loss less vanilla's (documents)", "seeds won", "steps to vanilla's loss", "s/run"),
    )
    lines = []
    for task in tasks(records):
        runs = by_prior(records, task)
        lines += [_main_line(task, name, runs) for name in runs]
    return TextTable(header, tuple(lines), labels=2)


def _main_line(task: str, name: str, runs: Runs) -> tuple[str, ...]:
    own = runs[name]
    return (
        task,
        name,
        str(len(own)),
        interval([record.metrics["test_perplexity"] for record in own]),
        f"{_mean(own, 'word_perplexity'):.2f}",
        f"{_mean(own, 'bits_per_byte'):.4f}",
        *(("–", "–", "–") if name == "vanilla" else _against(own, runs["vanilla"])),
        f"{sum(record.seconds for record in own) / len(own):.0f}",
    )


def interval(values: Sequence[float]) -> str:
    """Mean ± half of the 95 % interval over seeds."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    mean, half = seed_interval(values)
    return f"{mean:.2f} ± {half:.2f}"


def _mean(runs: Sequence[RunRecord], metric: str) -> float:
    return float(sum(record.metrics[metric] for record in runs) / len(runs))


@dataclass(frozen=True)
class Gain:
    """A prior against no prior, seed by seed.

    Attributes:
        low, high: paired bootstrap over documents of the difference in loss, nats a token.
        mean: of that difference.
        won: seeds in which the prior's test loss is lower.
        pairs: seeds that both have.
        steps: mean share of the steps needed to reach vanilla's final validation loss; NaN if never.
    """

    low: float
    high: float
    mean: float
    won: int
    pairs: int
    steps: float


def gain(runs: Sequence[RunRecord], vanilla: Sequence[RunRecord]) -> Gain:
    """Paired by seed.

    Raises:
        ValueError: no seed in common.
    """
    base = {record.seed: record for record in vanilla}
    pairs = [(record, base[record.seed]) for record in runs if record.seed in base]
    if not pairs:
        raise ValueError("expected runs with the same seeds, got none")
    own, other = (np.stack([_nll(pair[side]) for pair in pairs]) for side in (0, 1))
    tokens = read_numbers(pairs[0][0].metrics["document_tokens"])
    low, high = paired_bootstrap(own, other, tokens, named_generator(0, "bootstrap"))
    return Gain(
        low,
        high,
        float((own - other).mean(0).sum() / tokens.sum()),
        sum(a.metrics["test_loss"] < b.metrics["test_loss"] for a, b in pairs),
        len(pairs),
        sum(_steps_ratio(a, b) for a, b in pairs) / len(pairs),
    )


def _nll(record: RunRecord) -> Any:
    return read_numbers(record.metrics["document_nll"])


def _steps_ratio(record: RunRecord, vanilla: RunRecord) -> float:
    target = vanilla.curves["loss_validation"][-1]
    reached = steps_to_reach(record.curves["step"], record.curves["loss_validation"], target)
    return math.nan if reached is None else reached / vanilla.curves["step"][-1]


def _against(runs: Sequence[RunRecord], vanilla: Sequence[RunRecord]) -> tuple[str, str, str]:
    found = gain(runs, vanilla)
    steps = "never reached" if math.isnan(found.steps) else f"{found.steps:.2f} ×"
    return (
        f"{found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f})",
        f"{found.won} of {found.pairs}",
        steps,
    )


def length_table(records: Records) -> TextTable:
    """Perplexity at multiples of the trained length, means over seeds, and the last over the first."""
    times = sorted({int(k) for record in records.values() for k in record.metrics["perplexity_at"]})
    header = ("text", "prior", *(f"{k}×" for k in times), f"{times[-1]}× / {times[0]}×")
    lines = []
    for task in tasks(records):
        for name, runs in by_prior(records, task).items():
            at = [sum(r.metrics["perplexity_at"][str(k)] for r in runs) / len(runs) for k in times]
            lines.append((task, name, *(f"{value:.2f}" for value in at), f"{at[-1] / at[0]:.3f}"))
    return TextTable(header, tuple(lines), labels=2)


def origin(records: Records) -> str:
    """Where the numbers come from."""
    found = list(records.values())
    commits = ", ".join(f"`{commit[:10]}`" for commit in sorted({record.commit for record in found}))
    versions = found[0].versions
    packages = ", ".join(f"{name} {versions[name]}" for name in ("torch",) if name in versions)
    processors = ", ".join(sorted({str(record.hardware.get("cpu")) for record in found}))
    return f"{len(found)} records, commit {commits}; {processors}, one thread a run; {packages}."


def note_learned(folder: Path, target: Path) -> list[Path]:
    """Write what M is by distance at the start and the end of each run with a learnable M, as JSON.

    Each is log σ(M), ``[layers, heads, distances]``, a mean over the queries that have the distance.
    """
    written = []
    for path, record in read_records(folder).items():
        if record.prior in ("mask", "toeplitz") and patterns_path(path).exists():
            tensors = read_tensors(patterns_path(path))
            values = {
                moment: _rounded(diagonal_means(logits_to_bias(tensors[f"mask_logits_{moment}"])))
                for moment in ("start", "end")
            }
            name = target / path.name
            write_atomically(name, json.dumps(values).encode())
            written.append(name)
    return written


def diagonal_means(bias: torch.Tensor) -> torch.Tensor:
    """``[..., N, N]`` → mean along each diagonal at and below the main, ``[..., N]`` by distance."""
    n = bias.shape[-1]
    return torch.stack([bias.diagonal(-distance, -2, -1).mean(-1) for distance in range(n)], dim=-1)


def _rounded(values: torch.Tensor) -> Any:
    return [[[round(x, 4) for x in head] for head in layer] for layer in values.tolist()]


def learned_figure(learned: Path, title: str) -> Any:
    """log σ(M) by distance less that at distance 0: a panel a layer, a line a head, dashed at the start."""
    from matplotlib.figure import Figure

    values = json.loads(learned.read_text())
    layers = len(values["end"])
    figure = Figure(figsize=(3.2 * layers, 3.0), layout="constrained")
    axes = figure.subplots(1, layers, sharey=True, squeeze=False)[0]
    for layer, axis in enumerate(axes):
        for head, end in enumerate(values["end"][layer]):
            start = np.array(values["start"][layer][head])
            axis.plot(start - start[0], "--", color=f"C{head}", linewidth=0.8)
            axis.plot(np.array(end) - end[0], color=f"C{head}", label=f"head {head}")
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlabel("distance (tokens)")
        axis.set_title(f"layer {layer}")
    axes[0].set_ylabel("log σ(M) less that at 0")
    axes[0].legend(fontsize=7)
    figure.suptitle(title)
    return figure


def curves_figure(records: Records) -> Any:
    """Validation loss by tokens seen, a panel a text, means over seeds."""
    from matplotlib.figure import Figure

    names = tasks(records)
    figure = Figure(figsize=(4.2 * len(names), 3.2), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for axis, task in zip(axes, names, strict=True):
        for index, (name, runs) in enumerate(by_prior(records, task).items()):
            config = runs[0].config
            tokens = (
                np.array(runs[0].curves["step"]) * config["training"]["batch_size"] * config["task"]["length"]
            )
            losses = np.array([record.curves["loss_validation"] for record in runs])
            axis.plot(tokens / 1e3, losses.mean(0), color=f"C{index}", label=name)
            axis.fill_between(tokens / 1e3, losses.min(0), losses.max(0), color=f"C{index}", alpha=0.2)
        axis.set_xlabel("tokens seen (thousands)")
        axis.set_title(task)
        axis.set_ylim(top=float(np.quantile(losses, 0.8)))
    axes[0].set_ylabel("validation loss (nats a token)")
    axes[0].legend()
    return figure


def headline(records: Records) -> TextTable:
    """The README's: a line a text, a column a prior; mean over seeds, and the worst."""
    names = [name for name in ORDER if any(record.variant == name for record in records.values())]
    lines = []
    for task in tasks(records):
        runs = by_prior(records, task)
        lines.append((task, *(_headline_cell(runs.get(name, [])) for name in names)))
    return TextTable(("text", *names), tuple(lines), labels=1)


def _headline_cell(runs: Sequence[RunRecord]) -> str:
    if not runs:
        return "–"
    worst = max(record.metrics["test_perplexity"] for record in runs)
    return f"{_mean(runs, 'test_perplexity'):.1f} ({worst:.1f})"


def speed(folder: Path) -> str:
    """Tokens a second in cached decoding, and seconds to the first step, from the benchmarks' records."""
    written = json.loads((folder / "language.json").read_text())
    rates = ", ".join(
        f"`{name}` {found['tokens_per_second']:.0f} ({found['ratio']:.2f})"
        for name, found in written["priors"].items()
    )
    start = json.loads((folder / "language-start.json").read_text())["seconds"]
    return (
        f"- Tokens a second, greedy, one at a time (share of vanilla's): {rates}.\n"
        f"- WikiText-2, from the command to the first gradients: {start['empty_cache']:.0f} s, and "
        f"{start['full_cache']:.0f} s once its tokens are cached.\n"
        f"- Commit `{written['commit'][:10]}`; {written['hardware']['cpu']}, one thread."
    )


def blocks(records: Records) -> dict[str, dict[str, str]]:
    """File name → block name → Markdown."""
    return {
        "README.md": {"language-headline": to_markdown(headline(records))},
        "docs/language.md": {
            "language-main": to_markdown(main_table(records)),
            "language-lengths": to_markdown(length_table(records)),
            "language-origin": origin(records),
            "language-speed": speed(BENCHMARKS),
        },
    }


def write(results: Path = RESULTS, figures: Path = ROOT / "docs" / "figures") -> None:
    """Rewrite the blocks of README.md and docs/language.md, and the figures."""
    from maskprior.analysis.style import save_figure

    records = read_records(results)
    for name, filled in blocks(records).items():
        fill_file(ROOT / name, filled)
    save_figure(curves_figure(records), figures / "language-curves.png")
    for path, record in records.items():
        learned = learned_folder(results) / path.name
        if record.seed == 0 and learned.exists():
            title = f"{record.task}, {record.variant}"
            figure = learned_figure(learned, title)
            save_figure(figure, figures / f"language-{record.task}-{record.variant}.png")


def learned_folder(results: Path) -> Path:
    """Beside the records, as every JSON among them is one."""
    return results.with_name(f"{results.name}-learned")


@dataclass(frozen=True)
class Tables:
    """Write the tables.

    Attributes:
        results: folder of the records.
        learned: first note what M has learned, from the tensors beside the records.
    """

    results: Path = RESULTS
    learned: bool = False


def run(command: Tables) -> None:
    """Do what :class:`Tables` says."""
    if command.learned:
        note_learned(command.results, learned_folder(command.results))
    write(command.results)


if __name__ == "__main__":
    run(tyro.cli(Tables, description=__doc__))
