"""Named generators: reproducible, independent of each other."""

import pytest
import torch

from maskprior.experiments.seeding import named_generator


def draw(seed: int, name: str) -> list[int]:
    return torch.randint(10**9, (4,), generator=named_generator(seed, name)).tolist()


def test_same_seed_and_name_give_the_same_numbers() -> None:
    assert draw(3, "data") == draw(3, "data")


def test_seeds_and_names_give_different_numbers() -> None:
    drawn = [draw(3, "data"), draw(3, "init"), draw(4, "data")]
    assert len({tuple(numbers) for numbers in drawn}) == 3


def test_the_state_is_pinned() -> None:
    assert named_generator(0, "data").initial_seed() == 736872305540241488  # SHA-256("0/data"), 63 bits


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed ≥ 0, got -1"):
        named_generator(-1, "data")
