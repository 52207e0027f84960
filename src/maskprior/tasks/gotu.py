"""The three Boolean tasks of the paper with the structures that solve them.

What the structures share: the bits of one interaction attend to each other and not to themselves. Reading
single bits, by self-attention or by a direct read of the read-out token, is the degree-1 shortcut that the
minimum-degree interpolator takes; without it the product has to be formed first.
"""

from maskprior import structures
from maskprior.tasks.boolean import AnyIsOne, BooleanTask, Polynomial

DIMENSION = 15


def two_parity(dimension: int = DIMENSION) -> BooleanTask:
    """x0·x1 with x0 = 1 or x1 = 1 seen. The MDI is x0 + x1 − 1, which is right on 75 % of the cube.

    Structure: x0 ↔ x1. The read-out token attends to itself, so that it reads the bits only through what
    suppression leaks, after they have interacted; every other bit attends to itself::

                [CLS] x0 x1 x2
        [CLS]     1    0  0  0
        x0        0    0  1  0
        x1        0    1  0  0
        x2        0    0  0  1
    """
    _check_dimension(dimension, 2)
    bits = structures.with_fallback_self(structures.pairs(dimension, [(0, 1)]))
    return BooleanTask(
        name="2parity",
        dimension=dimension,
        target=Polynomial((((0, 1), 1.0),)),
        seen=AnyIsOne((0, 1)),
        interaction=structures.with_readout(bits, reads="none", self_read=True),
        monomials=((0, 1), (0,), (1,), ()),
    )


def majority3(dimension: int = DIMENSION) -> BooleanTask:
    """sign(x0 + x1 + x2) with x0 = 1 or x1 = 1 seen. The MDI is wrong iff x2 = 1 is unseen: 87.5 %.

    Structure: x0, x1, x2 attend to each other, the read-out token to the three; other bits to themselves.
    """
    _check_dimension(dimension, 3)
    bits = structures.with_fallback_self(structures.groups(dimension, [[0, 1, 2]]))
    return BooleanTask(
        name="majority3",
        dimension=dimension,
        target=Polynomial((((0,), 0.5), ((1,), 0.5), ((2,), 0.5), ((0, 1, 2), -0.5))),
        seen=AnyIsOne((0, 1)),
        interaction=structures.with_readout(bits, reads=[0, 1, 2], self_read=False),
        monomials=((0, 1, 2), (0,), (1,), (2,)),
    )


def cyclic3(dimension: int = DIMENSION) -> BooleanTask:
    """Σ_i x_i x_{i+1} x_{i+2} (indices mod n) with x0 = 1 or x1 = 1 or x2 = 1 seen.

    The MDI replaces x0·x1·x2 by lower degrees. Structure: x_i attends to x_{i+1} and x_{i+2}, the read-out
    token to all bits. The window that is never seen whole is learned from the others.
    """
    _check_dimension(dimension, 4)
    windows = [tuple(sorted((i + step) % dimension for step in range(3))) for i in range(dimension)]
    return BooleanTask(
        name="cyclic3",
        dimension=dimension,
        target=Polynomial(tuple((window, 1.0) for window in windows)),
        seen=AnyIsOne((0, 1, 2)),
        interaction=structures.with_readout(
            structures.cyclic_window(dimension, [1, 2]), reads="all", self_read=False
        ),
        monomials=((0, 1, 2),),
    )


def _check_dimension(dimension: int, least: int) -> None:
    if dimension < least:
        raise ValueError(f"expected dimension ≥ {least}, got {dimension}")


BOOLEAN_TASKS = {"2parity": two_parity, "majority3": majority3, "cyclic3": cyclic3}
