"""The language recipes: fair by construction, and their published tables true to their records."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maskprior.experiments.files import write_tensors
from maskprior.experiments.record import RunRecord, patterns_path, read_records, write_record
from maskprior.experiments.run import record_path
from maskprior.language.presets import WITHOUT_POSITIONS
from maskprior.priors import LANGUAGE_PRIORS
from recipes import language, language_tables
from recipes.blocks import fill_blocks

ROOT = Path(__file__).parents[2]
PARTS = list(language.RECIPES)


@pytest.mark.parametrize("part", PARTS)
def test_all_priors_have_the_same_recipe(part: str) -> None:
    runs = language.Reproduce(part).runs()
    assert {(run.label, run.seed) for run in runs} == {
        (label, seed) for label in (*LANGUAGE_PRIORS, "vanilla-no-positions") for seed in range(3)
    }
    assert len({(run.task, run.training, replace(run.model, positions="none")) for run in runs}) == 1
    for run in runs:
        without = run.prior.name in WITHOUT_POSITIONS or run.label == "vanilla-no-positions"
        assert (run.model.positions == "none") == without
    assert len({record_path(Path(), run) for run in runs}) == len(runs)


def test_what_is_chosen_is_run() -> None:
    runs = language.Reproduce("wikitext2", seeds=2, priors="mask,vanilla").runs()
    assert [(run.prior.name, run.seed) for run in runs] == [
        ("mask", 0),
        ("vanilla", 0),
        ("mask", 1),
        ("vanilla", 1),
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (language.Reproduce("ptb"), "expected a part among wikitext2"),
        (language.Reproduce("docstrings", data="x"), "expected no --data with part docstrings"),
        (language.Reproduce("wikitext2", priors="rope"), "expected a prior among vanilla"),
    ],
)
def test_other_commands_are_refused(command: language.Reproduce, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        command.runs()


def test_parts_have_their_folders() -> None:
    out = Path("results/language")
    assert [language.part_folder(out, part).name for part in PARTS] == [
        *("language", "language", "language-docstrings", "language-gpu", "language-gpu")
    ]


Make = Callable[[str, int, float], RunRecord]


@pytest.fixture
def make() -> Make:
    """A run whose documents have so much loss a token; vanilla's curve ends at 3 after 20 steps."""

    def build(prior: str, seed: int, loss: float) -> RunRecord:
        tokens = np.array([10.0, 20.0, 30.0])
        return RunRecord(
            task="stories",
            prior=prior,
            preset="cpu",
            seed=seed,
            config={
                "variant": prior,
                "task": {"length": 7},
                "training": {"steps": 20, "batch_size": 3},
            },
            versions={"torch": "2.6.0"},
            commit="5c0ffee",
            dirty=False,
            hardware={"cpu": "Zähler 3"},
            seconds=2.0,
            metrics={
                "test_loss": loss,
                "test_perplexity": math.exp(loss),
                "word_perplexity": 2 * math.exp(loss),
                "bits_per_byte": loss / 4,
                "perplexity_at": {"1": 10.0, "4": 10.0 * loss},
                "document_nll": " ".join(str(value) for value in loss * tokens),
                "document_tokens": "10 20 30",
            },
            curves={"step": [0.0, 10.0, 20.0], "loss_validation": [5.0, 3.0 + loss, 2.0 + loss]},
        )

    return build


def records(*found: RunRecord) -> dict[Path, RunRecord]:
    return {Path(f"{record.prior}-{record.seed}.json"): record for record in found}


def test_main_table(make: Make) -> None:
    table = language_tables.main_table(
        records(make("mask", 0, 0.9), make("vanilla", 0, 1.0), make("vanilla", 1, 1.0), make("mask", 1, 0.7))
    )
    assert [row[:3] for row in table.rows] == [("stories", "vanilla", "2"), ("stories", "mask", "2")]
    mask = dict(zip(table.header, table.rows[1], strict=True))
    assert mask["loss less vanilla's (documents)"] == "-0.2000 (-0.2000 to -0.2000)"
    assert mask["seeds won"] == "2 of 2"
    # To 3: from 3.9 to 2.9 and from 3.7 to 2.7 in steps 10 to 20.
    assert mask["steps to vanilla's loss"] == "0.90 ×"
    assert table.rows[0][6:9] == ("–", "–", "–")


def test_a_loss_that_is_never_reached(make: Make) -> None:
    found = language_tables.gain([make("mask", 0, 1.5)], [make("vanilla", 0, 1.0)])
    assert math.isnan(found.steps)
    assert found.won == 0
    assert found.mean == pytest.approx(0.5)


def test_runs_without_a_pair_are_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="expected runs with the same seeds"):
        language_tables.gain([make("mask", 0, 1.5)], [make("vanilla", 1, 1.0)])


def test_length_table(make: Make) -> None:
    table = language_tables.length_table(records(make("vanilla", 0, 3.0), make("vanilla", 1, 1.0)))
    assert table.header == ("text", "prior", "1×", "4×", "4× / 1×")
    assert table.rows == (("stories", "vanilla", "10.00", "20.00", "2.000"),)


def test_what_is_learned_is_noted_and_drawn(tmp_path: Path, make: Make) -> None:
    record = make("mask", 0, 1.0)
    path = tmp_path / "language" / "run.json"
    write_record(path, record)
    start = torch.zeros(1, 2, 3, 3)
    end = start - torch.arange(3.0).view(3, 1) + torch.arange(3.0)
    write_tensors(patterns_path(path), {"mask_logits_start": start, "mask_logits_end": end})
    (noted,) = language_tables.note_learned(path.parent, language_tables.learned_folder(path.parent))
    assert noted.parent.name == "language-learned"
    figure = language_tables.learned_figure(noted, "stories")
    lines = figure.axes[0].get_lines()
    assert len(lines) == 4
    wanted = [-math.log1p(math.exp(d)) + math.log(2) for d in range(3)]
    np.testing.assert_allclose(lines[1].get_ydata(), wanted, atol=2e-4)


def test_curves_are_by_tokens_seen(make: Make) -> None:
    figure = language_tables.curves_figure(records(make("vanilla", 0, 1.0), make("mask", 0, 0.5)))
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["vanilla", "mask"]
    np.testing.assert_allclose(figure.axes[0].get_lines()[0].get_xdata(), [0, 0.21, 0.42])


@pytest.mark.skipif(not language_tables.RESULTS.is_dir(), reason="no published records")
def test_the_page_says_what_the_records_say() -> None:
    found = read_records(language_tables.RESULTS)
    for name, filled in language_tables.blocks(found).items():
        page = (ROOT / name).read_text()
        assert fill_blocks(page, filled) == page, f"{name}: run `python -m recipes.language_tables`"


def test_headline_has_a_line_a_text_and_the_worst_seed(make: Make) -> None:
    found = records(make("vanilla", 0, 0.0), make("vanilla", 1, math.log(3.0)), make("mask", 0, 0.0))
    table = language_tables.headline(found)
    assert table.header == ("text", "vanilla", "mask")
    assert table.rows == (("stories", "2.0 (3.0)", "1.0 (1.0)"),)


def test_the_code_on_the_page_runs() -> None:
    page = (ROOT / "docs" / "language.md").read_text()
    names: dict[str, Any] = {}
    block, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    exec(compile(block, "docs/language.md", "exec"), names)  # noqa: S102 -- our own documentation
    assert names["logits"].shape == (1, 256, 512)
