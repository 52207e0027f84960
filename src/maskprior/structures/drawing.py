"""A structure as text, for docstrings and terminals."""

from torch import Tensor

from maskprior.structures.arguments import float_structure


def draw(structure: Tensor) -> str:
    """One line a query, one character a key; heads stand side by side.

    ``■`` is 1, ``·`` is 0, a digit is a graded value in tenths (never rounded to 0 or 1).

    Args:
        structure: ``[query, key]`` or ``[heads, query, key]`` in [0, 1].

    Raises:
        TypeError: not a floating-point or bool tensor.
        ValueError: more than three dimensions, non-finite or out of [0, 1].

    Example:
        >>> print(draw(torch.tensor([[1.0, 0.0], [0.5, 0.02]])))
        ■ ·
        5 1
    """
    structure = float_structure(structure)
    if structure.dim() > 3:
        raise ValueError(f"expected [query, key] or [heads, query, key], got shape {tuple(structure.shape)}")
    heads = structure.unsqueeze(0) if structure.dim() == 2 else structure
    rows: list[list[list[float]]] = heads.transpose(0, 1).tolist()
    return "\n".join("   ".join(" ".join(map(_symbol, head)) for head in row) for row in rows)


def _symbol(value: float) -> str:
    if value in (0.0, 1.0):
        return "■" if value else "·"
    return str(min(9, max(1, round(10 * value))))
