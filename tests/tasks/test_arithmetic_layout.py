"""Layouts: exact digits and results against Python's integers, and names where they belong."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior.tasks.arithmetic_layout import Layout, Operation, Order, digits_of, number_of

OPERATIONS: tuple[Operation, ...] = ("addition", "subtraction", "multiplication")
ORDERS: tuple[Order, ...] = ("encoder", "decoder", "decoder-reversed")

layouts = st.builds(
    Layout,
    st.sampled_from(OPERATIONS),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from([2, 3, 7, 10, 16]),
    st.sampled_from(ORDERS),
    st.sampled_from([(), ("p0",), ("p0", "p1", "p2")]),
)


def write(number: int, base: int, width: int) -> str:
    """The number in a base, zero-padded, most significant digit first; independent of the code under test."""
    text = ""
    for _ in range(width):
        number, digit = divmod(number, base)
        text = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + text
    assert number == 0
    return text


def spell(layout: Layout, tokens: Tensor) -> str:
    return "".join(layout.symbols[token] for token in tokens)


@given(layouts, st.data())
def test_expressions_are_written_as_python_computes_them(layout: Layout, data: st.DataObject) -> None:
    m, n = layout.digits
    a = data.draw(st.integers(0, layout.base**m - 1))
    b = data.draw(st.integers(0, layout.base**n - 1))
    result = {"addition": a + b, "subtraction": a - b, "multiplication": a * b}[layout.operation]
    symbol = {"addition": "+", "subtraction": "-", "multiplication": "×"}[layout.operation]
    prompt = f"{write(a, layout.base, m)}{symbol}{write(b, layout.base, n)}{'_' * len(layout.scratch)}="
    if layout.operation == "subtraction":
        answer = ("-" if a < b else "0") + write(abs(result), layout.base, max(m, n))
    else:
        answer = write(result, layout.base, layout.columns)
    shown = answer[::-1] if layout.order == "decoder-reversed" else answer
    expected = prompt + ("?" * len(answer) if layout.order == "encoder" else shown[:-1])

    pair = torch.tensor([a]), torch.tensor([b])
    (inputs,), (targets,) = layout.inputs(*pair), layout.targets(*pair)
    assert spell(layout, inputs) == expected
    assert spell(layout, targets) == answer[::-1]
    assert layout.result(targets.tolist()) == result
    assert [int(number) for number in layout.operands(inputs)] == [a, b]
    assert spell(layout, layout.prompts(*pair)[0]) == prompt
    assert len(prompt) == layout.prompt_length


@given(layouts)
def test_each_slot_is_where_its_digit_is_read(layout: Layout) -> None:
    names = layout.names
    assert len(set(names)) == len(names)
    assert [names[slot] for slot in layout.slots] == [f"s{column}" for column in range(layout.columns)]
    if layout.order == "encoder":
        assert layout.slots == tuple(range(len(names) - 1, layout.prompt_length - 1, -1))
    else:
        # The first digit is read at the "=", each other one at the digit written before it.
        ordered = sorted(layout.slots)
        assert ordered == list(range(layout.prompt_length - 1, layout.prompt_length - 1 + layout.columns))
        assert (layout.slots[0] < layout.slots[-1]) == (layout.order == "decoder-reversed") or len(
            ordered
        ) == 1


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=5), st.integers(2, 36))
def test_digits_and_numbers_are_inverse(numbers: list[int], base: int) -> None:
    count = next(count for count in range(1, 31) if base**count > 10**9)
    digits = digits_of(torch.tensor(numbers), count, base)
    assert bool(((digits >= 0) & (digits < base)).all())
    assert number_of(digits, base).tolist() == numbers


def test_the_documented_example() -> None:
    pair = torch.tensor([123]), torch.tensor([456])
    for order, tokens, names in (
        ("encoder", "123+456=????", "a2 a1 a0 + b2 b1 b0 = s3 s2 s1 s0"),
        ("decoder", "123+456=057", "a2 a1 a0 + b2 b1 b0 s3 s2 s1 s0"),
        ("decoder-reversed", "123+456=975", "a2 a1 a0 + b2 b1 b0 s0 s1 s2 s3"),
    ):
        layout = Layout("addition", (3, 3), order=order)  # type: ignore[arg-type]
        assert spell(layout, layout.inputs(*pair)[0]) == tokens
        assert " ".join(layout.names) == names


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"digits": (0, 3)}, r"at least one digit, got digits=\(0, 3\)"),
        ({"base": 1}, "base from 2 to 36, got 1"),
        ({"base": 37}, "base from 2 to 36, got 37"),
        ({"digits": (40, 40)}, "results below 2⁶³, got 41 columns in base 10"),
        ({"operation": "division"}, "operation among addition, subtraction, multiplication; got 'division'"),
        ({"order": "prefix"}, "order among encoder, decoder, decoder-reversed; got 'prefix'"),
        ({"scratch": ("p", "p")}, r"different names, got scratch=\('p', 'p'\)"),
        ({"scratch": ("s0",)}, r"different names, got scratch=\('s0',\)"),
    ],
)
def test_impossible_layouts_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(**{"operation": "addition", "digits": (3, 3)} | fields)  # type: ignore[arg-type]


def test_unknown_symbols_and_names_are_refused() -> None:
    layout = Layout("addition", (2, 2))
    with pytest.raises(ValueError, match=r"symbols among 0 1 .* \+ = \? _; got x"):
        layout.to_tokens("1x2")
    with pytest.raises(ValueError, match=r"a token among a1, a0, .*; got 'a2'"):
        layout.index("a2")
