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


def shuffled(structure: Tensor, generator: torch.Generator) -> Tensor:
    """The same number of reads in the wrong place: what each token reads is renumbered by one permutation."""
    order = torch.randperm(structure.shape[-1], generator=generator)
    return structure[..., order]
