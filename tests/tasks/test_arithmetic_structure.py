"""Who reads whom, by name."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior import structures
from maskprior.tasks.arithmetic_layout import Layout, Order
from maskprior.tasks.arithmetic_structure import columns, shuffled, wire

ORDERS: tuple[Order, ...] = ("encoder", "decoder", "decoder-reversed")


def readings(layout: Layout, structure: Tensor) -> dict[str, set[str]]:
    """Name of each token → names of what it reads."""
    names = layout.names
    return {
        names[query]: {names[key] for key in row.nonzero()[:, 0].tolist()}
        for query, row in enumerate(structure)
    }


def test_the_wiring_is_what_is_read_and_nothing_else() -> None:
    layout = Layout("multiplication", (2, 1), scratch=("p0", "p1"))
    wiring = {"p0": "a0 b0", "p1": "a1 b0", "s1": "p0 p1 s0"}
    found = readings(layout, wire(layout, wiring))
    expected = {reader: set(read.split()) for reader, read in wiring.items()}
    assert found == {name: expected.get(name, {name}) for name in layout.names}


def test_addition_reads_columns_and_carries() -> None:
    layout = Layout("addition", (2, 2))
    assert readings(layout, columns(layout)) == {
        "a1": {"b1"},
        "a0": {"b0"},
        "+": {"+"},
        "b1": {"a1"},
        "b0": {"a0"},
        "=": {"="},
        "s2": {"s2", "s1"},
        "s1": {"s1", "a1", "b1", "s0"},
        "s0": {"s0", "a0", "b0"},
    }


def test_a_decoder_that_writes_the_first_digit_first_reads_lower_columns() -> None:
    layout = Layout("addition", (2, 2), order="decoder")
    found = readings(layout, columns(layout))
    assert found["s2"] == {"s2", "a1", "b1", "a0", "b0"}
    assert found["s1"] == {"s1", "a1", "b1", "a0", "b0"}
    assert found["s0"] == {"s0", "a0", "b0"}


def test_subtraction_reads_the_sign() -> None:
    layout = Layout("subtraction", (2, 2))
    found = readings(layout, columns(layout))
    assert found["s0"] == {"s0", "a0", "b0", "s2"}
    assert found["s2"] == {"s2", "s1"}


@given(
    st.sampled_from(["addition", "subtraction"]),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from(ORDERS),
)
def test_no_decoder_needs_what_it_cannot_see(operation: str, digits: tuple[int, int], order: Order) -> None:
    layout = Layout(operation, digits, order=order)  # type: ignore[arg-type]
    structure = columns(layout)
    structures.check_structure(structure, length=len(layout.names))
    if layout.causal:
        assert torch.equal(structure, structure.tril())


@given(st.integers(1, 5), st.sampled_from(["addition", "subtraction"]))
def test_every_column_follows_the_same_rule(digits: int, operation: str) -> None:
    layout = Layout(operation, (digits + 1, digits + 1))  # type: ignore[arg-type]
    found = readings(layout, columns(layout))

    def shift(names: set[str]) -> set[str]:
        sign = f"s{digits + 1}"
        return {name if name == sign else f"{name[0]}{int(name[1:]) + 1}" for name in names}

    for column in range(1, digits):
        assert shift(found[f"s{column}"]) == found[f"s{column + 1}"]


def test_products_have_no_place_in_columns() -> None:
    with pytest.raises(ValueError, match="expected an addition or a subtraction"):
        columns(Layout("multiplication", (2, 2)))


def test_shuffling_keeps_the_number_of_reads() -> None:
    structure = columns(Layout("addition", (3, 3)))
    moved = shuffled(structure, torch.Generator().manual_seed(0))
    assert torch.equal(moved.sum(-1), structure.sum(-1))
    assert torch.equal(moved.sum(-2).sort().values, structure.sum(-2).sort().values)
    assert not torch.equal(moved, structure)
