"""Labels, digit columns and carries against their definitions."""

import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior.structures import (
    carry_neighbour,
    digit_alignment,
    digit_columns,
    pairs,
    reads,
    same_label,
    with_fallback_self,
)

ADDITION = "123+456=????"


def equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@given(st.lists(st.sampled_from(["x", "y", "pad", None]), min_size=1), st.booleans())
def test_same_label(labels: list[str | None], include_self: bool) -> None:
    n = len(labels)
    expected = torch.tensor(
        [
            [
                float(labels[i] == labels[j] and labels[i] != "pad" and (include_self or i != j))
                for j in range(n)
            ]
            for i in range(n)
        ]
    )
    equal(same_label(labels, ignore="pad", include_self=include_self), expected)


def test_same_label_reads_tensors_by_value() -> None:
    equal(same_label(torch.tensor([4, 2, 4, -1, -1]), ignore=-1), pairs(5, [(0, 2)]))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
def test_digit_columns_give_the_numbers_back(numbers: list[int]) -> None:
    text = "+".join(map(str, numbers))
    columns = digit_columns(text)
    assert [column is None for column in columns] == [token == "+" for token in text]
    total = sum(
        int(token) * 10**column for token, column in zip(text, columns, strict=True) if column is not None
    )
    assert total == sum(numbers)


def test_digit_columns_of_tokens_in_another_base() -> None:
    assert digit_columns(["<s>", "1", "f", "×", "a"], digits="0123456789abcdef") == [None, 1, 0, None, 0]


def test_digit_alignment_of_an_addition() -> None:
    columns = digit_columns(ADDITION)
    expected = pairs(
        12,
        [(0, 4), (0, 9), (4, 9), (1, 5), (1, 10), (5, 10), (2, 6), (2, 11), (6, 11)],
    )
    equal(digit_alignment(columns), expected)


def test_carry_neighbour_of_an_addition() -> None:
    expected = pairs(12, [(8, 9), (9, 10), (10, 11)], symmetric=False)
    equal(carry_neighbour(digit_columns(ADDITION), slots=range(8, 12)), expected)


def test_carry_neighbour_of_a_reversed_answer() -> None:
    columns = [1, 0, None, 1, 0, None, 0, 1, 2]
    expected = pairs(9, [(7, 6), (8, 7)], symmetric=False)
    equal(carry_neighbour(columns, slots=[6, 7, 8]), expected)


def test_the_addition_structure_composes() -> None:
    """Slot k reads a_k, b_k, slot k−1 and itself; a_k and b_k read one another; + and = themselves."""
    columns, slots, operands = digit_columns(ADDITION), [8, 9, 10, 11], [0, 1, 2, 4, 5, 6]
    aligned = torch.minimum(digit_alignment(columns), reads(12, range(12), operands))
    own = pairs(12, [(slot, slot) for slot in slots])
    actual = with_fallback_self(torch.maximum(torch.maximum(aligned, carry_neighbour(columns, slots)), own))
    read_by = {
        0: [4], 1: [5], 2: [6], 3: [3], 4: [0], 5: [1], 6: [2], 7: [7],
        8: [8, 9], 9: [0, 4, 9, 10], 10: [1, 5, 10, 11], 11: [2, 6, 11],
    }  # fmt: skip
    assert {i: row.nonzero().flatten().tolist() for i, row in enumerate(actual)} == read_by


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: same_label([]), ValueError, "expected at least one label, got none"),
        (lambda: same_label([[1]]), TypeError, "unhashable"),
        (lambda: digit_columns(["12", "+"]), ValueError, "expected one digit a token, got '12'"),
        (lambda: digit_alignment([]), ValueError, "expected at least one column, got none"),
        (lambda: digit_alignment([0, -1]), ValueError, "expected columns ≥ 0, got -1"),
        (lambda: digit_alignment(["1"]), TypeError, "expected columns as an integer, got '1'"),  # type: ignore[list-item]
        (lambda: carry_neighbour([0, 1], [2]), ValueError, "expected the indices in slots in 0..1, got 2"),
        (
            lambda: carry_neighbour([0, None], [1]),
            ValueError,
            "expected slots that have a column, got slot 1 with None",
        ),
    ],
)
def test_refusals(build: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        build()
