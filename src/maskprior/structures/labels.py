"""Structures from a label a token: tokens of one column, one kind, one table group; digits of numbers."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from maskprior.structures.arguments import token_indices, whole_number
from maskprior.structures.basic import groups, pairs


def same_label(
    labels: Sequence[object] | Tensor, *, ignore: object = None, include_self: bool = False
) -> Tensor:
    """Tokens with equal labels interact.

    Args:
        labels: one hashable label a token.
        ignore: the label of tokens that belong to no group; their rows are empty.
        include_self: labelled tokens read themselves too.

    Returns:
        float32 ``[n, n]`` of 0 and 1, symmetric, n = the number of labels.

    Raises:
        TypeError: a label is not hashable.
        ValueError: no labels.

    Example:
        >>> print(draw(same_label(["x", "y", "x", None, "y"])))
        · · ■ · ·
        · · · · ■
        ■ · · · ·
        · · · · ·
        · ■ · · ·
    """
    named: list[object] = labels.tolist() if isinstance(labels, Tensor) else list(labels)
    if not named:
        raise ValueError("expected at least one label, got none")
    members: dict[object, list[int]] = {}
    for index, label in enumerate(named):
        if label != ignore:
            members.setdefault(label, []).append(index)
    return groups(len(named), members.values(), include_self=include_self)


def digit_columns(tokens: Iterable[str], digits: str = "0123456789?") -> list[int | None]:
    """The power of the base that each token of a written expression stands for; None for other symbols.

    Each unbroken run of digits is one number, the most significant digit first.

    Args:
        tokens: the expression, a token a digit; a plain string will do.
        digits: the digits of the base, and what stands for a digit yet to be found.

    Returns:
        One column a token.

    Raises:
        ValueError: a token of several digits.

    Example:
        >>> digit_columns("123+456=????")
        [2, 1, 0, None, 2, 1, 0, None, 3, 2, 1, 0]
    """
    columns: list[int | None] = []
    power = -1
    for token in reversed(list(tokens)):
        if len(token) > 1 and set(token) <= set(digits):
            raise ValueError(f"expected one digit a token, got {token!r}")
        power = power + 1 if token in set(digits) else -1
        columns.append(power if power >= 0 else None)
    return columns[::-1]


def digit_alignment(columns: Sequence[int | None], *, include_self: bool = False) -> Tensor:
    """Digits of the same column interact: ones with ones, tens with tens, operands and answer alike.

    Args:
        columns: the power of the base that each token stands for, None for symbols (:func:`digit_columns`).
        include_self: digits read themselves too.

    Returns:
        float32 ``[n, n]`` of 0 and 1, symmetric; rows of symbols are empty.

    Raises:
        TypeError: a column is neither an integer nor None.
        ValueError: no columns, or a negative one.

    Example:
        >>> print(draw(digit_alignment(digit_columns("1+2=??"))))
        · · ■ · · ■
        · · · · · ·
        ■ · · · · ■
        · · · · · ·
        · · · · · ·
        ■ · ■ · · ·

        Addition whose slots read both operands and the slot of the carry, while no operand reads the answer:

        >>> columns, operands, slots = digit_columns("1+2=??"), [0, 2], [4, 5]
        >>> aligned = torch.minimum(digit_alignment(columns), reads(6, range(6), operands))
        >>> print(draw(with_fallback_self(torch.maximum(aligned, carry_neighbour(columns, slots)))))
        · · ■ · · ·
        · ■ · · · ·
        ■ · · · · ·
        · · · ■ · ·
        · · · · · ■
        ■ · ■ · · ·
    """
    return same_label(_checked(columns), include_self=include_self)


def carry_neighbour(columns: Sequence[int | None], slots: Iterable[int]) -> Tensor:
    """The answer slot of column k reads the slot of column k − 1, whence the carry comes.

    Args:
        columns: the power of the base that each token stands for, None for symbols (:func:`digit_columns`).
        slots: indices of the tokens that hold the answer.

    Returns:
        float32 ``[n, n]`` of 0 and 1; other tokens and the slot of column 0 have empty rows.

    Raises:
        TypeError: a column or an index is not an integer.
        ValueError: no columns, a negative one, an index out of 0..n−1, or a slot without a column.

    Example:
        >>> print(draw(carry_neighbour([0, None, 2, 1, 0], slots=[2, 3, 4])))
        · · · · ·
        · · · · ·
        · · · ■ ·
        · · · · ■
        · · · · ·
    """
    columns = _checked(columns)
    n = len(columns)
    column_of: dict[int, int] = {}
    for slot in token_indices("slots", slots, n):
        column = columns[slot]
        if column is None:
            raise ValueError(f"expected slots that have a column, got slot {slot} with None")
        column_of[slot] = column
    return pairs(
        n, [(i, j) for i in column_of for j in column_of if column_of[j] == column_of[i] - 1], symmetric=False
    )


def _checked(columns: Sequence[int | None]) -> list[int | None]:
    if not columns:
        raise ValueError("expected at least one column, got none")
    return [None if column is None else whole_number("columns", column, minimum=0) for column in columns]
