"""Structures of positions on a line or a ring: causal, windows, decay with distance."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from maskprior.structures.arguments import empty_structure, positive_numbers, whole_number
from maskprior.structures.basic import everything


def causal(n: int) -> Tensor:
    """Query i interacts with keys j ≤ i, itself included.

    A preference that can be unlearned; what must never be read belongs in ``allowed``.

    Args:
        n: number of tokens.

    Returns:
        float32 ``[n, n]``.

    Raises:
        TypeError: ``n`` is not an integer.
        ValueError: ``n`` < 1.

    Example:
        >>> print(draw(causal(3)))
        ■ · ·
        ■ ■ ·
        ■ ■ ■
    """
    return everything(n).tril()


def window(n: int, before: int, after: int) -> Tensor:
    """Query i interacts with keys i − before ≤ j ≤ i + after, itself included; cut off at the ends.

    Args:
        n: number of tokens.
        before: how many tokens before itself a token reads.
        after: how many tokens after itself a token reads.

    Returns:
        float32 ``[n, n]``.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: ``n`` < 1, or a negative reach.

    Example:
        >>> print(draw(window(5, before=2, after=1)))
        ■ ■ · · ·
        ■ ■ ■ · ·
        ■ ■ ■ ■ ·
        · ■ ■ ■ ■
        · · ■ ■ ■
    """
    before = whole_number("before", before, minimum=0)
    after = whole_number("after", after, minimum=0)
    return everything(n).triu(-before).tril(after)


def cyclic_window(n: int, offsets: Iterable[int]) -> Tensor:
    """Query i interacts with keys (i + o) mod n for every offset o: positions on a ring.

    Args:
        n: number of tokens.
        offsets: any integers; 0 is the token itself.

    Returns:
        float32 ``[n, n]``, a circulant matrix.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: ``n`` < 1, or no offset.

    Example:
        >>> print(draw(cyclic_window(5, [1, 2])))
        · ■ ■ · ·
        · · ■ ■ ·
        · · · ■ ■
        ■ · · · ■
        ■ ■ · · ·
    """
    structure = empty_structure(n)
    steps = [whole_number("offsets", offset) for offset in offsets]
    if not steps:
        raise ValueError("expected at least one offset, got none")
    queries = torch.arange(n)
    for step in steps:
        structure[queries, (queries + step) % n] = 1.0
    return structure


def relative_distance(n: int, half_life: float | Sequence[float], *, causal: bool = False) -> Tensor:
    """Interaction that halves with distance: s_ij = 2^(−|i − j| / half_life).

    Args:
        n: number of tokens.
        half_life: distance in tokens after which the interaction has halved; a sequence gives one a head
            (see :func:`geometric_half_lives`).
        causal: 0 for keys after the query.

    Returns:
        float32 ``[n, n]``, or ``[heads, n, n]`` for a sequence; 1 on the diagonal.

    Raises:
        TypeError: ``n`` is not an integer.
        ValueError: ``n`` < 1, or a half-life that is not finite and > 0.

    Example:
        >>> print(draw(relative_distance(4, half_life=1.0, causal=True)))
        ■ · · ·
        5 ■ · ·
        2 5 ■ ·
        1 2 5 ■
    """
    return _one_sided(halving(_distance(n), half_life), causal)


def linear_distance(n: int, reach: float | Sequence[float], *, causal: bool = False) -> Tensor:
    """Interaction that falls linearly with distance: s_ij = max(0, 1 − |i − j| / reach).

    Mask logits are linear in the structure and log σ(m) ≈ m for m ≪ 0, so the bias falls by about
    (allowed_logit − suppressed_logit) / reach a token, as in ALiBi, down to the floor.

    Args:
        n: number of tokens.
        reach: distance in tokens from which on the interaction is 0; a sequence gives one a head.
        causal: 0 for keys after the query.

    Returns:
        float32 ``[n, n]``, or ``[heads, n, n]`` for a sequence; 1 on the diagonal.

    Raises:
        TypeError: ``n`` is not an integer.
        ValueError: ``n`` < 1, or a reach that is not finite and > 0.

    Source: Press, Smith, Lewis 2022, "Train Short, Test Long", section 3, for the linear bias.

    Example:
        >>> print(draw(linear_distance(4, reach=2.0)))
        ■ 5 · ·
        5 ■ 5 ·
        · 5 ■ 5
        · · 5 ■
    """
    reaches = positive_numbers("reach", reach)[..., None, None]
    return _one_sided((1 - _distance(n) / reaches).clamp(min=0).float(), causal)


def geometric_half_lives(heads: int, shortest: float, longest: float) -> list[float]:
    """Half-lives spread geometrically over heads: h_k = shortest · (longest / shortest)^(k / (heads − 1)).

    Args:
        heads: number of heads; one head gets the geometric mean of the two.
        shortest: half-life of the first head, in tokens.
        longest: half-life of the last head, in tokens.

    Returns:
        One half-life a head, ascending.

    Raises:
        TypeError: ``heads`` is not an integer.
        ValueError: ``heads`` < 1, or not 0 < shortest ≤ longest < ∞.

    Example:
        >>> geometric_half_lives(3, shortest=1.0, longest=64.0)
        [1.0, 8.0, 64.0]
    """
    heads = whole_number("heads", heads, minimum=1)
    if not 0 < shortest <= longest < float("inf"):
        raise ValueError(
            f"expected 0 < shortest ≤ longest < ∞, got shortest={shortest} and longest={longest}"
        )
    fractions = [k / (heads - 1) for k in range(heads)] if heads > 1 else [0.5]
    return [float(shortest ** (1 - fraction) * longest**fraction) for fraction in fractions]


def halving(distance: Tensor, half_life: float | Sequence[float]) -> Tensor:
    """2^(−distance / half_life) in float32, ``[*heads, *distance.shape]``; infinite distance gives 0."""
    half_lives = positive_numbers("half_life", half_life)[..., None, None]
    return torch.exp2(-distance / half_lives).float()


def _distance(n: int) -> Tensor:
    positions = torch.arange(whole_number("n", n, minimum=1), dtype=torch.float64)
    return (positions.unsqueeze(1) - positions).abs()


def _one_sided(structure: Tensor, causal: bool) -> Tensor:
    return structure.tril() if causal else structure
