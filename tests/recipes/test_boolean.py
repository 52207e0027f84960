"""The Boolean recipes: fair by construction, and their published tables true to their records."""

from pathlib import Path

import pytest
import torch

from maskprior import structures
from maskprior.experiments.config import RunConfig
from maskprior.experiments.run import record_path
from maskprior.priors import PRIORS
from maskprior.tasks.gotu import cyclic3, majority3, two_parity
from recipes import boolean, boolean_tables
from recipes.blocks import fill_blocks
from recipes.reproduce import part_folder

ROOT = Path(__file__).parents[2]


def test_the_main_table_is_three_tasks_four_priors_ten_seeds() -> None:
    configs = boolean.main_table()
    assert len(configs) == 120
    for task in boolean.TASKS:
        of_task = [config for config in configs if config.task.name == task]
        assert {config.task.interface().length for config in of_task} == {15}
        assert {(config.prior.name, config.seed) for config in of_task} == {
            (prior, seed) for prior in PRIORS for seed in range(10)
        }
        assert len({(config.model, config.training) for config in of_task}) == 1


def test_the_grid_is_the_same_for_all_priors() -> None:
    configs = [*boolean.main_table(3), *boolean.grid()]
    cells: dict[str, set[object]] = {prior: set() for prior in PRIORS}
    for c in configs:
        cells[c.prior.name].add((c.task.name, c.seed, c.training.learning_rate, c.model.position_std))
    assert len(cells["vanilla"]) == 3 * 3 * 4
    assert all(chosen == cells["vanilla"] for chosen in cells.values())


@pytest.mark.parametrize("part", list(boolean.PARTS))
def test_no_two_runs_of_a_part_are_the_same(part: str) -> None:
    configs = boolean.PARTS[part]()
    assert len({record_path(Path(), config) for config in configs}) == len(configs)


def test_an_ablation_changes_one_thing() -> None:
    plain = {c.task.name: c for c in boolean.main_table(1) if c.prior.name == "mask"}
    for config in boolean.ablation(1):
        base = plain[config.task.name]
        same_structure = torch.equal(config.task.structure(), base.task.structure())
        differences = [config.model != base.model, config.prior != base.prior, not same_structure]
        assert sum(differences) == 1, config.variant


@pytest.mark.parametrize(
    ("edit", "drawn"),
    [
        (boolean.self_allowed, ["■ · · ·", "· ■ ■ ·", "· ■ ■ ·", "· · · ■"]),
        (boolean.readout_reads([0, 1]), ["■ ■ ■ ·", "· · ■ ·", "· ■ · ·", "· · · ■"]),
        (boolean.readout_reads_itself, ["■ · · ·", "· · ■ ·", "· ■ · ·", "· · · ■"]),
        (boolean.idle_bits_read_readout, ["■ · · ·", "· · ■ ·", "· ■ · ·", "■ · · ·"]),
        (boolean.shuffled_partners, ["■ · · ·", "· ■ · ·", "· · · ■", "· · ■ ·"]),
        (boolean.all_high, ["■ ■ ■ ■"] * 4),
    ],
)
def test_edits_are_as_named(edit: boolean.Edit, drawn: list[str]) -> None:
    assert structures.draw(edit(two_parity(3).structure())).split("\n") == drawn


@pytest.mark.parametrize("task", [two_parity(), majority3(), cyclic3()])
def test_every_edit_changes_the_structure_and_leaves_no_row_empty(task: object) -> None:
    structure = task.structure()  # type: ignore[attr-defined]
    for name, edit in boolean.EDITS[task.name].items():  # type: ignore[attr-defined]
        edited = edit(structure)
        structures.check_structure(edited)
        assert not torch.equal(edited, structure), name


def test_blocks_are_rewritten_and_the_rest_stays() -> None:
    text = "a\n<!-- begin t -->\nold\n<!-- end t -->\nb\n"
    filled = fill_blocks(text, {"t": "new"})
    assert filled == "a\n<!-- begin t -->\nnew\n<!-- end t -->\nb\n"
    assert fill_blocks(filled, {"t": "new"}) == filled


@pytest.mark.parametrize("text", ["no block", "<!-- begin t -->\n<!-- end t -->\n" * 2])
def test_a_missing_or_doubled_block_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected one block"):
        fill_blocks(text, {"t": "new"})


def test_published_tables_are_those_of_the_records() -> None:
    for name, filled in boolean_tables.blocks().items():
        text = (ROOT / name).read_text()
        assert fill_blocks(text, filled) == text, f"{name}: run `python -m recipes.boolean_tables`"


def published(part: str) -> tuple[Path, list[RunConfig]]:
    return part_folder(boolean_tables.RESULTS, part), boolean.PARTS[part]()


@pytest.mark.parametrize("part", list(boolean.PARTS))
def test_published_records_are_all_there_and_no_others(part: str) -> None:
    folder, configs = published(part)
    assert {path.name for path in folder.glob("*.json")} == {record_path(Path(), c).name for c in configs}
