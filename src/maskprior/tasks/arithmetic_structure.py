"""Who should read whom in an arithmetic expression, by the names of its tokens."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from maskprior import structures
from maskprior.tasks.arithmetic_layout import Layout

Wiring = Mapping[str, str]
"""Name of a reader → names of what it reads, separated by spaces."""


def wire(layout: Layout, wiring: Wiring) -> Tensor:
    """The structure ``[N, N]`` in which each named token reads what the wiring says, every other one itself.

    Raises:
        ValueError: a name that no token has.

    Example:
        >>> print(structures.draw(wire(Layout("addition", (1, 1)), {"s0": "a0 b0", "s1": "s0"})))
        ■ · · · · ·
        · ■ · · · ·
        · · ■ · · ·
        · · · ■ · ·
        · · · · · ■
        ■ · ■ · · ·
    """
    pairs = [
        (layout.index(reader), layout.index(name)) for reader, read in wiring.items() for name in read.split()
    ]
    return structures.with_fallback_self(structures.pairs(len(layout.names), pairs, symmetric=False))


def columns(layout: Layout) -> Tensor:
    """Column-wise addition or subtraction: slot k reads a_k, b_k, the slot its carry comes from, and itself.

    In an encoder the operands' digits of a column read each other and not themselves. In a decoder, which
    can't look ahead, b_k reads a_k. Where the answer is written from its most significant digit on, the slot
    of the carry has not been written yet: slot k reads the operands' lower columns instead.
    In a subtraction all slots read the sign's slot too, which comes from the last borrow and decides which
    operand is taken from which; or all digits, where the sign is written last.

    Raises:
        ValueError: a multiplication.
    """
    if layout.operation == "multiplication":
        raise ValueError("expected an addition or a subtraction; products need room: see `products`")
    wiring = _operands(layout)
    for column, slot in enumerate(layout.slot_names):
        read = [slot, *_digits(layout, [column])]
        if layout.order == "decoder":
            read += _digits(layout, range(column))
        elif column > 0:
            read.append(layout.slot_names[column - 1])
        if layout.operation == "subtraction":
            sign_is_last = layout.order == "decoder-reversed"
            read += _digits(layout, range(layout.columns)) if sign_is_last else [layout.slot_names[-1]]
        wiring[slot] = " ".join(read)
    return wire(layout, wiring)


def _operands(layout: Layout) -> dict[str, str]:
    shared = range(min(layout.digits))
    wiring = {f"b{column}": f"a{column}" for column in shared}
    return wiring if layout.causal else wiring | {f"a{column}": f"b{column}" for column in shared}


def _digits(layout: Layout, wanted: Iterable[int]) -> list[str]:
    """The operands' digits of these columns, where there are such."""
    there = set(layout.names)
    return [name for column in wanted for name in (f"a{column}", f"b{column}") if name in there]


def product_scratch(digits: tuple[int, int]) -> tuple[str, ...]:
    """Names of the scratch tokens of :func:`products`: z0, … (nothing), and p_ij for each product a_i·b_j."""
    m, n = digits
    idle = [f"z{index}" for index in range(max(1, min(m, n) - 1))]
    return (*idle, *(f"p{i}_{j}" for i in reversed(range(m)) for j in reversed(range(n))))


def products(layout: Layout, sums: int) -> Tensor:
    """Partial products and their sums, column by column: ``[1 + sums, 3, N, N]``, three groups of heads.

    In the first layer the scratch token p_ij reads a_i and b_j, so that their product can form there. In each
    of the ``sums`` layers after it, slot k reads

        head 0   p_ij with i + j = k       whose units belong to this column
        head 1   p_ij with i + j = k − 1   whose tens do
        head 2   slot k − 1                whose carry does

    A head's read is a mean. So that means are in proportion to sums, every slot reads as many tokens as the
    fullest one: z0, z1, … stand in for products that are not there. Carries move one column a layer.

    Raises:
        ValueError: not a multiplication, not an encoder, its scratch tokens are not those of
            :func:`product_scratch`, or ``sums`` < 1.
    """
    if layout.operation != "multiplication" or layout.causal:
        raise ValueError(
            f"expected the encoder of a multiplication, got {layout.order} of {layout.operation}"
        )
    if layout.scratch != product_scratch(layout.digits):
        raise ValueError(f"expected scratch={product_scratch(layout.digits)}, got {layout.scratch}")
    if sums < 1:
        raise ValueError(f"expected sums ≥ 1, got {sums}")
    m, n = layout.digits
    pairs = [(i, j) for i in range(m) for j in range(n)]
    form = wire(layout, {f"p{i}_{j}": f"a{i} b{j}" for i, j in pairs})
    units, tens, carry = {}, {}, {}
    for column, slot in enumerate(layout.slot_names):
        units[slot] = _as_many([f"p{i}_{j}" for i, j in pairs if i + j == column], min(m, n))
        tens[slot] = _as_many([f"p{i}_{j}" for i, j in pairs if i + j == column - 1], min(m, n))
        carry[slot] = layout.slot_names[column - 1] if column > 0 else "z0"
    add = torch.stack([wire(layout, wiring) for wiring in (units, tens, carry)])
    return torch.stack([form.expand_as(add), *[add] * sums])


def _as_many(there: list[str], count: int) -> str:
    """The tokens, with idle ones up to ``count``; one idle token where there is none."""
    return " ".join([*there, *(f"z{index}" for index in range(count - len(there)))]) if there else "z0"


def shuffled(structure: Tensor, generator: torch.Generator) -> Tensor:
    """The same number of reads in the wrong place: what each token reads is renumbered by one permutation."""
    order = torch.randperm(structure.shape[-1], generator=generator)
    return structure[..., order]
