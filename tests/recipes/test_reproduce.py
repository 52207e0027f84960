"""What recipes share: the parts that they are asked for, and errors that are a line."""

import subprocess
import sys
from pathlib import Path

import pytest

from recipes.reproduce import chosen_parts, part_folder

RECIPES = ("boolean", "arithmetic", "persistence", "vision", "language")


def test_all_parts_or_one_are_chosen() -> None:
    parts = {"main": 1, "grid": 2}
    assert chosen_parts("all", parts) == ["main", "grid"]
    assert chosen_parts("grid", parts) == ["grid"]
    with pytest.raises(ValueError, match="expected a part among all, main, grid; got 'gird'"):
        chosen_parts("gird", parts)


def test_parts_lie_beside_the_main_one() -> None:
    assert part_folder(Path("results/x"), "main") == Path("results/x")
    assert part_folder(Path("results/x"), "grid") == Path("results/x-grid")


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_unknown_part_is_a_line_with_the_choices_and_no_traceback(recipe: str) -> None:
    command = [sys.executable, "-m", f"recipes.{recipe}", "--part", "nonsense"]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    (line,) = run.stderr.strip().splitlines()
    assert line.startswith(f"{recipe}: error: expected a part among ")
    assert line.endswith("got 'nonsense'")
