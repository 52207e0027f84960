"""The minimum-degree interpolator: closed forms, an independent solver, and its defining property."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from maskprior.analysis.fourier import (
    Subset,
    code_subset,
    degree_profile,
    enumerate_cube,
    monomial_values,
    polynomial_values,
    subset_degrees,
    walsh_hadamard,
)
from maskprior.analysis.mdi import (
    mdi_distance,
    minimum_degree_interpolator,
    minimum_degree_interpolator_of_polynomial,
)


def random_values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_seen(dimension: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2**dimension, generator=generator) < torch.rand(1, generator=generator)


def some_is_plus(cube: Tensor, variables: Subset) -> Tensor:
    return (cube[:, list(variables)] > 0).any(dim=1)


def on_larger_cube(small: Tensor, variables: Subset, dimension: int) -> Tensor:
    """A function of the variables alone, as a function on the whole cube."""
    rows = torch.arange(2**dimension)
    codes = torch.zeros_like(rows)
    for j, i in enumerate(variables):
        codes += (rows >> i & 1) << j
    return small[codes]


def solve_on_seen_points(target: Tensor, seen: Tensor) -> Tensor:
    """Oracle from the seen side: degree d takes what lower degrees cannot express on the seen points."""
    dimension = len(seen).bit_length() - 1
    cube = enumerate_cube(dimension, torch.float64)
    characters = torch.stack([monomial_values(cube, code_subset(code)) for code in range(len(seen))], dim=1)
    degrees = subset_degrees(dimension)
    residual, result = target[seen], torch.zeros_like(target)
    for degree in range(dimension, -1, -1):
        lower = characters[seen][:, degrees < degree]
        out_of_reach = torch.eye(len(lower), dtype=torch.float64) - lower @ torch.linalg.pinv(
            lower, rtol=1e-9
        )
        block = characters[:, degrees == degree]
        weights = torch.linalg.pinv(out_of_reach @ block[seen], atol=1e-7, rtol=0) @ out_of_reach @ residual
        residual = residual - block[seen] @ weights
        result = result + block @ weights
    return result


def is_lexicographically_less(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Whether a profile, highest degree first, is below another by more than the tolerance."""
    for a, b in zip(first.flip(0).tolist(), second.flip(0).tolist(), strict=True):
        if abs(a - b) > tolerance:
            return bool(a < b)
    return False


