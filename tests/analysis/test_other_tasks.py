"""Reports of tasks that are not Boolean: arithmetic, vision and language (where lower is better)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from maskprior.analysis.html import write_html
from maskprior.analysis.persistence import Target
from maskprior.analysis.persistence_log import Header, LogWriter, Probe, log_path
from maskprior.analysis.recorder import head_means
from maskprior.analysis.report import print_summary, write_report
from maskprior.experiments.files import write_tensors
from maskprior.experiments.record import RunRecord, patterns_path, read_records
from maskprior.tasks.arithmetic import ArithmeticTask
from maskprior.tasks.arithmetic_tasks import addition

MakeRecord = Callable[..., RunRecord]
SaveRecords = Callable[[Path, list[RunRecord]], dict[Path, RunRecord]]

STEPS = [0.0, 10.0, 30.0]


def random_outputs(task: ArithmeticTask, seed: int) -> Callable[[Tensor], Tensor]:
    """A model that guesses."""
    generator = torch.Generator().manual_seed(seed)
    size = (task.interface().length, task.interface().outputs)
    return lambda tokens: torch.randn(len(tokens), *size, generator=generator)


def arithmetic_record(make_record: MakeRecord, task: ArithmeticTask, prior: str, seed: int) -> RunRecord:
    """As a run makes it: the task's own description, metrics and curves."""
    splits = task.splits(torch.Generator().manual_seed(seed))
    guess = random_outputs(task, seed)
    curves = {
        name: [value] * 3
        for name, value in task.probe_metrics(guess(splits.probe.inputs), splits.probe).items()
    }
    made = make_record(
        task=task.name,
        prior=prior,
        seed=seed,
        metrics=task.metrics(guess, splits.test),
        curves={"step": STEPS, **curves},
    )
    made.config["task"] = task.describe()
    return made


def write_log(path: Path, structure: Tensor, tokens: list[str]) -> None:
    """A log of two layers that keep what they had."""
    target = Target.of_structure(structure)
    frame = head_means([target.reference] * 2)
    measures = {f"attention_{name}": [value] * 2 for name, value in target.measure(target.reference).items()}
    writer = LogWriter(path, Header(head_means([structure]), [target.limit] * 2, [], tokens))
    for step in STEPS:
        writer.write(Probe(int(step), measures, frames={"attention": frame}))


@pytest.fixture
def arithmetic(tmp_path: Path, make_record: MakeRecord, save_records: SaveRecords) -> Path:
    task = addition(digits=2, pairs=70)
    saved = save_records(
        tmp_path,
        [
            arithmetic_record(make_record, task, prior, seed)
            for prior in ("vanilla", "mask")
            for seed in (0, 1)
        ],
    )
    length = len(task.token_names())
    for path in saved:
        write_log(log_path(path), task.structure(), task.token_names())
        uniform = torch.full((2, 1, length, length), 1 / length)
        write_tensors(patterns_path(path), dict.fromkeys(("attention_start", "attention_end"), uniform))
    return tmp_path


def test_arithmetic_is_judged_by_whole_answers(arithmetic: Path) -> None:
    names = {path.name for path in write_report(arithmetic)}
    assert {
        "scores-sequence_accuracy.png",
        "curves-addition-cpu.png",
        "patterns-addition-cpu-mask.png",
    } <= names
    assert not any(name.startswith("coefficients") for name in names)
    text = (arithmetic / "report" / "report.md").read_text()
    assert "| variant | seeds | sequence accuracy (%) |" in text
    assert "digit accuracy (%)" in text
    assert "Fourier" not in text
    assert "maskprior run addition --preset cpu --priors vanilla,mask --seeds 2 --out DIR" in text


def test_the_arithmetic_page_has_curves_and_pictures(arithmetic: Path) -> None:
    page = write_html(arithmetic).read_text()
    for words in (
        "sequence accuracy, train",
        "sequence accuracy, test",
        "digit accuracy, test",
        "loss, test",
        "kept by the attention",
        "mask kept 100 % (worst of 2 seeds: 100 %) of its structure after 30 steps.",
        "Attention over time",
        "a1",
    ):
        assert words in page
    assert "Fourier" not in page
    assert page.count("<canvas") == 1 + 2 * 2  # the structure, two layers of two variants


@pytest.mark.parametrize(
    ("metrics", "curve", "heading", "cell"),
    [
        ({"top1": 0.75, "loss": 0.5}, "top1_test", "top-1 (%)", "75.00"),
        ({"test_perplexity": 17.25, "test_loss": 2.5}, "perplexity_validation", "test perplexity", "17.25"),
    ],
)
def test_vision_and_language_records(
    tmp_path: Path,
    make_record: MakeRecord,
    save_records: SaveRecords,
    metrics: Mapping[str, Any],
    curve: str,
    heading: str,
    cell: str,
) -> None:
    curves = {"step": STEPS, curve: [0.5, 0.6, 0.7]}
    save_records(
        tmp_path,
        [make_record(task="other", prior=p, metrics=metrics, curves=curves) for p in ("vanilla", "mask")],
    )
    names = {path.name for path in write_report(tmp_path)}
    headline = next(iter(metrics))
    assert {f"scores-{headline}.png", "curves-other-cpu.png"} <= names
    text = (tmp_path / "report" / "report.md").read_text()
    assert f"| variant | seeds | {heading} |" in text
    assert cell in text
    page = write_html(tmp_path).read_text()
    words = curve.replace("top1", "top-1").replace("_", ", ")
    assert f">{words}</text>" in page
    lower = headline == "test_perplexity"
    assert ("Lower test perplexity is better." in page) == lower
    assert ("Lower is better." in text) == lower
    console = Console(record=True, width=80, color_system=None)
    print_summary(read_records(tmp_path), console)
    assert ("max" in console.export_text()) == lower
