"""Fourier analysis of functions on the cube {±1}ⁿ.

    f(x) = Σ_S f̂(S) χ_S(x),   χ_S(x) = Π_{i∈S} x_i,   f̂(S) = 2⁻ⁿ Σ_x f(x) χ_S(x)

The cube is enumerated so that row r has x_i = −1 iff bit i of r is 1. A subset S is a sorted tuple of
variables; its code is Σ_{i∈S} 2ⁱ, so χ_S(row r) = (−1)^popcount(code & r). A *spectrum* is f̂ by code.

Source: O'Donnell, "Analysis of Boolean Functions", 2014, chapter 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

MAX_CUBE_DIMENSION = 20

Subset = tuple[int, ...]


def enumerate_cube(dimension: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """All points of {±1}ⁿ, ``[2**dimension, dimension]``: x_i = 1 − 2·((row >> i) & 1).

    Raises:
        ValueError: the dimension is not in 1…20.
    """
    if not 1 <= dimension <= MAX_CUBE_DIMENSION:
        raise ValueError(
            f"expected a dimension in 1…{MAX_CUBE_DIMENSION} to enumerate the cube, got {dimension}; "
            "sample points beyond that"
        )
    rows = torch.arange(2**dimension, dtype=torch.int32).unsqueeze(-1)
    bits = (rows >> torch.arange(dimension, dtype=torch.int32)) & 1
    return (1 - 2 * bits).to(dtype)


def cube_dimension(values: Tensor) -> int:
    """The n of a tensor ``[..., 2**n]``.

    Raises:
        ValueError: the last dimension is not a power of two.
    """
    length = values.shape[-1] if values.dim() else 0
    if length < 1 or length & (length - 1):
        raise ValueError(f"expected a tensor [..., 2**n] over the cube, got shape {list(values.shape)}")
    return length.bit_length() - 1


def walsh_hadamard(values: Tensor) -> Tensor:
    """Spectrum f̂(S) = 2⁻ⁿ Σ_x f(x) χ_S(x), by the fast transform: n 2ⁿ additions.

    Args:
        values: f on the cube, ``[..., 2**n]``, any real type.

    Returns:
        f̂ by code of S, ``[..., 2**n]``, float64.

    Raises:
        ValueError: the last dimension is not a power of two.
    """
    return inverse_walsh_hadamard(values) / values.shape[-1]


def inverse_walsh_hadamard(spectrum: Tensor) -> Tensor:
    """Values f(x) = Σ_S f̂(S) χ_S(x) on the cube, ``[..., 2**n]`` → ``[..., 2**n]``, float64.

    Raises:
        ValueError: the last dimension is not a power of two.
    """
    result = spectrum.to(torch.float64)
    dimension = cube_dimension(spectrum)
    for i in range(dimension):
        even, odd = result.reshape(*spectrum.shape[:-1], 2 ** (dimension - 1 - i), 2, 2**i).unbind(-2)
        result = torch.stack((even + odd, even - odd), dim=-2)
    return result.reshape(spectrum.shape)


def check_subset(subset: Sequence[int], dimension: int | None = None) -> None:
    """Raise ValueError unless the variables are distinct, ascending, and in 0…dimension − 1."""
    ascending = all(a < b for a, b in pairwise(subset))
    if not ascending or (subset and subset[0] < 0):
        raise ValueError(f"expected a subset as ascending distinct variables ≥ 0, got {tuple(subset)}")
    if dimension is not None and subset and subset[-1] >= dimension:
        raise ValueError(f"expected variables x0…x{dimension - 1}, got {monomial_name(subset)}")


def subset_code(subset: Sequence[int]) -> int:
    """Σ_{i∈S} 2ⁱ.

    Raises:
        ValueError: the variables are not distinct and ascending.
    """
    check_subset(subset)
    return sum(1 << i for i in subset)


def code_subset(code: int) -> Subset:
    """Inverse of :func:`subset_code`.

    Raises:
        ValueError: the code is negative.
    """
    if code < 0:
        raise ValueError(f"expected a subset code ≥ 0, got {code}")
    return tuple(i for i in range(code.bit_length()) if code >> i & 1)


def monomial_name(subset: Sequence[int]) -> str:
    """``(0, 1)`` → ``"x0*x1"``; the empty product is ``"1"``.

    Raises:
        ValueError: the variables are not distinct and ascending.
    """
    check_subset(subset)
    return "*".join(f"x{i}" for i in subset) or "1"


def parse_monomial(name: str) -> Subset:
    """Inverse of :func:`monomial_name`; factors in any order, spaces allowed.

    Raises:
        ValueError: a factor is not ``x`` and a number, or occurs twice.
    """
    factors = [factor.strip() for factor in name.split("*")]
    if factors == ["1"]:
        return ()
    if not all(factor[:1] == "x" and factor[1:].isascii() and factor[1:].isdigit() for factor in factors):
        raise ValueError(f"expected a monomial such as 'x0*x1', or '1' for the constant, got {name!r}")
    subset = tuple(sorted(int(factor[1:]) for factor in factors))
    if len(set(subset)) < len(subset):
        raise ValueError(f"expected each variable once (x² = 1 on the cube), got {name!r}")
    return subset


def coefficient(spectrum: Tensor, subset: Sequence[int]) -> float:
    """f̂(S) of one spectrum ``[2**n]``.

    Raises:
        ValueError: the spectrum is not ``[2**n]`` or the subset has variables beyond its dimension.
    """
    check_subset(subset, _single_dimension(spectrum))
    return float(spectrum[subset_code(subset)])


def coefficients(spectrum: Tensor, subsets: Iterable[Sequence[int]]) -> dict[str, float]:
    """f̂(S) by the monomial's name, in the order given.

    Raises:
        ValueError: as for :func:`coefficient`.
    """
    return {monomial_name(subset): coefficient(spectrum, subset) for subset in subsets}


def monomial_values(inputs: Tensor, subset: Sequence[int]) -> Tensor:
    """χ_S(x) for points ``[batch, n]`` → ``[batch]``, in the inputs' type.

    Raises:
        ValueError: the inputs are not ``[batch, n]`` or the subset has variables beyond n.
    """
    if inputs.dim() != 2:
        raise ValueError(f"expected inputs [batch, n], got shape {list(inputs.shape)}")
    check_subset(subset, inputs.shape[1])
    return inputs[:, list(subset)].prod(dim=1)


def polynomial_values(terms: Mapping[Subset, float], inputs: Tensor) -> Tensor:
    """Σ_S c_S χ_S(x) for points ``[batch, n]`` → ``[batch]``, float64.

    Raises:
        ValueError: as for :func:`monomial_values`.
    """
    points = inputs.to(torch.float64)
    total = points.new_zeros(points.shape[0])
    for subset, weight in terms.items():
        total += weight * monomial_values(points, subset)
    return total


def estimate_coefficients(
    inputs: Tensor, values: Tensor, subsets: Iterable[Sequence[int]]
) -> dict[str, float]:
    """Empirical mean of f(x) χ_S(x): an unbiased estimate of f̂(S) if the points are uniform on the cube.

    Its standard error is at most sqrt(mean f² / batch).

    Args:
        inputs: points, ``[batch, n]``, entries ±1.
        values: f at these points, ``[batch]``.
        subsets: which S.

    Raises:
        ValueError: the shapes do not fit, there is no point, an entry is not ±1, or a variable is ≥ n.
    """
    if inputs.dim() != 2 or values.shape != inputs.shape[:1] or values.numel() == 0:
        raise ValueError(
            f"expected inputs [batch, n] and values [batch] with batch ≥ 1, got {list(inputs.shape)} and "
            f"{list(values.shape)}"
        )
    if not bool((inputs.abs() == 1).all()):
        raise ValueError("expected inputs with entries +1 and −1 only")
    points, exact = inputs.to(torch.float64), values.to(torch.float64)
    return {
        monomial_name(subset): float((monomial_values(points, subset) * exact).mean()) for subset in subsets
    }


def subset_degrees(dimension: int) -> Tensor:
    """|S| by code of S, int64 ``[2**dimension]``."""
    degrees = torch.zeros(1, dtype=torch.int64)
    for _ in range(dimension):
        degrees = torch.cat((degrees, degrees + 1))
    return degrees


def degree_profile(spectrum: Tensor) -> Tensor:
    """Fourier weight by degree, W^k = Σ_{|S|=k} f̂(S)²; Σ_k W^k = mean f² (Parseval).

    Args:
        spectrum: f̂, ``[..., 2**n]``.

    Returns:
        ``[..., n + 1]``, degree 0 first, float64.

    Raises:
        ValueError: the last dimension is not a power of two.
    """
    dimension = cube_dimension(spectrum)
    squares = spectrum.to(torch.float64).square()
    profile = squares.new_zeros((*squares.shape[:-1], dimension + 1))
    return profile.index_add(-1, subset_degrees(dimension).to(squares.device), squares)


def top_monomials(spectrum: Tensor, count: int) -> dict[str, float]:
    """The ``count`` monomials with the largest |f̂(S)|, largest first; of equals the lower degree, then code.

    Raises:
        ValueError: the spectrum is not ``[2**n]`` or ``count`` is not in 1…2ⁿ.
    """
    dimension = _single_dimension(spectrum)
    if not 1 <= count <= len(spectrum):
        raise ValueError(f"expected a count in 1…{len(spectrum)}, got {count}")
    by_degree = subset_degrees(dimension).to(spectrum.device).argsort(stable=True)
    order = spectrum[by_degree].abs().argsort(descending=True, stable=True)
    return coefficients(spectrum, map(code_subset, by_degree[order[:count]].tolist()))


def relevant_variables(values: Tensor) -> Subset:
    """The variables on which a function on the cube (``[2**n]``, any type) depends.

    Raises:
        ValueError: the values are not ``[2**n]``.
    """
    pairs = (values.reshape(-1, 2, 2**i) for i in range(_single_dimension(values)))
    return tuple(i for i, pair in enumerate(pairs) if not torch.equal(pair[:, 0], pair[:, 1]))


def _single_dimension(values: Tensor) -> int:
    if values.dim() != 1:
        raise ValueError(f"expected one function on the cube [2**n], got shape {list(values.shape)}")
    return cube_dimension(values)
