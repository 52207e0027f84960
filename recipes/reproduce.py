"""What all recipes share: names and folders of their parts, the run of one, and how their programs end."""

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import tyro
from rich.console import Console

from maskprior.analysis.report import print_summary
from maskprior.experiments.config import AnyRunConfig
from maskprior.experiments.exit_code import exit_code
from maskprior.experiments.presets import choose
from maskprior.experiments.progress import ProgressReporter
from maskprior.experiments.sweep import Device, sweep

Command = TypeVar("Command")


def chosen_parts(part: str, parts: Collection[str]) -> list[str]:
    """The part, or all of them for "all".

    Raises:
        ValueError: there is no such part; lists the choices.
    """
    return list(parts) if choose("part", part, ["all", *parts]) == "all" else [part]


def part_folder(out: Path, part: str) -> Path:
    """Where a part's records go: the part "main" to ``out``, another beside it, with its name appended."""
    return out if part == "main" else out.with_name(f"{out.name}-{part}")


def run_part(configs: Sequence[AnyRunConfig], folder: Path, jobs: int, device: Device) -> None:
    """Do what the folder does not have yet, and print the summary.

    Raises:
        ValueError, OSError, TrainingDivergedError: as :func:`maskprior.experiments.sweep.sweep`.
    """
    console = Console()
    with ProgressReporter(console) as reporter:
        records = sweep(configs, folder, reporter, jobs=jobs, device=device)
    print_summary(records, console)


def run_program(command: type[Command], action: Callable[[Command], object], description: str | None) -> None:
    """Read the command from the arguments, do it, and exit with :func:`exit_code`'s code."""
    chosen = tyro.cli(command, description=description)
    sys.exit(exit_code(Path(sys.argv[0]).stem, lambda: action(chosen)))