class TestClosedForms:
    @pytest.mark.parametrize("dimension", [2, 5, 13])
    def test_2parity(self, dimension: int) -> None:
        cube = enumerate_cube(dimension, torch.float64)
        seen = some_is_plus(cube, (0, 1))
        target = cube[:, 0] * cube[:, 1]
        mdi = minimum_degree_interpolator(target, seen)
        torch.testing.assert_close(mdi, cube[:, 0] + cube[:, 1] - 1, atol=1e-12, rtol=0)
        torch.testing.assert_close(mdi[~seen], torch.full_like(mdi[~seen], -3), atol=1e-12, rtol=0)
        assert (mdi.sign() == target).double().mean() == 0.75
        assert mdi_distance(target, mdi, ~seen) == pytest.approx(4)

    @pytest.mark.parametrize("dimension", [3, 7])
    def test_majority3(self, dimension: int) -> None:
        # x0x1 = x0 + x1 − 1 where seen, so the cubic term −x0x1x2/2 becomes −(x0x2 + x1x2 − x2)/2.
        cube = enumerate_cube(dimension, torch.float64)
        x0, x1, x2 = cube[:, 0], cube[:, 1], cube[:, 2]
        seen = some_is_plus(cube, (0, 1))
        target = (x0 + x1 + x2).sign()
        mdi = minimum_degree_interpolator(target, seen)
        torch.testing.assert_close(mdi, (x0 + x1 + 2 * x2 - x0 * x2 - x1 * x2) / 2, atol=1e-12, rtol=0)
        wrong = mdi.sign() != target
        assert torch.equal(wrong, ~seen & (x2 > 0))
        assert (~wrong).double().mean() == 0.875

    def test_cyclic3_of_full_size(self) -> None:
        terms: dict[Subset, float] = {}
        for i in range(15):
            a, b, c = sorted((i, (i + 1) % 15, (i + 2) % 15))
            terms[a, b, c] = 1.0
        seen = some_is_plus(enumerate_cube(3), (0, 1, 2))
        mdi = minimum_degree_interpolator_of_polynomial(terms, seen, (0, 1, 2))
        # (1 − x0)(1 − x1)(1 − x2) = 0 where seen.
        lower = {(): 1, (0,): -1, (1,): -1, (2,): -1, (0, 1): 1, (0, 2): 1, (1, 2): 1}
        rest = {subset: 1 for subset in terms if subset != (0, 1, 2)}
        assert mdi == pytest.approx({**lower, **rest}, abs=1e-12)

        cube = enumerate_cube(15, torch.float64)
        dense = minimum_degree_interpolator(polynomial_values(terms, cube), some_is_plus(cube, (0, 1, 2)))
        torch.testing.assert_close(dense, polynomial_values(mdi, cube), atol=1e-11, rtol=0)
        unseen = ~some_is_plus(cube, (0, 1, 2))
        assert mdi_distance(polynomial_values(terms, cube), dense, unseen) == pytest.approx(8)

    def test_one_unseen_point_of_twelve_variables(self) -> None:
        # Π(1 − x_i) = Σ_S (−1)^{|S|} χ_S vanishes where seen: it removes the monomial of degree 12.
        cube = enumerate_cube(12, torch.float64)
        target = cube.prod(dim=1)
        mdi = minimum_degree_interpolator(target, some_is_plus(cube, tuple(range(12))))
        expected = -(1 - 2.0 * (subset_degrees(12) % 2)).to(torch.float64)
        expected[-1] = 0
        torch.testing.assert_close(walsh_hadamard(mdi), expected, atol=1e-11, rtol=0)

    def test_nothing_unseen_or_seen(self) -> None:
        target = random_values(32)
        everything = torch.ones(32, dtype=torch.bool)
        assert torch.equal(minimum_degree_interpolator(target, everything), target)
        assert torch.equal(minimum_degree_interpolator(target, ~everything), torch.zeros_like(target))

    def test_one_seen_point_gives_a_constant(self) -> None:
        target, seen = random_values(2**9), torch.arange(2**9) == 77
        expected = torch.full_like(target, float(target[77]))
        torch.testing.assert_close(minimum_degree_interpolator(target, seen), expected, atol=1e-12, rtol=0)

    def test_a_line_is_found_from_enough_points(self) -> None:
        # n + 1 affinely independent points fix a function of degree 1.
        dimension = 7
        cube = enumerate_cube(dimension, torch.float64)
        target = 0.5 + cube @ random_values(dimension)
        seen = cube.sum(dim=1) >= dimension - 2
        torch.testing.assert_close(minimum_degree_interpolator(target, seen), target, atol=1e-9, rtol=0)


