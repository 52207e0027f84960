"""The arithmetic tasks with the structures that solve them."""

from maskprior.tasks.arithmetic import ArithmeticTask
from maskprior.tasks.arithmetic_layout import Layout, Order
from maskprior.tasks.arithmetic_structure import columns, product_scratch, products

ADDITION_PAIRS = 4000
PRODUCT_SHARE = 0.03


def addition(
    digits: int = 3,
    pairs: int | float = ADDITION_PAIRS,
    order: Order = "encoder",
    trained_digits: int | None = None,
) -> ArithmeticTask:
    """a + b, column by column: a slot reads its two digits and the slot its carry comes from.

    4,000 of the 1,000,000 pairs of 3-digit numbers are 0.4 %, as in the paper.
    """
    layout = Layout("addition", (digits, digits), order=order)
    name = "addition" if order == "encoder" else f"addition-{order}"
    return ArithmeticTask(name, layout, columns(layout), pairs, trained_digits)


def subtraction(digits: int = 3, pairs: int | float = ADDITION_PAIRS) -> ArithmeticTask:
    """a − b with its sign, column by column: a slot reads its digits, the borrow's slot and the sign's."""
    layout = Layout("subtraction", (digits, digits))
    return ArithmeticTask("subtraction", layout, columns(layout), pairs)


def multiplication(
    digits: int = 3, second: int = 1, pairs: int | float = PRODUCT_SHARE, sums: int = 3
) -> ArithmeticTask:
    """a · b: each pair of digits has a token for its product, each slot reads those of its column.

    3 % of the 10,000 pairs of a 3-digit and a 1-digit number are 300.
    """
    sizes = (digits, second)
    layout = Layout("multiplication", sizes, scratch=product_scratch(sizes))
    return ArithmeticTask("multiplication", layout, products(layout, sums), pairs)
