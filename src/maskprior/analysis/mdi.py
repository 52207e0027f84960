"""The minimum-degree interpolator (MDI) of a target and a seen domain, exact up to float64 rounding.

Among all functions that agree with the target on the seen points, the MDI has the lexicographically smallest
degree profile (W^n, W^{n−1}, …, W^0): the least weight on degree n, then on n − 1, and so on, where
W^k = Σ_{|S|=k} f̂(S)². It is unique: between two of them, their mean would have no W^k larger and one smaller.

Source: Abbe, Bengio, Lotfi, Rizk, "Generalization on the Unseen, Logic Reasoning and Degree Curriculum",
2023, arXiv 2301.13105 (definitions of degree profile and min-degree interpolator).

Two facts carry over to large n:

*Linearity.* Each stage is a least-squares problem on the affine space left by the previous one, so the MDI is
linear in the target for a given seen domain.

*Decomposition.* Let the seen condition read only the variables K, and write f = Σ_T χ_T(x_{K^c}) g_T(x_K).
1. h agrees with f where seen iff each h_T agrees with g_T there: the χ_T are independent on {±1}^{K^c}.
2. The profile of h is the sum over T of those of h_T, each shifted by |T|; the h_T are free of each other.
3. Adding a vector keeps the lexicographic order, so each h_T is minimal alone: MDI(f) = Σ_T χ_T · MDI(g_T).
By linearity, MDI(f) for each fixed x_{K^c} is the MDI over K of that slice of f.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from maskprior.analysis.fourier import (
    MAX_CUBE_DIMENSION,
    Subset,
    check_subset,
    code_subset,
    cube_dimension,
    inverse_walsh_hadamard,
    monomial_name,
    relevant_variables,
    subset_code,
    subset_degrees,
    walsh_hadamard,
)

MAX_SEEN_VARIABLES = 12
# The matrices decomposed are projected blocks of an orthogonal one: their singular values lie in [0, 1] and
# the limit needs no scale. Measured over all domains of ≤ 3 variables and thousands of random ones up to 12:
# zeros come out below 1e-14, others above 1e-5 (the smallest where the unseen points just fill a degree).
RANK_TOLERANCE = 1e-9
# Coefficients of a sparse result below this share of the largest given one are rounding, and are dropped.
COEFFICIENT_TOLERANCE = 1e-10


def minimum_degree_interpolator(target_values: Tensor, seen: Tensor) -> Tensor:
    """Values of the MDI on the cube.

    Args:
        target_values: the target on the cube, ``[..., 2**n]``, n ≤ 20; several targets share one seen domain.
            Unseen entries are not read.
        seen: bool ``[2**n]``, True = seen in training; may depend on at most 12 variables.

    Returns:
        ``[..., 2**n]``, float64: the target where seen, the MDI elsewhere.

    Raises:
        TypeError: ``seen`` is not Boolean.
        ValueError: the shapes do not fit, the target is not finite on the seen points, n > 20, or ``seen``
            depends on more than 12 variables.
    """
    variables = _seen_variables(target_values, seen)
    dimension = cube_dimension(seen)
    others = [i for i in range(dimension) if i not in variables]
    # Bit i of a row is axis n − 1 − i of the cube viewed as [2, …, 2].
    axes = [dimension - 1 - i for i in reversed((*variables, *others))]
    back = [0, *(1 + axes.index(axis) for axis in range(dimension))]

    cube = target_values.to(torch.float64).reshape(-1, *[2] * dimension)
    slices = cube.permute(0, *(1 + axis for axis in axes)).reshape(-1, 2 ** len(variables))
    seen_slice = seen.reshape([2] * dimension).permute(axes).reshape(-1, 2 ** len(variables))[0]
    solved = _solve(torch.where(seen_slice, slices, 0.0), seen_slice)
    return solved.reshape(cube.shape).permute(back).reshape(target_values.shape)


def minimum_degree_interpolator_of_polynomial(
    terms: Mapping[Subset, float], seen: Tensor, variables: Sequence[int]
) -> dict[Subset, float]:
    """Monomials of the MDI of a sparse polynomial, for any number of variables.

        f = Σ_T χ_T(others) g_T(variables)   →   MDI(f) = Σ_T χ_T · MDI(g_T)   (proof above)

    Args:
        terms: the target's coefficient of each monomial.
        seen: bool ``[2**k]`` on the cube over ``variables``: bit j of a row belongs to ``variables[j]``.
        variables: the ascending variables that the seen condition reads.

    Returns:
        Non-zero coefficients by monomial, lower degrees first.

    Raises:
        TypeError: ``seen`` is not Boolean.
        ValueError: ``seen`` is not ``[2**k]``, it depends on more than 12 variables, a coefficient is not
            finite, or a subset is not ascending.
    """
    check_subset(variables)
    if seen.shape != (2 ** len(variables),):
        raise ValueError(
            f"expected seen [2**{len(variables)}] for the {len(variables)} variables {tuple(variables)}, "
            f"got shape {list(seen.shape)}"
        )
    outside, spectra = _split(terms, variables)
    solved = walsh_hadamard(minimum_degree_interpolator(inverse_walsh_hadamard(spectra), seen))
    limit = COEFFICIENT_TOLERANCE * max(map(abs, terms.values()), default=0.0)
    found = {
        _join(outside[row], code, variables): float(solved[row, code])
        for row, code in (solved.abs() > limit).nonzero().tolist()
    }
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def mdi_distance(values: Tensor, mdi_values: Tensor, unseen: Tensor) -> float:
    """Root mean square of (values − MDI) over the unseen points, in the unit of the target's values.

    0 means that the model learned the MDI; the distance of the target itself is the scale to compare with.

    Args:
        values: the learned function on the cube, ``[2**n]``.
        mdi_values: the MDI there, ``[2**n]``.
        unseen: bool ``[2**n]``, True = not seen in training.

    Raises:
        TypeError: ``unseen`` is not Boolean.
        ValueError: the shapes differ, or no point is unseen.
    """
    if unseen.dtype != torch.bool:
        raise TypeError(f"expected `unseen` as a bool tensor (True = not seen), got {unseen.dtype}")
    if not values.shape == mdi_values.shape == unseen.shape:
        raise ValueError(
            "expected values, mdi_values and unseen of one shape, got "
            f"{list(values.shape)}, {list(mdi_values.shape)} and {list(unseen.shape)}"
        )
    if not bool(unseen.any()):
        raise ValueError("expected at least one unseen point, got none: every interpolator is the target")
    difference = values[unseen].to(torch.float64) - mdi_values[unseen].to(torch.float64)
    return float(difference.square().mean().sqrt())


def _seen_variables(target_values: Tensor, seen: Tensor) -> Subset:
    """The variables that the seen condition reads, after all checks."""
    if seen.dtype != torch.bool:
        raise TypeError(f"expected `seen` as a bool tensor (True = seen), got {seen.dtype}")
    if seen.dim() != 1 or target_values.shape[-1:] != seen.shape:
        raise ValueError(
            f"expected target_values [..., 2**n] and seen [2**n], got {list(target_values.shape)} and "
            f"{list(seen.shape)}"
        )
    if cube_dimension(seen) > MAX_CUBE_DIMENSION:
        raise ValueError(
            f"expected at most {MAX_CUBE_DIMENSION} variables, got {cube_dimension(seen)}; use "
            "minimum_degree_interpolator_of_polynomial"
        )
    if not bool(target_values[..., seen].isfinite().all()):
        raise ValueError("expected a target that is finite on the seen points, got NaN or ±inf")
    variables = relevant_variables(seen)
    if len(variables) > MAX_SEEN_VARIABLES:
        raise ValueError(
            f"expected a seen domain that depends on at most {MAX_SEEN_VARIABLES} variables, got "
            f"{len(variables)}: {variables}"
        )
    return variables


def _solve(values: Tensor, seen: Tensor) -> Tensor:
    """Fill in the unseen entries (zero on entry) of ``[batch, 2**k]``, degree by degree from the top.

    With orthonormal characters w_S = 2^{−k/2} χ_S, the coefficients of degree d are c + Bᵀv, where v are the
    changes of the unseen values and the columns of B are the w_S, |S| = d, restricted to the unseen points.
    v must leave the higher degrees as they are, that is, be orthogonal to the directions Q that they fixed.
    With (1 − QQᵀ) B = UΣVᵀ the least-squares solutions are v = −UΣ⁻¹Vᵀc + anything orthogonal to Q and U.
    """
    dimension = cube_dimension(seen)
    degrees = subset_degrees(dimension).to(seen.device)
    unseen = (~seen).nonzero().squeeze(-1)
    scale = 2.0 ** (-dimension / 2)
    fixed = values.new_zeros(len(unseen), 0)
    for degree in range(dimension, -1, -1):
        if fixed.shape[1] == len(unseen):
            break
        codes = (degrees == degree).nonzero().squeeze(-1)
        block = scale * (1 - 2 * (degrees[unseen[:, None] & codes] % 2)).to(torch.float64)
        left, singular, right = _new_directions(block, fixed)
        current = inverse_walsh_hadamard(values)[:, codes] * scale
        values = values.index_add(1, unseen, (current @ right.T / singular) @ left.T, alpha=-1)
        fixed = torch.cat((fixed, left), dim=1)
    return values


def _new_directions(block: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reduced SVD of the part of the block orthogonal to the fixed directions, at its numerical rank."""
    for _ in range(2):  # the second pass removes what the first left by rounding
        block = block - fixed @ (fixed.T @ block)
    left, singular, right = torch.linalg.svd(block, full_matrices=False)
    rank = int((singular > RANK_TOLERANCE).sum())
    return left[:, :rank], singular[:rank], right[:rank]


def _split(terms: Mapping[Subset, float], variables: Sequence[int]) -> tuple[list[Subset], Tensor]:
    """The distinct T outside the variables, and the spectrum of each g_T, ``[len(T), 2**k]``."""
    rows: dict[Subset, int] = {(): 0}  # T = ∅ is always there, so that the zero polynomial is no special case
    entries: list[tuple[int, int, float]] = []
    for subset, weight in terms.items():
        check_subset(subset)
        if not math.isfinite(weight):
            raise ValueError(f"expected finite coefficients, got {weight} for {monomial_name(subset)}")
        row = rows.setdefault(tuple(i for i in subset if i not in variables), len(rows))
        entries.append((row, subset_code([j for j, i in enumerate(variables) if i in subset]), weight))
    spectra = torch.zeros(len(rows), 2 ** len(variables), dtype=torch.float64)
    for row, code, weight in entries:
        spectra[row, code] = weight
    return list(rows), spectra


def _join(outside: Subset, code: int, variables: Sequence[int]) -> Subset:
    """The subset T ∪ {variables[j] : bit j of code}."""
    return tuple(sorted((*outside, *(variables[j] for j in code_subset(code)))))
