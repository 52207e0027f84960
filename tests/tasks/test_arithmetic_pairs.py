"""Drawing pairs, and carries against schoolbook arithmetic in Python."""

from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskprior.tasks import arithmetic_pairs
from maskprior.tasks.arithmetic_layout import Operation
from maskprior.tasks.arithmetic_pairs import (
    carries,
    draw_distinct,
    draw_of_length,
    longest_run,
    written_length,
)

numbers = st.integers(0, 9999)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def digits(number: int, count: int, base: int) -> list[int]:
    return [number // base**column % base for column in range(count)]


def carry_by_hand(operation: Operation, a: int, b: int, columns: int, base: int) -> list[bool]:
    """Column by column with a running carry, as on paper."""
    carry, out = 0, []
    first, second = digits(max(a, b), columns, base), digits(min(a, b), columns, base)
    for column in range(columns):
        if operation == "addition":
            carry = (first[column] + second[column] + carry) // base
        elif operation == "subtraction":
            carry = int(first[column] - second[column] - carry < 0)
        else:
            products = sum(first[i] * second[column - i] for i in range(column + 1))
            carry = (products + carry) // base
        out.append(carry > 0)
    return out


@given(st.sampled_from(["addition", "subtraction", "multiplication"]), numbers, numbers, st.integers(2, 16))
def test_carries_are_those_of_schoolbook_arithmetic(operation: Operation, a: int, b: int, base: int) -> None:
    columns = 15
    found = carries(operation, torch.tensor([a]), torch.tensor([b]), columns, base)
    assert found.tolist() == [carry_by_hand(operation, a, b, columns, base)]


def test_known_carries() -> None:
    a, b = torch.tensor([999, 123, 500]), torch.tensor([1, 456, 500])
    assert carries("addition", a, b, 4, 10).int().tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    assert carries("subtraction", torch.tensor([100]), torch.tensor([1]), 3, 10).int().tolist() == [[1, 1, 0]]
    assert carries("multiplication", torch.tensor([12]), torch.tensor([12]), 4, 10).int().tolist() == [
        [0] * 4
    ]


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_longest_run(flags: list[bool]) -> None:
    expected = max((len(list(run)) for flag, run in groupby(flags) if flag), default=0)
    assert longest_run(torch.tensor([flags, flags])).tolist() == [expected] * 2


@given(st.integers(0, 10**6), st.integers(2, 36))
def test_written_length(number: int, base: int) -> None:
    expected = next(length for length in range(1, 22) if number < base**length)
    assert written_length(torch.tensor([number]), base).tolist() == [expected]


@pytest.mark.parametrize("enumerated", [0, 2**22])
@pytest.mark.parametrize(("count", "total"), [(0, 5), (7, 13), (13, 13), (41, 1009)])
def test_drawn_numbers_are_distinct(
    monkeypatch: pytest.MonkeyPatch, enumerated: int, count: int, total: int
) -> None:
    monkeypatch.setattr(arithmetic_pairs, "ENUMERATED", enumerated)
    drawn = draw_distinct(count, total, generator())
    assert len(set(drawn.tolist())) == len(drawn) == count
    assert all(0 <= number < total for number in drawn.tolist())
    assert torch.equal(drawn, draw_distinct(count, total, generator()))


def test_large_domains_are_sampled_uniformly() -> None:
    total = 10**12
    drawn = draw_distinct(2000, total, generator()).double() / total
    # The mean of 2,000 uniform numbers has a standard deviation of 0.0065.
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.03)
    assert not bool((drawn.diff() > 0).all()), "expected a random order"


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 ≤ count ≤ 5, got 6"):
        draw_distinct(6, 5, generator())


@pytest.mark.parametrize(("length", "low", "high"), [(1, 0, 9), (3, 100, 999)])
def test_numbers_of_a_length(length: int, low: int, high: int) -> None:
    drawn = draw_of_length(20_000, length, 10, generator())
    assert (int(drawn.min()), int(drawn.max())) == (low, high)
