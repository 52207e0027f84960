"""The arithmetic tasks with the structures that solve them."""

from maskprior.tasks.arithmetic import ArithmeticTask
from maskprior.tasks.arithmetic_layout import Layout, Order
from maskprior.tasks.arithmetic_structure import columns


def addition(digits: int = 3, pairs: int | float = 4000, order: Order = "encoder") -> ArithmeticTask:
    """a + b, column by column: a slot reads its two digits and the slot its carry comes from.

    4,000 of the 1,000,000 pairs of 3-digit numbers are 0.4 %, as in the paper.
    """
    layout = Layout("addition", (digits, digits), order=order)
    name = "addition" if order == "encoder" else f"addition-{order}"
    return ArithmeticTask(name, layout, columns(layout), pairs)


def subtraction(digits: int = 3, pairs: int | float = 4000) -> ArithmeticTask:
    """a − b with its sign, column by column: a slot reads its digits, the borrow's slot and the sign's."""
    layout = Layout("subtraction", (digits, digits))
    return ArithmeticTask("subtraction", layout, columns(layout), pairs)
