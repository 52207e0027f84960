"""The command line: list, show, run, report, ask, doctor and generate."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import torch
import tyro
from rich.console import Console
from torch import Tensor

from maskprior.analysis.report import print_summary, write_report
from maskprior.experiments.ask import ask, layout_of, parse, token_labels
from maskprior.experiments.config import AnyRunConfig
from maskprior.experiments.exit_code import exit_code
from maskprior.experiments.presets import PRESETS, choose, find_recipe, make_configs, task_names
from maskprior.experiments.progress import ProgressReporter
from maskprior.experiments.record import read_records
from maskprior.experiments.restore import find_run, restore
from maskprior.experiments.sweep import Device, sweep
from maskprior.language.generate import Generate
from maskprior.priors import ALL_PRIORS, PRIORS, VISION_PRIORS
from maskprior.structures import draw
from maskprior.tasks import base as tasks
from maskprior.tasks.boolean import BooleanTask
from maskprior.vision import OFFLINE_TASKS

if TYPE_CHECKING:
    from maskprior.vision.presets import VisionRecipe

Task = Annotated[str, tyro.conf.Positional]
Folder = Annotated[Path, tyro.conf.Positional]


class Command(Protocol):
    """What a subcommand does."""

    def __call__(self, console: Console) -> None:
        """Do it, printing to the console."""


@dataclass(frozen=True)
class List:
    """List the tasks, the priors and the presets with a line each."""

    def __call__(self, console: Console) -> None:
        """Print them."""
        console.print("[bold]Tasks[/bold] (maskprior show TASK draws one)")
        for name in task_names():
            line = f"  {name:<14} {first_line(PRESETS['cpu'][name].task)}"
            console.print(line, highlight=False, soft_wrap=True)
        console.print("  digits         images of handwritten digits (preset quick)", highlight=False)
        console.print("[bold]Priors[/bold] (--priors)")
        for name, prior in ALL_PRIORS.items():
            console.print(f"  {name:<12} {first_line(prior)}", highlight=False, soft_wrap=True)
        console.print("[bold]Presets[/bold] (--preset)")
        for name, recipes in PRESETS.items():
            sizes = sorted({(r.dimension, r.model.depth, r.model.width) for r in recipes.values()})
            shape = "; ".join(f"n = {n}, depth {depth}, width {width}" for n, depth, width in sizes)
            console.print(f"  {name:<12} {shape}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Show:
    """Draw a task's tokens and structure in the terminal, and as a PNG.

    Rows are queries, columns are keys: ■ interacts, · is suppressed.

    Attributes:
        task: a name from `maskprior list`.
        preset: decides the task's dimension; digits have one preset and no dimension.
        dimension: number of bits n instead of the preset's.
        out: folder of the picture TASK-structure.png.
    """

    task: Task
    preset: str = "cpu"
    dimension: int | None = None
    out: Path = Path()

    def __call__(self, console: Console) -> None:
        """Draw."""
        from maskprior.analysis.plots import draw_structure
        from maskprior.analysis.style import save_figure

        task, about = self._chosen()
        console.print(f"[bold]{task.name}[/bold]  {about}", highlight=False)
        if isinstance(task, BooleanTask):
            console.print(f"target  {task.describe()['target']}", highlight=False)
            console.print(f"seen    {task.describe()['seen']}", highlight=False)
        console.print(f"tokens  {' '.join(task.token_names())}", highlight=False)
        for name, layer in distinct_layers(task.structure()):
            console.print(f"{name}{draw(layer)}", highlight=False, soft_wrap=True)
        path = self.out / f"{task.name}-structure.png"
        save_figure(draw_structure(task.structure(), task.token_names()), path)
        console.print(f"picture {path}", highlight=False)

    def _chosen(self) -> tuple[tasks.Task | tasks.StreamedTask, str]:
        if self.task in OFFLINE_TASKS:
            task = image_recipe(self.task, self.dimension).task
            return task, f"Images, cut into patches; heads: {', '.join(task.layout.heads)}."
        recipe = find_recipe(self.preset, self.task)
        dimension = recipe.dimension if self.dimension is None else self.dimension
        return recipe.task(dimension), first_line(recipe.task)


@dataclass(frozen=True)
class Run:
    """Train every prior with every seed on a task and write one record a run.

    Runs that have a record are not repeated: the same command after Ctrl-C, or a killed machine, does the
    rest. All priors of a task share data, batches, the other initial weights and all hyper-parameters.

    Examples:
        maskprior run 2parity --preset quick --seeds 3 --out runs

        maskprior run all --preset cpu --seeds 10 --jobs 2 --out runs

    Attributes:
        task: a name from `maskprior list`, or "all".
        priors: names from `maskprior list`, separated by commas, or "all" of the task's kind.
        seeds: number of seeds; they are 0, 1, 2, …
        preset: "quick" (minutes for everything), "cpu" (the published tables), "paper-budget" (short
            arithmetic) or "paper" (Boolean, for a GPU).
        dimension: number of bits n instead of the preset's.
        out: folder of the records; made if missing.
        jobs: worker processes side by side, one thread each.
        device: "auto" (an accelerator if there is one) or "cpu".
    """

    task: Task
    priors: str = "all"
    seeds: int = 1
    preset: str = "quick"
    dimension: int | None = None
    out: Path = Path("runs")
    jobs: int = 1
    device: str = "auto"

    def __call__(self, console: Console) -> None:
        """Run what is missing and print the table of what is there."""
        if self.seeds < 1:
            raise ValueError(f"expected seeds ≥ 1 (how many), got {self.seeds}")
        configs = self._images() if self.task in OFFLINE_TASKS else self._tokens()
        with ProgressReporter(console) as reporter:
            records = sweep(configs, self.out, reporter, jobs=self.jobs, device=Device(self.device))
        print_summary(records, console)
        console.print(f"records in {self.out}; `maskprior report {self.out}` draws them", highlight=False)

    def _tokens(self) -> list[AnyRunConfig]:
        names = [*task_names(), *OFFLINE_TASKS, "all"]
        tasks = task_names(self.preset) if self.task == "all" else [choose("task", self.task, names)]
        priors = self._priors(PRIORS)
        return [
            config
            for task in tasks
            for config in make_configs(self.preset, task, priors, range(self.seeds), dimension=self.dimension)
        ]

    def _images(self) -> list[AnyRunConfig]:
        priors, recipe = self._priors(VISION_PRIORS), image_recipe(self.task, self.dimension)
        choose("preset", self.preset, [recipe.preset])
        return [*recipe.runs(range(self.seeds), priors)]

    def _priors(self, known: Iterable[str]) -> list[str]:
        names = list(known)
        if self.priors == "all":
            return names
        return [choose("prior", name.strip(), names) for name in self.priors.split(",")]


@dataclass(frozen=True)
class Report:
    """Make tables (Markdown, LaTeX, CSV) and figures from a folder of records.

    Figures: accuracy of every seed, learning curves on seen and unseen points, Fourier coefficients during
    training, attention patterns and σ(M) at start and end.

    Attributes:
        folder: where `maskprior run` wrote its records; the report goes to FOLDER/report.
        html: also write report.html, one page that opens offline, with the persistence of the priors.
    """

    folder: Folder
    html: bool = False

    def __call__(self, console: Console) -> None:
        """Write the report and say where."""
        print_summary(read_records(self.folder), console)
        paths = write_report(self.folder)
        if self.html:
            from maskprior.analysis.html import write_html

            paths.append(write_html(self.folder))
        for path in paths:
            console.print(str(path), highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Doctor:
    """Say which attention this installation uses and why, and what is missing.

    Each backend is tried on a small problem against the equation in float64. A line starts with "ok" or,
    where something is missing, with "--"; optional packages may be missing.
    """

    def __call__(self, console: Console) -> None:
        """Print the facts, a line each."""
        from maskprior.doctor import examine, print_report

        print_report(examine(), console.file)


@dataclass(frozen=True)
class Ask:
    """Let a trained model answer: maskprior ask runs/….json "123+456".

    Prints the answer, whether it is right, and the probability that the model gives to each digit; draws the
    attention with which it came by it.

    Attributes:
        run: record of an arithmetic run, with its weights beside it, or a folder with one.
        expression: two numbers with the sign of the operation between them.
        out: folder of the picture ask-attention.png.
    """

    run: Folder
    expression: Annotated[str, tyro.conf.Positional]
    out: Path = Path()

    def __call__(self, console: Console) -> None:
        """Ask and print."""
        from maskprior.analysis.plots import draw_structure
        from maskprior.analysis.style import save_figure

        record, model = restore(find_run(self.run))
        layout = layout_of(record)
        answer = ask(model, layout, parse(self.expression, layout))
        verdict = "right" if answer.result == answer.exact else f"wrong, it is {answer.exact}"
        console.print(f"{self.expression.strip()} = {answer.result}  ({verdict})", highlight=False)
        digits = zip(answer.digits, answer.confidences, strict=True)
        chances = "  ".join(f"{digit} {chance:.1%}" for digit, chance in digits)
        console.print(f"confidence {answer.confidence:.1%}   digits: {chances}", highlight=False)
        path = self.out / "ask-attention.png"
        names = token_labels(layout.names, answer.tokens)
        title = f"{self.expression.strip()} = {answer.result}: attention"
        save_figure(draw_structure(answer.attention, names, title), path)
        console.print(f"picture {path}", highlight=False, soft_wrap=True)


COMMANDS: dict[str, Callable[..., Command]] = {
    "list": List,
    "show": Show,
    "run": Run,
    "report": Report,
    "ask": Ask,
    "doctor": Doctor,
    "generate": Generate,
}


def image_recipe(task: str, dimension: int | None) -> "VisionRecipe":
    """The recipe of an image task, which has no dimension (ValueError)."""
    from maskprior.vision.presets import digits_recipe

    if dimension is not None:
        raise ValueError(f"expected no dimension with the task {task}, got {dimension}")
    return digits_recipe()


def distinct_layers(structure: Tensor) -> list[tuple[str, Tensor]]:
    """What can be drawn of a structure: itself, or one of each run of equal layers, with a heading."""
    if structure.dim() < 4:
        return [("", structure)]
    starts = [i for i in range(len(structure)) if i == 0 or not torch.equal(structure[i], structure[i - 1])]
    ends = [*starts[1:], len(structure)]
    headings = [
        f"layer {end}:\n" if end == start + 1 else f"layers {start + 1} to {end}:\n"
        for start, end in zip(starts, ends, strict=True)
    ]
    return [(heading, structure[start]) for heading, start in zip(headings, starts, strict=True)]


def first_line(documented: Callable[..., object]) -> str:
    """First line of a docstring."""
    return (documented.__doc__ or "").strip().partition("\n")[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; for what it returns see :func:`maskprior.experiments.exit_code.exit_code`."""
    command: Command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="maskprior",
        description="Structural priors for Transformers that training does not wash out.",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return exit_code("maskprior", lambda: command(Console()))
