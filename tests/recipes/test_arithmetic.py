"""The arithmetic recipes: fair by construction, and their published tables true to their records."""

from pathlib import Path

import pytest
import torch

from maskprior.experiments.config import RunConfig
from maskprior.experiments.record import read_records
from maskprior.experiments.run import record_path
from maskprior.priors import PRIORS
from maskprior.tasks.arithmetic import ArithmeticTask
from recipes import arithmetic, arithmetic_tables
from recipes.blocks import fill_blocks
from recipes.reproduce import part_folder

ROOT = Path(__file__).parents[2]
FAIR = ("addition", "decoder", "3x1", "2x2", "3x3", "length")


@pytest.mark.parametrize("part", list(arithmetic.PARTS))
def test_no_two_runs_of_a_part_are_the_same(part: str) -> None:
    configs = arithmetic.PARTS[part]()
    assert len({record_path(Path(), config) for config in configs}) == len(configs)


@pytest.mark.parametrize("part", FAIR)
def test_priors_share_data_model_and_training(part: str) -> None:
    configs = [c for c in arithmetic.PARTS[part]() if "no-positions" not in c.variant]
    assert {c.prior.name for c in configs} == set(PRIORS)
    assert len({(c.model, c.training) for c in configs}) == 1
    described = {json_without_structure(c) for c in configs}
    assert len(described) == 1
    seeds = {name: {c.seed for c in configs if c.variant == name} for name in PRIORS}
    assert all(chosen == set(range(5)) for chosen in seeds.values())


def json_without_structure(config: RunConfig) -> str:
    return str({key: value for key, value in config.task.describe().items() if key != "fingerprint"})


def test_without_positions_nothing_else_changes() -> None:
    configs = arithmetic.two_by_two()
    none = {c.model for c in configs if c.model.positions == "none"}
    learned = {c.model for c in configs if c.model.positions == "learned"}
    assert len(none) == len(learned) == 1
    changed = {k for k, v in next(iter(none)).__dict__.items() if v != next(iter(learned)).__dict__[k]}
    assert changed == {"positions"}
    assert len({c.training for c in configs}) == 1


def test_the_grid_is_the_same_for_all_priors_and_at_a_seed_of_its_own() -> None:
    cells: dict[str, set[object]] = {prior: set() for prior in PRIORS}
    for c in arithmetic.grid():
        assert c.seed >= arithmetic.SEEDS
        assert isinstance(c.task, ArithmeticTask)
        cells[c.prior.name].add((c.task.pairs, c.training.learning_rate, c.model.position_std))
    assert len(cells["vanilla"]) == 2 * 2 * 2
    assert all(chosen == cells["vanilla"] for chosen in cells.values())


def test_the_best_cells_are_those_of_the_published_grid() -> None:
    records = read_records(part_folder(arithmetic_tables.RESULTS, "grid"))
    few, many = arithmetic.GRID_PAIRS
    best = arithmetic_tables.best_cells(records)
    assert {"few": best[few], "many": best[many]} == arithmetic.BEST


def test_controls_are_what_they_are_called() -> None:
    by_name = {c.variant: c for c in arithmetic.addition_table() if c.seed == 0}
    plain = by_name["mask"].task.structure()
    shuffled = by_name["mask-shuffled"].task.structure()
    assert shuffled.sum() == plain.sum()
    assert not torch.equal(shuffled, plain)
    assert bool((by_name["mask-all-high"].task.structure() == 1).all())
    assert by_name["mask-frozen"].prior.options == {"learnable": False}
    assert torch.equal(by_name["mask-frozen"].task.structure(), plain)


def test_an_unknown_part_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="a part among all, addition, grid"):
        arithmetic.reproduce(arithmetic.Reproduce(part="subtraction"))


@pytest.mark.parametrize("part", list(arithmetic.PARTS))
def test_every_run_of_the_recipe_is_published_and_nothing_else(part: str) -> None:
    folder = part_folder(arithmetic_tables.RESULTS, part)
    wanted = {record_path(folder, config) for config in arithmetic.PARTS[part]()}
    assert set(read_records(folder)) == wanted


def test_published_records_come_from_committed_code() -> None:
    for part in arithmetic.PARTS:
        records = read_records(part_folder(arithmetic_tables.RESULTS, part))
        assert not any(record.dirty or record.commit == "unknown" for record in records.values())


def test_the_published_tables_are_those_of_the_records() -> None:
    for name, filled in arithmetic_tables.blocks().items():
        text = (ROOT / name).read_text()
        assert fill_blocks(text, filled) == text, f"{name}: run `python -m recipes.arithmetic_tables`"