class TestDefinition:
    @given(st.integers(1, 6), st.integers(0, 2**31))
    @settings(deadline=None)
    def test_against_a_solver_on_the_seen_points(self, dimension: int, seed: int) -> None:
        target, seen = random_values(2**dimension, seed=seed), random_seen(dimension, seed)
        expected = solve_on_seen_points(target, seen)
        torch.testing.assert_close(minimum_degree_interpolator(target, seen), expected, atol=1e-8, rtol=1e-8)

    @given(st.integers(1, 4), st.integers(0, 2**31), st.integers(-10, 2), st.data())
    @settings(deadline=None)
    def test_any_other_interpolator_has_a_higher_profile(
        self, dimension: int, seed: int, scale: int, data: st.DataObject
    ) -> None:
        # Integer changes δ: at the first degree that they touch, the weight grows by Σ δ̂² ≥ 4^(scale − n).
        target, seen = random_values(2**dimension, seed=seed), random_seen(dimension, seed)
        mdi = minimum_degree_interpolator(target, seen)
        assert torch.equal(mdi[seen], target[seen])
        drawn = data.draw(st.lists(st.integers(-2, 2), min_size=2**dimension, max_size=2**dimension))
        changes = 2.0**scale * torch.tensor(drawn) * ~seen
        assume(bool(changes.any()))
        best, other = (degree_profile(walsh_hadamard(values)) for values in (mdi, mdi + changes))
        assert is_lexicographically_less(best, other, tolerance=1e-12)

    def test_the_target_itself_has_a_higher_profile(self) -> None:
        target, seen = random_values(16), random_seen(4, seed=3)
        profile = degree_profile(walsh_hadamard(minimum_degree_interpolator(target, seen)))
        assert is_lexicographically_less(profile, degree_profile(walsh_hadamard(target)), tolerance=1e-6)

    @given(st.integers(1, 5), st.integers(0, 2**31))
    @settings(deadline=None)
    def test_linear_in_the_target_and_idempotent(self, dimension: int, seed: int) -> None:
        targets, seen = random_values(3, 2**dimension, seed=seed), random_seen(dimension, seed)
        weights = random_values(3, seed=seed + 1)
        solved = minimum_degree_interpolator(targets, seen)
        torch.testing.assert_close(minimum_degree_interpolator(weights @ targets, seen), weights @ solved)
        torch.testing.assert_close(minimum_degree_interpolator(solved, seen), solved)

    def test_unseen_values_are_not_read(self) -> None:
        target, seen = random_values(2, 3, 32), random_seen(5)
        hidden = target.masked_fill(~seen, math.nan)
        solved = minimum_degree_interpolator(target, seen)
        assert solved.shape == target.shape
        assert torch.equal(minimum_degree_interpolator(hidden, seen), solved)

    def test_targets_of_other_types(self) -> None:
        seen = random_seen(5)
        target = torch.arange(32) % 7 - 3
        solved = minimum_degree_interpolator(target, seen)
        assert solved.dtype == torch.float64
        assert torch.equal(solved, minimum_degree_interpolator(target.double(), seen))


class TestDecomposition:
    @given(st.sets(st.integers(0, 6), max_size=4), st.integers(0, 2**31))
    @settings(deadline=None, max_examples=30)
    def test_few_seen_variables_against_the_whole_cube(self, chosen: set[int], seed: int) -> None:
        variables = tuple(sorted(chosen))
        seen = on_larger_cube(random_seen(len(variables), seed), variables, 7)
        target = random_values(2**7, seed=seed)
        solved = minimum_degree_interpolator(target, seen)
        torch.testing.assert_close(solved, solve_on_seen_points(target, seen), atol=1e-8, rtol=1e-8)

    @pytest.mark.parametrize("variables", [(), (2,), (1, 4), (0, 2, 3), (0, 1, 2, 3, 4)])
    @pytest.mark.parametrize("dimension", [5, 7])
    def test_polynomial_against_dense(self, dimension: int, variables: Subset) -> None:
        cube = enumerate_cube(dimension, torch.float64)
        generator = torch.Generator().manual_seed(dimension)
        codes = torch.randperm(2**dimension, generator=generator)[:11].tolist()
        terms = dict(zip(map(code_subset, codes), random_values(11).tolist(), strict=True))
        small = random_seen(len(variables), seed=5)
        seen = on_larger_cube(small, variables, dimension)
        sparse = minimum_degree_interpolator_of_polynomial(terms, small, variables)
        dense = minimum_degree_interpolator(polynomial_values(terms, cube), seen)
        torch.testing.assert_close(polynomial_values(sparse, cube), dense, atol=1e-9, rtol=0)

    def test_sixty_four_variables(self) -> None:
        seen = some_is_plus(enumerate_cube(2), (0, 1))
        terms = {(31, 63): 2.0, (5, 31, 62): -1.0, (40,): 0.5}
        mdi = minimum_degree_interpolator_of_polynomial(terms, seen, (31, 63))
        assert list(mdi) == [(), (31,), (40,), (63,), (5, 31, 62)]
        expected = {(): -2, (31,): 2, (63,): 2, (40,): 0.5, (5, 31, 62): -1}
        assert mdi == pytest.approx(expected)

    def test_zero_polynomial(self) -> None:
        assert minimum_degree_interpolator_of_polynomial({}, random_seen(3), (1, 2, 9)) == {}


class TestBadInput:
    def test_seen_is_not_boolean(self) -> None:
        with pytest.raises(TypeError, match=r"`seen` as a bool tensor \(True = seen\), got torch.float32"):
            minimum_degree_interpolator(torch.zeros(8), torch.ones(8))

    @pytest.mark.parametrize(("target", "seen"), [((4,), (8,)), ((2, 8), (2, 8)), ((8, 2), (8,))])
    def test_shapes(self, target: tuple[int, ...], seen: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"target_values \[\.\.\., 2\*\*n\] and seen \[2\*\*n\], got"):
            minimum_degree_interpolator(torch.zeros(target), torch.ones(seen, dtype=torch.bool))

    def test_not_a_cube(self) -> None:
        with pytest.raises(ValueError, match=r"over the cube, got shape \[6\]"):
            minimum_degree_interpolator(torch.zeros(6), torch.ones(6, dtype=torch.bool))

    def test_target_not_finite(self) -> None:
        target = torch.tensor([0.0, math.inf])
        with pytest.raises(ValueError, match="finite on the seen points"):
            minimum_degree_interpolator(target, torch.tensor([True, True]))

    def test_cube_too_large(self) -> None:
        size = 2**21
        with pytest.raises(
            ValueError, match="at most 20 variables, got 21; use minimum_degree_interpolator_of"
        ):
            minimum_degree_interpolator(
                torch.zeros(1).expand(size), torch.ones(1, dtype=torch.bool).expand(size)
            )

    def test_too_many_seen_variables(self) -> None:
        cube = enumerate_cube(13)
        with pytest.raises(ValueError, match=r"at most 12 variables, got 13: \(0, 1, .*, 12\)"):
            minimum_degree_interpolator(cube[:, 0], cube.sum(dim=1) > 0)

    def test_polynomial(self) -> None:
        seen = torch.tensor([True, False, True, True])
        with pytest.raises(ValueError, match=r"seen \[2\*\*1\] for the 1 variables \(3,\), got shape \[4\]"):
            minimum_degree_interpolator_of_polynomial({}, seen, (3,))
        with pytest.raises(ValueError, match=r"ascending distinct variables ≥ 0, got \(3, 1\)"):
            minimum_degree_interpolator_of_polynomial({}, seen, (3, 1))
        with pytest.raises(ValueError, match=r"ascending distinct variables ≥ 0, got \(5, 5\)"):
            minimum_degree_interpolator_of_polynomial({(5, 5): 1.0}, seen, (1, 3))
        with pytest.raises(ValueError, match=r"finite coefficients, got nan for x1\*x2"):
            minimum_degree_interpolator_of_polynomial({(1, 2): math.nan}, seen, (1, 3))


class TestDistance:
    def test_only_the_unseen_part_counts(self) -> None:
        unseen = torch.tensor([True, False, True, False])
        values = torch.tensor([1.0, 9.0, 4.0, 9.0])
        mdi = torch.tensor([-2.0, 0.0, 0.0, 0.0], dtype=torch.float64)
        assert mdi_distance(values, mdi, unseen) == pytest.approx(math.sqrt((9 + 16) / 2))
        assert mdi_distance(mdi, mdi, unseen) == 0

    def test_bad_input(self) -> None:
        values = torch.zeros(4)
        with pytest.raises(TypeError, match="`unseen` as a bool tensor"):
            mdi_distance(values, values, values)
        with pytest.raises(ValueError, match=r"one shape, got \[4\], \[4\] and \[2\]"):
            mdi_distance(values, values, torch.ones(2, dtype=torch.bool))
        with pytest.raises(ValueError, match="at least one unseen point"):
            mdi_distance(values, values, torch.zeros(4, dtype=torch.bool))
